//! `blend`: what it computes, and where.

use super::*;

/// Numbers that f16 and bf16 hold exactly, and that are no pattern of the block size.
fn wave(count: usize, seed: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 37 + seed * 11) % 127) as f32 * 0.25 - 15.0;
    (0..count).map(value).collect()
}

fn tensor(values: &[f32], dtype: DType) -> Tensor<2> {
    let data = TensorData::new(values.to_vec(), [1, values.len()]);
    Tensor::from_data(data, (&device(), dtype))
}

/// The sum is rounded once, and tensors that are held stay; where `found_inf` is above 0, the sum is the target, bit for bit. A fused multiply-add
/// of f64 rounds otherwise than two operations; weights in f32 would be off by 1e-9.
fn check(target: &Tensor<2>, source: &Tensor<2>, [keep, add]: [f64; 2], found_inf: Option<f32>) {
    let before = [target, source].map(values);
    let dtype = target.dtype();
    let stays = found_inf.is_some_and(|found| found > 0.0);
    let error = if dtype == DType::F64 { 1e-13 } else { 0.0 };
    // One that is held, and one that may be overwritten.
    for target in [target.clone(), copied(target.clone())] {
        let found_inf = found_inf.map(|found| floats(vec![found], [1]));
        let sum = blend_unless(target, source.clone(), keep, add, found_inf);
        assert_eq!((sum.dtype(), sum.shape()), (dtype, source.shape()));
        for (at, found) in values(&sum).into_iter().enumerate() {
            let [target, source] = [before[0][at], before[1][at]];
            let sum = rounded(dtype, keep * target + add * source);
            let expected = if stays { target } else { sum };
            let fits = same(found, expected) || !stays && (found - expected).abs() <= error;
            assert!(fits, "{keep} {target} + {add} {source}: {found}");
        }
    }
    let after = [target, source].map(values);
    assert_same(&after.concat(), &before.concat(), "what is held");
}

#[test]
fn the_weighted_sum_of_every_dtype_and_size() {
    // Those of f32 are exact.
    let weights = [(DType::F32, [0.75, 0.5]), (DType::F64, [0.1, 0.9])];
    let has = |dtype| dtypes().contains(&dtype);
    for (wide, weights) in weights.into_iter().filter(|weights| has(weights.0)) {
        for count in [0, 1, 2, 15, 16, 1023, 1024, 1025, 65_536, 65_537, 200_001] {
            let target = tensor(&wave(count, 1), wide);
            for dtype in dtypes() {
                let found_inf = [None, Some(0.0), Some(1.0)][count % 3];
                check(&target, &tensor(&wave(count, 2), dtype), weights, found_inf);
            }
        }
    }
}

/// Sums that f32 rounds, what is not finite, half targets, and views in their order.
#[test]
fn other_values_and_layouts() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let wide = |values: &[f32]| tensor(values, DType::F32);
    // The narrowest that there is.
    let half = |values: &[f32]| tensor(values, dtypes()[0]);
    let plane = floats(wave(6, 3), [2, 3]);
    let turned = || plane.clone().transpose();
    let [first, last] = [0, 1].map(|row| plane.clone().slice([row..row + 1, 0..3]));
    for (target, source, weights) in [
        (wide(&[1.0, 1e8]), wide(&[1e-8, 3.0]), [1.0, 1.0]),
        (wide(&[1.0, -0.0, inf]), half(&[inf, nan, -inf]), [1.0; 2]),
        (half(&[1.0, 2.0]), half(&[1.0, 2.0]), [0.5, 1.0]),
        (turned().zeros_like(), turned(), [1.0, 1.0]),
        (turned(), turned(), [2.0, 1.0]),
        (last, first, [1.0, -1.0]),
    ] {
        for found_inf in [None, Some(1.0)] {
            check(&target, &source, weights, found_inf);
        }
    }
    let [three, one] = [3, 1].map(|count| wide(&wave(count, 1)));
    panics("one shape", || blend(three, one, 1.0, 1.0));
}
