//! Groups of values and the float dtypes, in loops that macerator compiles for the instructions of each kind of CPU.

use burn::tensor::Element;
use bytemuck::Pod;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use macerator::{Simd, Vector};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::{Add, AddAssign, Mul, RangeInclusive};

/// Values of a group.
pub(super) const LANES: usize = 16;

/// A short loop over it becomes SIMD; one over a slice that does several things does not.
pub(super) type Group<T> = [T; LANES];

/// A float dtype: f16, bf16, f32 or f64.
pub(super) trait Value: Element + Pod + Default + Into<f64> {
    /// The type that is computed in: f32, or f64 for f64.
    type Real: Real;
    /// A value without its sign, as an integer: in the order of magnitudes, then infinity, then NaN.
    type Magnitude: Copy + Ord + Default + From<bool> + Into<u64> + AddAssign;

    const INFINITY: Self::Magnitude;
    /// If the largest magnitude of a block is in this range, squares in `Real` do not overflow, 32 of them in one sum
    /// included, nor lose what would count beside the largest.
    const SAFE: RangeInclusive<Self::Magnitude>;

    fn magnitude(self) -> Self::Magnitude;

    fn of_magnitude(magnitude: Self::Magnitude) -> f64;

    fn widen<S: Simd>(group: &Group<Self>) -> Group<Self::Real>;

    fn narrow<S: Simd>(group: Group<Self::Real>) -> Group<Self>;
}

/// A type that is computed in: f32 or f64.
pub(super) trait Real:
    Value<Real = Self> + Add<Output = Self> + AddAssign + Mul<Output = Self>
{
    /// Adds the squares, each sum rounded once or twice.
    #[inline(always)]
    fn add_squares<S: Simd>(sums: &mut Group<Self>, values: Group<Self>) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value * value;
        }
    }

    #[inline(always)]
    fn multiply<S: Simd>(values: &mut Group<Self>, factor: Self) {
        for value in values {
            *value = *value * factor;
        }
    }
}

impl Real for f64 {}

impl Real for f32 {
    #[inline(always)]
    fn multiply<S: Simd>(values: &mut Group<f32>, factor: f32) {
        in_vectors::<S>(values, [factor; LANES], |value, factor| value * factor);
    }

    #[inline(always)]
    fn add_squares<S: Simd>(sums: &mut Group<f32>, values: Group<f32>) {
        in_vectors::<S>(sums, values, |sum, value| value.mul_add(value, sum));
    }
}

/// Changes a group by another, in vectors: of a loop over values the compiler makes half as wide instructions, in some places; or, where nothing is
/// measured, a loop over groups that gathers a value from each and takes six times as long. Over bytes, it keeps sums in memory.
#[inline(always)]
fn in_vectors<S: Simd>(
    to: &mut Group<f32>,
    from: Group<f32>,
    change: impl Fn(Vector<S, f32>, Vector<S, f32>) -> Vector<S, f32> + Copy,
) {
    let _ = in_so_many::<S, 1>(to, from, change)
        || in_so_many::<S, 2>(to, from, change)
        || in_so_many::<S, 4>(to, from, change)
        || in_so_many::<S, 8>(to, from, change);
}

/// Does so if a group has so many vectors.
#[inline(always)]
fn in_so_many<S: Simd, const N: usize>(
    to: &mut Group<f32>,
    from: Group<f32>,
    change: impl Fn(Vector<S, f32>, Vector<S, f32>) -> Vector<S, f32>,
) -> bool {
    let Ok(from) = bytemuck::try_cast::<_, [Vector<S, f32>; N]>(from) else {
        return false;
    };
    let mut all: [Vector<S, f32>; N] = bytemuck::cast(*to);
    for (to, from) in all.iter_mut().zip(from) {
        *to = change(*to, from);
    }
    *to = bytemuck::cast(all);
    true
}

macro_rules! value {
    ($type:ty, $real:ty, $bits:ty, $safe:expr, $widen:expr, $narrow:expr) => {
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
            fn widen<S: Simd>(group: &Group<$type>) -> Group<$real> {
                ($widen)(group)
            }

            #[inline(always)]
            fn narrow<S: Simd>(group: Group<$real>) -> Group<$type> {
                ($narrow)(group)
            }
        }
    };
}

/// 2^-60, of which the square is 2^29 times the last that f32 has, and 2^60.
const SAFE_F32: RangeInclusive<u32> = (127 - 60) << 23..=(127 + 60) << 23;
const SAFE_BF16: RangeInclusive<u16> =
    (*SAFE_F32.start() >> 16) as u16..=(*SAFE_F32.end() >> 16) as u16;
const SAFE_F64: RangeInclusive<u64> = 1e-100f64.to_bits()..=1e100f64.to_bits();

value!(f16, f32, u16, 1..=0x7BFF, widen_f16::<S>, narrow_f16::<S>);
value!(bf16, f32, u16, SAFE_BF16, widen_bf16, narrow_bf16);
// As wide as they need be.
value!(f32, f32, u32, SAFE_F32, |own: &_| *own, |own| own);
value!(f64, f64, u64, SAFE_F64, |own: &_| *own, |own| own);

/// Returns true if registers have so many bits. On x86 macerator chooses wide ones only where it has found F16C as well (256), or AVX-512 (512).
#[cfg(target_arch = "x86_64")]
const fn has_registers_of<S: Simd>(bits: usize) -> bool {
    size_of::<S::Register>() * 8 == bits
}

/// Converts by F16C where that is: macerator does not convert, and `half` does it by a call for eight values, which
/// costs more than all else of a pass.
#[inline(always)]
fn widen_f16<S: Simd>(halves: &Group<f16>) -> Group<f32> {
    #[cfg(target_arch = "x86_64")]
    if has_registers_of::<S>(512) {
        let all = bytemuck::cast(*halves);
        // SAFETY: the CPU has AVX-512.
        return bytemuck::cast(unsafe { _mm512_cvtph_ps(all) });
    }
    #[cfg(target_arch = "x86_64")]
    if has_registers_of::<S>(256) {
        // Each by a load of its own: what else is done with the group is not cut in two.
        let parts: &[[u16; 8]; LANES / 8] = bytemuck::cast_ref(halves);
        // SAFETY: the CPU has F16C.
        let wide = |part| unsafe { _mm256_cvtph_ps(bytemuck::cast(part)) };
        return bytemuck::cast(parts.map(wide));
    }
    let mut wide = [0.0; LANES];
    halves.convert_to_f32_slice(&mut wide);
    wide
}

#[inline(always)]
fn narrow_f16<S: Simd>(values: Group<f32>) -> Group<f16> {
    #[cfg(target_arch = "x86_64")]
    if has_registers_of::<S>(512) {
        let all = bytemuck::cast(values);
        // SAFETY: the CPU has AVX-512.
        return bytemuck::cast(unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(all) });
    }
    #[cfg(target_arch = "x86_64")]
    if has_registers_of::<S>(256) {
        let parts: [__m256; LANES / 8] = bytemuck::cast(values);
        // SAFETY: the CPU has F16C.
        let half = |part| unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(part) };
        return bytemuck::cast(parts.map(half));
    }
    let mut halves = [f16::ZERO; LANES];
    halves.convert_from_f32_slice(&values);
    halves
}

#[inline(always)]
fn widen_bf16(halves: &Group<bf16>) -> Group<f32> {
    halves.map(|half| f32::from_bits(u32::from(half.to_bits()) << 16))
}

/// Rounds to the nearest, and of two as near to the even one, without a branch: a loop of `half`'s is not SIMD. One loop for each width.
#[inline(always)]
fn narrow_bf16(values: Group<f32>) -> Group<bf16> {
    let mut rounded = [0; LANES];
    for (rounded, value) in rounded.iter_mut().zip(values) {
        let bits = value.to_bits();
        let nearest = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
        // Rounding must not make a number of a NaN.
        let quiet = bits | 0x40_0000;
        let is_nan = bits << 1 > f32::INFINITY.to_bits() << 1;
        *rounded = if is_nan { quiet } else { nearest } >> 16;
    }
    let mut halves = [bf16::ZERO; LANES];
    for (half, rounded) in halves.iter_mut().zip(rounded) {
        *half = bf16::from_bits(rounded as u16);
    }
    halves
}

/// Writes a group. If it will not be read soon, past the caches where an instruction does that: a line that is written whole
/// need not be read first, a third of all traffic. [`streamed`] follows before others may read.
#[inline(always)]
pub(super) fn write<T: Pod, const STREAM: bool>(target: &mut Group<T>, group: Group<T>) {
    #[cfg(target_arch = "x86_64")]
    if STREAM && target.as_ptr().cast::<__m128i>().is_aligned() {
        let place = target.as_mut_ptr().cast::<__m128i>();
        let parts = bytemuck::bytes_of(&group).chunks_exact(size_of::<__m128i>());
        for (i, part) in parts.enumerate() {
            // SAFETY: the target is as large as the parts, and aligned; every x86-64 has SSE2.
            unsafe { _mm_stream_si128(place.add(i), bytemuck::pod_read_unaligned(part)) }
        }
        return;
    }
    *target = group;
}

pub(super) fn streamed() {
    // SAFETY: every x86-64 has SSE.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        _mm_sfence()
    }
}

#[cfg(test)]
#[path = "../../../tests/units/cpu.rs"]
mod tests;
