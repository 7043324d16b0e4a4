use super::*;
use macerator::{Arch, WithSimd};

const STEPS: [u32; 5] = [0, 1, 0x0FFF, 0x1000, 0x1001];

fn above(value: f32, step: u32) -> f32 {
    f32::from_bits(value.to_bits() + step)
}

/// What halves are in f32, and the values around that as halves.
struct Convert<'a>(&'a [f16]);

impl WithSimd for Convert<'_> {
    type Output = Vec<(f32, [f16; STEPS.len()])>;

    #[inline(always)]
    fn with_simd<S: Simd>(self) -> Self::Output {
        let each = |group: &Group<f16>| {
            let wide = f16::widen::<S>(group);
            let near = STEPS.map(|step| f16::narrow::<S>(wide.map(|value| above(value, step))));
            std::array::from_fn::<_, LANES, _>(|i| (wide[i], near.map(|near| near[i])))
        };
        self.0.as_chunks().0.iter().flat_map(each).collect()
    }
}

/// Every half, and the f32 values around every half and between two: as `half` has them, on this CPU and on any. `tests/backend` and `tests/cast` do so for
/// bf16, whose conversions are the same on all.
#[test]
fn conversions_are_those_of_any_cpu() {
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for arch in [Arch::detect(), Arch::Scalar] {
        // SAFETY: this CPU has what was found, and needs nothing for the other.
        let found = unsafe { arch.dispatch(Convert(&halves)) };
        assert_eq!(found.len(), halves.len());
        for (half, (wide, near)) in halves.iter().zip(found) {
            assert!(same(wide, half.to_f32()), "{half:?}");
            for (step, found) in STEPS.into_iter().zip(near) {
                let expected = f16::from_f32(above(wide, step)).to_f32();
                assert!(same(found.to_f32(), expected), "{half:?}, {step}");
            }
        }
    }
}
