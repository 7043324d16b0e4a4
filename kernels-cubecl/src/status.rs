use burn::{
    backend::{Dispatch, DispatchTensor},
    tensor::{Device, FloatDType, Int, Tensor},
};

use crate::ops::AmpOps;

/// The 32-bit words of one tensor's row in the status of a kernel, laid out as [`Status`] says.
pub(crate) const WORDS: usize = 16;

/// The floats of one tensor's row where Burn's operations have found it: four counts of two floats, in units of
/// [`COUNT_BASE`] and of one, in the order of the words; largest magnitude; sum of squares relative to it.
pub(crate) const FIELDS: usize = 10;

/// Counts travel as two floats, so that each is exact in f32.
pub(crate) const COUNT_BASE: u64 = 1 << 20;

/// Tensors of more values have several rows where Burn's operations have found them: counts fit its i32.
pub(crate) const PART: u64 = 1 << 30;

/// In the upper half of the largest magnitude: says that the floats are f32. No f64 has it that is written here.
pub(crate) const NARROW: u32 = u32::MAX;

/// What was found in one tensor. Host values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TensorStatus {
    /// The number of values.
    pub elements: u64,
    /// Values of at least the magnitude that [`TensorList::count_from`](crate::TensorList::count_from) names, after scaling,
    /// infinities and NaN among them.
    pub above: u64,
    /// Values that were infinite or NaN before scaling.
    pub non_finite_before: u64,
    /// Values that are infinite or NaN after scaling.
    pub non_finite: u64,
    /// Values that are zero after scaling.
    pub zeros: u64,
    /// The largest magnitude of the finite values after scaling; 0 if there are none.
    pub max_abs: f64,
    /// The L2 norm of the finite values after scaling.
    pub norm: f64,
}

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

/// Words as kernels write them: the bits of u32 in the device's integers.
pub(crate) fn read_words(words: Tensor<1, Int>) -> Vec<u32> {
    let data = words.into_data();
    match data.as_slice::<i32>() {
        Ok(words) => words.iter().map(|word| *word as u32).collect(),
        Err(_) => data.iter::<i32>().map(|word| word as u32).collect(),
    }
}

/// The numbers of one tensor before they are packed into words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) above: u64,
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) zeros: u64,
    pub(crate) max_abs: f64,
    pub(crate) squares: Squares,
}

/// A sum of squares in three ranges, so that it neither overflows nor vanishes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Squares {
    pub(crate) small: f64,
    pub(crate) medium: f64,
    pub(crate) big: f64,
}

impl Squares {
    /// Magnitudes from here on belong to `big`, and are multiplied by `BIG_SCALE`, 2^-600, before they are squared.
    const BIG: f64 = 1.0e100;
    const BIG_SCALE: f64 = f64::from_bits((1023 - 600) << 52);
    /// Magnitudes below belong to `small`, and are multiplied by `SMALL_SCALE`, 2^600.
    const SMALL: f64 = 1.0e-100;
    const SMALL_SCALE: f64 = f64::from_bits((1023 + 600) << 52);

    /// Adds the square of a finite magnitude.
    pub(crate) fn add(&mut self, magnitude: f64) {
        if magnitude > Self::BIG {
            self.big += (magnitude * Self::BIG_SCALE).powi(2);
        } else if magnitude < Self::SMALL {
            self.small += (magnitude * Self::SMALL_SCALE).powi(2);
        } else {
            self.medium += magnitude * magnitude;
        }
    }

    pub(crate) fn norm(self) -> f64 {
        // The larger range decides; the smaller ones count only beside it.
        let big = self.big.sqrt() / Self::BIG_SCALE;
        let medium = self.medium.sqrt();
        let small = self.small.sqrt() / Self::SMALL_SCALE;
        big.hypot(medium).hypot(small)
    }
}

impl Row {
    pub(crate) fn words(&self) -> [u32; WORDS] {
        let halves = [
            self.above,
            self.before,
            self.after,
            self.zeros,
            self.max_abs.to_bits(),
            self.squares.small.to_bits(),
            self.squares.medium.to_bits(),
            self.squares.big.to_bits(),
        ];
        let mut words = [0; WORDS];
        for (pair, value) in words.chunks_exact_mut(2).zip(halves) {
            pair.copy_from_slice(&[value as u32, (value >> 32) as u32]);
        }
        words
    }
}

/// Whether a value is not finite, as 1 or 0, and the norm over all tensors.
pub(crate) fn verdict(words: &[u32]) -> [f32; 2] {
    let rows = words.chunks_exact(WORDS).map(decode);
    let (mut found_inf, mut norm) = (0.0, 0.0f64);
    for row in rows {
        found_inf = if row.non_finite > 0 { 1.0 } else { found_inf };
        norm = norm.hypot(row.norm);
    }
    [found_inf, norm as f32]
}

pub(crate) fn decode(words: &[u32]) -> TensorStatus {
    let value = |index: usize| u64::from(words[2 * index]) | u64::from(words[2 * index + 1]) << 32;
    // CubeCL kernels have no f64 and mark their f32 bits: see `kernel::finish`.
    let narrow = words[9] == NARROW;
    let float = |index: usize| match narrow {
        true => f64::from(f32::from_bits(words[2 * index])),
        false => f64::from_bits(value(index)),
    };
    let norm = match narrow {
        true => narrow_norm(float(5), float(6), float(7)),
        false => Squares {
            small: float(5),
            medium: float(6),
            big: float(7),
        }
        .norm(),
    };
    // What was not finite is not made so by any factor: a compiler that trusts in finite arithmetic can only
    // lose what the multiplication itself has made infinite.
    let non_finite = value(2).max(value(1));
    TensorStatus {
        elements: 0,
        above: value(0).max(non_finite),
        non_finite_before: value(1),
        non_finite,
        zeros: value(3),
        max_abs: float(4),
        norm,
    }
}

/// Kernels without f64 square magnitudes above 2^47 at this power of two of their size: no square exceeds 2^94, and no
/// sum of up to 2^32 of them f32.
pub(crate) const NARROW_BIG: i32 = -81;
/// And those below 2^-63 at this one: the smallest square is 2^-148, the last that f32 has.
pub(crate) const NARROW_SMALL: i32 = 75;

fn narrow_norm(small: f64, medium: f64, big: f64) -> f64 {
    let at = |sum: f64, power: i32| sum / 2f64.powi(2 * power);
    (at(small, NARROW_SMALL) + medium + at(big, NARROW_BIG)).sqrt()
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
