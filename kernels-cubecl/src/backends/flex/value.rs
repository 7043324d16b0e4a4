//! The float dtypes, as the loops see them.

use burn::tensor::{Element, bf16, f16};
use bytemuck::Pod;
use std::ops::{Add, AddAssign, Mul, RangeInclusive};

use super::cpu::{Cpu, LANES};

/// f16, bf16, f32 or f64.
pub(super) trait Value: Element + Pod + Into<f64> {
    /// What is computed in: f32, or f64 for f64.
    type Real: Real;
    /// A value without its sign, as an integer: in the order of magnitudes, then infinity, then NaN.
    type Magnitude: Copy + Ord + Default + From<bool> + Into<u64> + AddAssign;

    const INFINITY: Self::Magnitude;
    /// If the largest magnitude of a block is in this range, squares in `Real` do not overflow, 32 of them in one sum
    /// included, nor lose what would count beside the largest.
    const SAFE: RangeInclusive<Self::Magnitude>;

    fn magnitude(self) -> Self::Magnitude;

    fn of_magnitude(magnitude: Self::Magnitude) -> f64;

    fn widen<C: Cpu>(cpu: C, group: &[Self; LANES]) -> [Self::Real; LANES];

    fn narrow<C: Cpu>(cpu: C, group: [Self::Real; LANES]) -> [Self; LANES];
}

/// f32 or f64.
pub(super) trait Real:
    Value<Real = Self> + Default + Add<Output = Self> + AddAssign + Mul<Output = Self>
{
    /// Adds the square of a value.
    #[inline(always)]
    fn add_square<C: Cpu>(&mut self, value: Self) {
        *self += value * value;
    }
}

impl Real for f32 {
    #[inline(always)]
    fn add_square<C: Cpu>(&mut self, value: f32) {
        *self = if C::FUSES {
            value.mul_add(value, *self)
        } else {
            *self + value * value
        };
    }
}

impl Real for f64 {}

macro_rules! value {
    ($type:ty, $real:ty, $bits:ty, $safe:expr, $widen:ident, $narrow:ident) => {
        impl Value for $type {
            type Real = $real;
            type Magnitude = $bits;
            const INFINITY: $bits = <$type>::INFINITY.to_bits();
            const SAFE: RangeInclusive<$bits> = $safe;

            #[inline(always)]
            fn magnitude(self) -> $bits {
                self.to_bits() & (<$bits>::MAX >> 1)
            }

            fn of_magnitude(magnitude: $bits) -> f64 {
                <$type>::from_bits(magnitude).into()
            }

            #[inline(always)]
            fn widen<C: Cpu>(cpu: C, group: &[$type; LANES]) -> [$real; LANES] {
                cpu.$widen(group)
            }

            #[inline(always)]
            fn narrow<C: Cpu>(cpu: C, group: [$real; LANES]) -> [$type; LANES] {
                cpu.$narrow(group)
            }
        }
    };
}

/// 2^-60, of which the square is 2^29 times the last that f32 has, and 2^60.
const SAFE_F32: RangeInclusive<u32> = (127 - 60) << 23..=(127 + 60) << 23;
const SAFE_BF16: RangeInclusive<u16> =
    (*SAFE_F32.start() >> 16) as u16..=(*SAFE_F32.end() >> 16) as u16;
const SAFE_F64: RangeInclusive<u64> = 1e-100f64.to_bits()..=1e100f64.to_bits();

value!(f16, f32, u16, 1..=0x7BFF, widen_f16, narrow_f16);
value!(bf16, f32, u16, SAFE_BF16, widen_bf16, narrow_bf16);
value!(f32, f32, u32, SAFE_F32, same, whole);
value!(f64, f64, u64, SAFE_F64, same, whole);
