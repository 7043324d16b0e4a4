use super::*;
use half::bf16;
use macerator::{Arch, WithSimd};

/// Of each group its wide values, and of the values around them the halves.
#[derive(Clone)]
struct Convert<T, const N: usize>(Vec<[T; LANES]>, [u32; N]);

impl<T: Value<Real = f32>, const N: usize> WithSimd for Convert<T, N> {
    type Output = Vec<([f32; LANES], [[T; LANES]; N])>;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> Self::Output {
        let each = |group: &[T; LANES]| {
            let wide = T::widen::<S>(group);
            let near = |step| wide.map(|value| f32::from_bits(value.to_bits() + step));
            (wide, self.1.map(|step| T::narrow::<S>(near(step))))
        };
        self.0.iter().map(each).collect()
    }
}

/// Every half, and the f32 values around every half and between two: as `half` has them, on this CPU and on any.
fn conversions_are_right<T: Value<Real = f32>, const N: usize>(
    of_bits: fn(u16) -> T,
    to_f32: fn(T) -> f32,
    of_f32: fn(f32) -> T,
    steps: [u32; N],
) {
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let firsts = (0..=u16::MAX).step_by(LANES);
    let groups = firsts.map(|first| std::array::from_fn(|i| of_bits(first + i as u16)));
    let groups: Vec<[T; LANES]> = groups.collect();
    let convert = Convert(groups.clone(), steps);
    for arch in [Arch::detect(), Arch::Scalar] {
        // SAFETY: this CPU has what was found, and needs nothing for the other.
        let found = unsafe { arch.dispatch(convert.clone()) };
        for (group, (wide, near)) in groups.iter().zip(found) {
            for (i, value) in wide.into_iter().enumerate() {
                let expected = to_f32(group[i]);
                assert!(same(value, expected), "{:?}", group[i]);
                for (step, halves) in steps.into_iter().zip(near) {
                    let value = f32::from_bits(value.to_bits() + step);
                    let (half, expected) = (to_f32(halves[i]), to_f32(of_f32(value)));
                    assert!(same(half, expected), "{value:?}");
                }
            }
        }
    }
}

#[test]
fn conversions_are_those_of_any_cpu() {
    let steps = [0, 1, 0x0FFF, 0x1000, 0x1001];
    conversions_are_right(f16::from_bits, f16::to_f32, f16::from_f32, steps);
    let steps = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF];
    conversions_are_right(bf16::from_bits, bf16::to_f32, bf16::from_f32, steps);
}
