use burn::{
    backend::{Dispatch, DispatchTensor},
    tensor::{Device, FloatDType, Int, Tensor},
};

#[allow(unused_imports)]
pub(crate) use crate::words::{NARROW, NARROW_BIG, NARROW_SMALL, Row, Squares, WORDS, verdict};
use crate::{
    ops::AmpOps,
    words::{TensorStatus, decode, read_words},
};

/// The floats of one tensor's row where Burn's operations have found it: four counts of two floats, in units of
/// [`COUNT_BASE`] and of one, in the order of the words; largest magnitude; sum of squares relative to it.
pub(crate) const FIELDS: usize = 10;

/// Counts travel as two floats, so that each is exact in f32.
pub(crate) const COUNT_BASE: u64 = 1 << 20;

/// Tensors of more values have several rows where Burn's operations have found them: counts fit its i32.
pub(crate) const PART: u64 = 1 << 30;

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
    /// [`FIELDS`] floats for each [`PART`] of each tensor, from Burn's operations.
    Fields(Tensor<1>),
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

    pub(crate) fn to_device(self, home: Device) -> Self {
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
        let rows: Vec<TensorStatus> = match self.found {
            Found::Nothing => Vec::new(),
            Found::Words(words) => read_words(words).chunks_exact(WORDS).map(decode).collect(),
            Found::Fields(fields) => {
                let fields: Vec<f64> = fields.into_data().iter().collect();
                let mut parts = fields.chunks_exact(FIELDS).map(decode_fields);
                let mut row = |elements: &u64| {
                    let parts = parts.by_ref().take(parts_of(*elements));
                    parts.fold(TensorStatus::default(), TensorStatus::join)
                };
                self.elements.iter().map(&mut row).collect()
            }
        };
        // A row less would give its tensor another's numbers, or none, and an overflow would pass unseen.
        assert_eq!(rows.len(), self.elements.len(), "a row for each tensor");
        let counted = |(row, elements)| TensorStatus { elements, ..row };
        rows.into_iter().zip(self.elements).map(counted).collect()
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
            Found::Fields(fields) => verdict_of_fields(fields.clone()),
        };
        Some(match &self.home {
            Some(home) => verdict.to_device(home),
            None => verdict,
        })
    }
}

/// How many rows a tensor has where Burn's operations have found them.
pub(crate) fn parts_of(elements: u64) -> usize {
    elements.div_ceil(PART).max(1) as usize
}

fn decode_fields(fields: &[f64]) -> TensorStatus {
    let count = |at: usize| fields[2 * at] as u64 * COUNT_BASE + fields[2 * at + 1] as u64;
    TensorStatus {
        elements: 0,
        above: count(0),
        non_finite_before: count(1),
        non_finite: count(2),
        zeros: count(3),
        max_abs: fields[8],
        norm: fields[8] * fields[9].sqrt(),
    }
}

fn verdict_of_fields(fields: Tensor<1>) -> Tensor<1> {
    let rows = fields.dims()[0] / FIELDS;
    let fields = fields.reshape([rows, FIELDS]);
    let field = |at: usize| fields.clone().slice([0..rows, at..at + 1]).reshape([rows]);
    let found_inf = (field(4) + field(5)).max().greater_elem(0.0);
    // Relative to the largest magnitude, so that squares are in range; where all are zero, to one.
    let largest = field(8).max();
    let unit = largest.clone().mask_fill(largest.equal_elem(0.0), 1.0);
    let squares = (field(8) / unit.clone()).square() * field(9);
    let norm = squares.sum().sqrt() * unit;
    let found_inf = found_inf.int().cast(FloatDType::F32);
    Tensor::cat(vec![found_inf, norm.cast(FloatDType::F32)], 0)
}

impl TensorStatus {
    /// Of two parts of a tensor.
    fn join(self, other: Self) -> Self {
        Self {
            elements: 0,
            above: self.above + other.above,
            non_finite_before: self.non_finite_before + other.non_finite_before,
            non_finite: self.non_finite + other.non_finite,
            zeros: self.zeros + other.zeros,
            max_abs: self.max_abs.max(other.max_abs),
            norm: self.norm.hypot(other.norm),
        }
    }
}
