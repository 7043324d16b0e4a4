use burn::{
    backend::{Dispatch, DispatchTensor},
    tensor::{Device, Int, Tensor},
};

use crate::{
    fields::{self, FIELDS, parts_of},
    ops::AmpOps,
    words::{TensorStatus, WORDS, decode, read_words},
};

/// What a pass has found, still on the device.
///
/// # Words
///
/// A kernel writes 16 words of 32 bits for each tensor, in the order of the list. Each number has two of them, the
/// lower first. Counts are integers, exact beyond 2^24:
///
/// | words | |
/// |--:|---|
/// | 0, 1 | values at or above the edge after scaling, infinities and NaN among them |
/// | 2, 3 | infinities and NaN before scaling |
/// | 4, 5 | infinities and NaN after scaling |
/// | 6, 7 | zeros after scaling |
/// | 8, 9 | largest finite magnitude after scaling |
/// | 10, 11 | sum of squares of the small values |
/// | 12, 13 | sum of squares of those between |
/// | 14, 15 | sum of squares of the big values |
///
/// The four floats are f64 bits (Flex), or f32 bits in the lower word (CubeCL), and then word 9 is `0xFFFF_FFFF`.
/// Values after scaling that are not finite are in none of the four.
///
/// Squares are summed in three ranges of magnitude, each at a scale at which they neither overflow nor vanish (J. L.
/// Blue, "A Portable Fortran Program to Find the Euclidean Norm of a Vector", 1978). In f64, values below 1e-100
/// are small and are multiplied by 2^600 before they are squared, and those above 1e100 are big and are multiplied by
/// 2^-600. In f32, the bounds are 2^-63 and 2^47, the factors 2^75 and 2^-81.
#[derive(Clone, Debug, Default)]
pub struct Status {
    found: Found,
    /// Of each tensor.
    elements: Vec<u64>,
    /// The device of the list, where the work was done on another.
    home: Option<Device>,
}

#[derive(Clone, Debug, Default)]
enum Found {
    /// The list was empty.
    #[default]
    Nothing,
    /// [`WORDS`] words for each tensor, from a kernel.
    Words(Tensor<1, Int>),
    /// [`FIELDS`] floats for each part of each tensor, from Burn's operations.
    Fields(Tensor<1>),
}

impl Found {
    fn read(self, elements: &[u64]) -> Vec<TensorStatus> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Words(words) => read_words(words).chunks_exact(WORDS).map(decode).collect(),
            Self::Fields(fields) => {
                let floats: Vec<f64> = fields.into_data().iter().collect();
                let mut rest = floats.as_slice();
                let mut row = |elements: &u64| {
                    let (rows, others) = rest.split_at_checked(FIELDS * parts_of(*elements))?;
                    rest = others;
                    Some(fields::decode(rows))
                };
                elements.iter().filter_map(&mut row).collect()
            }
        }
    }
}

impl Status {
    pub(crate) fn of_words(words: DispatchTensor, elements: Vec<u64>) -> Self {
        Self {
            found: Found::Words(Tensor::from_dispatch(words)),
            elements,
            home: None,
        }
    }

    pub(crate) fn of_fields(fields: Tensor<1>, elements: Vec<u64>) -> Self {
        Self {
            found: Found::Fields(fields),
            elements,
            home: None,
        }
    }

    pub(crate) fn of_device(self, home: Device) -> Self {
        let home = Some(home);
        Self { home, ..self }
    }

    /// Reads the status, a row for each tensor, in the order of the list.
    ///
    /// Waits for the device, for one small transfer: 64 bytes a tensor from kernels.
    ///
    /// # Panics
    ///
    /// In Burn, if the device fails: it is lost, or work that was queued before cannot be done.
    pub fn read(self) -> Vec<TensorStatus> {
        self.read_beside(Vec::new()).0
    }

    /// As [`read`](Self::read), and other words of kernels: in the same transfer where they are on one device.
    pub(crate) fn read_beside(self, others: Vec<Tensor<1, Int>>) -> (Vec<TensorStatus>, Vec<u32>) {
        let mut rest = Vec::new();
        let rows: Vec<TensorStatus> = match self.found {
            Found::Words(own) if others.iter().all(|other| other.device() == own.device()) => {
                let count = own.dims()[0];
                let words = match others.is_empty() {
                    true => own,
                    false => Tensor::cat([vec![own], others].concat(), 0),
                };
                let mut words = read_words(words);
                rest = words.split_off(count);
                words.chunks_exact(WORDS).map(decode).collect()
            }
            found => {
                rest.extend(others.into_iter().flat_map(read_words));
                found.read(&self.elements)
            }
        };
        // A row less would give its tensor another's numbers, or none, and an overflow would pass unseen.
        assert_eq!(rows.len(), self.elements.len(), "a row for each tensor");
        let counted = |(row, elements)| TensorStatus { elements, ..row };
        let rows = rows.into_iter().zip(self.elements).map(counted);
        (rows.collect(), rest)
    }

    /// Whether a value of any tensor is infinite or NaN after scaling: 1 or 0, in f32, of shape `[1]`, on the device of the
    /// list. None for an empty list. As `found_inf` of PyTorch's scaler.
    ///
    /// Does not wait for the device: for steps that are built without a wait. [`read`](Self::read) is not needed for it.
    pub fn found_inf(&self) -> Option<Tensor<1>> {
        Some(self.verdict()?.slice(0..1))
    }

    /// The L2 norm of the finite values of all tensors after scaling, as one vector: in f32, of shape `[1]`, on the device of
    /// the list. None for an empty list. Infinite where it is beyond f32.
    ///
    /// Does not wait for the device.
    pub fn norm(&self) -> Option<Tensor<1>> {
        Some(self.verdict()?.slice(1..2))
    }

    fn verdict(&self) -> Option<Tensor<1>> {
        let verdict = match &self.found {
            Found::Nothing => return None,
            Found::Words(words) => {
                Tensor::from_dispatch(Dispatch::amp_verdict(words.clone().into_dispatch()))
            }
            Found::Fields(fields) => fields::verdict(fields.clone()),
        };
        Some(match &self.home {
            Some(home) => verdict.to_device(home),
            None => verdict,
        })
    }
}
