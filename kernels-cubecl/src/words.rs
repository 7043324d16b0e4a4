//! What a kernel writes of one tensor: the row of words that `Status` documents, and what it says.

use burn::tensor::{Int, Tensor};

/// The 32-bit words of one tensor's row in the status of a kernel, laid out as [`Status`](crate::Status) says.
pub(crate) const WORDS: usize = 16;

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
