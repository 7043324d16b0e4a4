use burn::tensor::Tensor;
use std::ops::{Add, RangeInclusive};

use crate::status::decode_count;

/// Zeros, what is not finite, exponents below the range, the range, exponents above it.
pub(crate) const BINS: usize = 4 + ExponentHistogram::LENGTH;

/// Counts of values by binary exponent. Host values.
///
/// A value `v` has exponent `e` if `2^e <= |v| < 2^(e + 1)`. f16 is normal from exponent -14 to 15 and holds
/// subnormal values down to -24; what is of exponent `e` in a gradient has `e + log2(scale)` in the scaled one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExponentHistogram {
    pub(crate) bins: [u64; BINS],
}

impl ExponentHistogram {
    /// The smallest exponent with a count of its own: 2^-24, the smallest f16, at a loss scale of 65536.
    pub const MIN_EXPONENT: i32 = -40;
    /// The largest exponent with a count of its own: the first that f16 cannot hold.
    pub const MAX_EXPONENT: i32 = 16;
    /// The exponents with a count of their own.
    pub const EXPONENTS: RangeInclusive<i32> = Self::MIN_EXPONENT..=Self::MAX_EXPONENT;

    const LENGTH: usize = (Self::MAX_EXPONENT - Self::MIN_EXPONENT + 1) as usize;

    /// The bin of an exponent: below the range, in it or above it.
    #[cfg(feature = "flex")]
    #[inline(always)]
    pub(crate) fn bin(exponent: i32) -> u32 {
        let inside = exponent.clamp(Self::MIN_EXPONENT - 1, Self::MAX_EXPONENT + 1);
        (inside - Self::MIN_EXPONENT + 3) as u32
    }

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
        let count = |(own, count)| (own == exponent).then_some(count);
        self.iter().find_map(count)
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
///
/// A backend writes 61 counts as [`Status`](crate::Status) has them: zeros, what is not finite, exponents below the range of
/// [`ExponentHistogram`], each exponent of the range, and those above it.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// None if the list was empty.
    pub(crate) counts: Option<Tensor<1>>,
}

impl Histogram {
    /// Reads the counts of all tensors together.
    ///
    /// Waits for the device, for one small transfer: 488 bytes from kernels.
    ///
    /// # Panics
    ///
    /// In Burn, if the device fails: it is lost, or work that was queued before cannot be done.
    pub fn read(self) -> ExponentHistogram {
        let data = self.counts.map(Tensor::into_data);
        let fields: Vec<f64> = data.iter().flat_map(|data| data.iter()).collect();
        let mut total = ExponentHistogram::default();
        for (bin, fields) in fields.chunks_exact(2).enumerate() {
            total.bins[bin % BINS] += decode_count(fields);
        }
        total
    }
}
