//! Loops over groups of values, compiled for the instructions that the CPU has, and the float dtypes as they see them.

use burn::tensor::Element;
use bytemuck::Pod;
use half::{bf16, f16};
use std::ops::{Add, AddAssign, Mul, RangeInclusive};

/// Values of a group. A short loop over an array of this length becomes SIMD; one over a slice that does several things
/// does not.
pub(super) const LANES: usize = 16;

/// What not every CPU has, and the compiler does not find by itself: as any CPU does it, and by instructions that one has.
pub(super) trait Cpu: Copy {
    #[inline(always)]
    fn widen_f16(self, halves: &[f16; LANES]) -> [f32; LANES] {
        // The exponent's bias is 15 in f16 and 127 in f32.
        const BIAS: u32 = (127 - 15) << 23;
        const ONE: u32 = 1 << 23;
        halves.map(|half| {
            let magnitude = u32::from(half.to_bits() & 0x7FFF) << 13;
            let bits = if magnitude < ONE {
                // Subnormal: as if there were a leading one, which is then subtracted.
                let one = f32::from_bits(ONE + BIAS);
                (f32::from_bits(magnitude + ONE + BIAS) - one).to_bits()
            } else if magnitude < 31 * ONE {
                magnitude + BIAS
            } else {
                magnitude + 2 * BIAS
            };
            f32::from_bits(bits | u32::from(half.to_bits() & 0x8000) << 16)
        })
    }

    #[inline(always)]
    fn narrow_f16(self, values: [f32; LANES]) -> [f16; LANES] {
        values.map(f16::from_f32)
    }

    #[inline(always)]
    fn widen_bf16(self, halves: &[bf16; LANES]) -> [f32; LANES] {
        halves.map(|half| f32::from_bits(u32::from(half.to_bits()) << 16))
    }

    #[inline(always)]
    fn narrow_bf16(self, values: [f32; LANES]) -> [bf16; LANES] {
        values.map(bf16::from_f32)
    }

    /// Adds the squares, each sum rounded once or twice.
    #[inline(always)]
    fn add_squares<R: Real>(self, sums: &mut [R; LANES], values: [R; LANES]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value * value;
        }
    }

    /// Writes a group that will not be read soon, past the caches if that is possible: a line that is written whole need not
    /// be read first. [`streamed`](Self::streamed) follows before others may read.
    fn stream<T: Pod>(self, target: &mut [T; LANES], group: [T; LANES]) {
        *target = group;
    }

    fn streamed(self) {}
}

/// What is compiled for each kind of CPU: `run` and all that it calls is `#[inline(always)]`.
pub(super) trait Work {
    type Output;

    fn run<C: Cpu>(self, cpu: C) -> Self::Output;
}

/// Does the work with what this CPU has.
pub(super) fn run<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
    {
        // SAFETY: the CPU has these instructions.
        return unsafe { x86::run(work) };
    }
    work.run(Portable)
}

/// Any CPU.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Cpu for Portable {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use bytemuck::Pod;
    use half::{bf16, f16};

    use super::{Cpu, LANES, Portable, Real, Work};

    /// Proof that the CPU has AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn run<W: Work>(work: W) -> W::Output {
        work.run(Avx2(()))
    }

    /// Halves of a group, each by a load of its own: what else is done with the group is not cut in two.
    #[inline(always)]
    fn loaded<T: Pod>(halves: &[T; LANES]) -> [__m128i; LANES / 8] {
        let parts: &[[u16; 8]; LANES / 8] = bytemuck::cast_ref(halves);
        parts.map(bytemuck::cast)
    }

    impl Cpu for Avx2 {
        #[inline(always)]
        fn widen_f16(self, halves: &[f16; LANES]) -> [f32; LANES] {
            // SAFETY: the CPU has F16C, or there were no `self`.
            bytemuck::cast(loaded(halves).map(|half| unsafe { _mm256_cvtph_ps(half) }))
        }

        #[inline(always)]
        fn narrow_f16(self, values: [f32; LANES]) -> [f16; LANES] {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
            let values: [__m256; LANES / 8] = bytemuck::cast(values);
            // SAFETY: the CPU has F16C, or there were no `self`.
            bytemuck::cast(values.map(|value| unsafe { _mm256_cvtps_ph::<NEAREST>(value) }))
        }

        #[inline(always)]
        fn widen_bf16(self, halves: &[bf16; LANES]) -> [f32; LANES] {
            // SAFETY: the CPU has AVX2, or there were no `self`.
            let wide = |half| unsafe { _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)) };
            bytemuck::cast(loaded(halves).map(wide))
        }

        /// To the nearest, and of two as near to the even one. Rounding must not make a number of a NaN.
        #[inline(always)]
        fn narrow_bf16(self, values: [f32; LANES]) -> [bf16; LANES] {
            let [low, high]: [__m256; LANES / 8] = bytemuck::cast(values);
            // SAFETY: the CPU has AVX2, or there were no `self`.
            let rounded = |value: __m256| unsafe {
                let bits = _mm256_castps_si256(value);
                let upper = _mm256_srli_epi32::<16>(bits);
                let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
                let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
                let nearest = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
                let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
                _mm256_blendv_epi8(nearest, quiet, nan)
            };
            // SAFETY: as above. Packs by halves of a register.
            bytemuck::cast(unsafe {
                let packed = _mm256_packus_epi32(rounded(low), rounded(high));
                _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
            })
        }

        /// By name: of `mul_add` the compiler makes half as wide instructions, in some loops.
        #[inline(always)]
        fn add_squares<R: Real>(self, sums: &mut [R; LANES], values: [R; LANES]) {
            let Ok(values) = bytemuck::try_cast::<_, [__m256; LANES / 8]>(values) else {
                return Portable.add_squares(sums, values);
            };
            let mut all: [__m256; LANES / 8] = bytemuck::cast(*sums);
            for (sum, value) in all.iter_mut().zip(values) {
                // SAFETY: the CPU has FMA, or there were no `self`.
                *sum = unsafe { _mm256_fmadd_ps(value, value, *sum) };
            }
            *sums = bytemuck::cast(all);
        }

        #[inline(always)]
        fn stream<T: Pod>(self, target: &mut [T; LANES], group: [T; LANES]) {
            // As much as allocators align to.
            match bytemuck::try_cast::<_, [__m128i; 4]>(group) {
                Ok(parts) if target.as_ptr().cast::<__m128i>().is_aligned() => {
                    let place = target.as_mut_ptr().cast::<__m128i>();
                    for (i, part) in parts.into_iter().enumerate() {
                        // SAFETY: the target is as large as the parts, and aligned; the CPU has SSE2.
                        unsafe { _mm_stream_si128(place.add(i), part) }
                    }
                }
                _ => *target = group,
            }
        }

        #[inline(always)]
        fn streamed(self) {
            // SAFETY: the CPU has SSE.
            unsafe { _mm_sfence() }
        }
    }
}

/// f16, bf16, f32 or f64.
pub(super) trait Value: Element + Pod + Default + Into<f64> {
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
    Value<Real = Self> + Add<Output = Self> + AddAssign + Mul<Output = Self>
{
}

impl Real for f32 {}

impl Real for f64 {}

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
            fn widen<C: Cpu>(cpu: C, group: &[$type; LANES]) -> [$real; LANES] {
                ($widen)(cpu, group)
            }

            #[inline(always)]
            fn narrow<C: Cpu>(cpu: C, group: [$real; LANES]) -> [$type; LANES] {
                ($narrow)(cpu, group)
            }
        }
    };
}

/// 2^-60, of which the square is 2^29 times the last that f32 has, and 2^60.
const SAFE_F32: RangeInclusive<u32> = (127 - 60) << 23..=(127 + 60) << 23;
const SAFE_BF16: RangeInclusive<u16> =
    (*SAFE_F32.start() >> 16) as u16..=(*SAFE_F32.end() >> 16) as u16;
const SAFE_F64: RangeInclusive<u64> = 1e-100f64.to_bits()..=1e100f64.to_bits();

value!(f16, f32, u16, 1..=0x7BFF, Cpu::widen_f16, Cpu::narrow_f16);
value!(bf16, f32, u16, SAFE_BF16, Cpu::widen_bf16, Cpu::narrow_bf16);
// As wide as they need be.
value!(f32, f32, u32, SAFE_F32, |_, own: &_| *own, |_, own| own);
value!(f64, f64, u64, SAFE_F64, |_, own: &_| *own, |_, own| own);

#[cfg(test)]
#[path = "../../../tests/units/cpu.rs"]
mod tests;
