use burn::{
    backend::DispatchTensor,
    tensor::{Int, Tensor},
};
use std::ops::{Add, RangeInclusive};

use crate::words::read_words;

/// Zeros, what is not finite, exponents below the range, the range, exponents above it.
pub(crate) const BINS: usize = 4 + ExponentHistogram::LENGTH;

/// Counts of values by binary exponent. Host values.
///
/// A value `v` has exponent `e` if `2^e <= |v| < 2^(e + 1)`. f16 is normal from exponent -14 to 15 and holds
/// subnormal values down to -24; what is of exponent `e` in a gradient has `e + log2(scale)` in the scaled one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExponentHistogram {
    bins: [u64; BINS],
}

impl ExponentHistogram {
    /// The smallest exponent with a count of its own: 2^-24, the smallest f16, at a loss scale of 65536.
    pub const MIN_EXPONENT: i32 = -40;
    /// The largest exponent with a count of its own: the first that f16 cannot hold.
    pub const MAX_EXPONENT: i32 = 16;
    /// The exponents with a count of their own.
    pub const EXPONENTS: RangeInclusive<i32> = Self::MIN_EXPONENT..=Self::MAX_EXPONENT;

    const LENGTH: usize = (Self::MAX_EXPONENT - Self::MIN_EXPONENT + 1) as usize;

    /// Zeros, of either sign.
    pub fn zeros(&self) -> u64 {
        self.bins[0]
    }

    /// Infinities and NaN.
    pub fn non_finite(&self) -> u64 {
        self.bins[1]
    }

    /// Values that are not zero and have an exponent below [`MIN_EXPONENT`](Self::MIN_EXPONENT).
    pub fn below(&self) -> u64 {
        self.bins[2]
    }

    /// Finite values that have an exponent above [`MAX_EXPONENT`](Self::MAX_EXPONENT).
    pub fn above(&self) -> u64 {
        self.bins[BINS - 1]
    }

    /// Values of an exponent; none if it has no count of its own.
    pub fn count(&self, exponent: i32) -> Option<u64> {
        let index = exponent.checked_sub(Self::MIN_EXPONENT)?;
        let bins = &self.bins[3..BINS - 1];
        bins.get(usize::try_from(index).ok()?).copied()
    }

    /// Exponents and their counts, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (i32, u64)> {
        Self::EXPONENTS.zip(self.bins[3..BINS - 1].iter().copied())
    }

    /// All values.
    pub fn elements(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// Values that are not zero and have an exponent below `exponent`, which is limited to the range.
    ///
    /// `below_exponent(-24)` of f32 gradients is what f16 turns into zero, but for rounding.
    pub fn below_exponent(&self, exponent: i32) -> u64 {
        let smaller = self.iter().take_while(|(e, _)| *e < exponent);
        self.below() + smaller.map(|(_, count)| count).sum::<u64>()
    }

    /// From [`BINS`] counts of two words each.
    fn from_words(words: &[u32]) -> Self {
        assert_eq!(words.len(), 2 * BINS, "a count for each bin");
        let mut bins = [0; BINS];
        for (bin, pair) in bins.iter_mut().zip(words.chunks_exact(2)) {
            *bin = u64::from(pair[0]) | u64::from(pair[1]) << 32;
        }
        Self { bins }
    }
}

impl Default for ExponentHistogram {
    fn default() -> Self {
        Self { bins: [0; BINS] }
    }
}

impl Add for ExponentHistogram {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        for (bin, more) in self.bins.iter_mut().zip(other.bins) {
            *bin += more;
        }
        self
    }
}

/// Counts by exponent, still on the device.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Counted);

#[derive(Clone, Debug, Default)]
enum Counted {
    /// The list was empty.
    #[default]
    Nothing,
    /// [`BINS`] counts of two words, from a kernel.
    Words(Tensor<1, Int>),
    /// [`BINS`] counts for each part of each tensor, from composed operations.
    Rows(Tensor<1, Int>),
}

impl Histogram {
    pub(crate) fn of_words(words: DispatchTensor) -> Self {
        Self(Counted::Words(Tensor::from_dispatch(words)))
    }

    pub(crate) fn of_rows(rows: Tensor<1, Int>) -> Self {
        Self(Counted::Rows(rows))
    }

    /// Reads the counts of all tensors together.
    ///
    /// Waits for the device, for one small transfer: 488 bytes from kernels.
    ///
    /// # Panics
    ///
    /// In Burn, if the device fails: it is lost, or work that was queued before cannot be done.
    pub fn read(self) -> ExponentHistogram {
        let mut total = ExponentHistogram::default();
        match self.0 {
            Counted::Nothing => (),
            Counted::Words(words) => total = ExponentHistogram::from_words(&read_words(words)),
            Counted::Rows(rows) => {
                for (index, count) in rows.into_data().iter::<i64>().enumerate() {
                    total.bins[index % BINS] += count as u64;
                }
            }
        }
        total
    }
}

/// Where a value of an exponent is counted.
#[inline(always)]
pub(crate) fn bin(zero: bool, finite: bool, exponent: i32) -> usize {
    const MIN: i32 = ExponentHistogram::MIN_EXPONENT;
    // Below the range, the range, above the range.
    let inside = exponent.clamp(MIN - 1, ExponentHistogram::MAX_EXPONENT + 1) - MIN + 3;
    match (zero, finite) {
        (true, _) => 0,
        (_, false) => 1,
        _ => inside as usize,
    }
}
