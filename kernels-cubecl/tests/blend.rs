//! `blend`: what it computes, and where.
//!
//! On the device that the features choose, or `BURN_DEVICE` where there are several.

use burn::tensor::{DType, Device, Element, FloatDType, Tensor, TensorData};
use burn_amp_kernels::{blend, blend_unless};

/// Numbers that f16 and bf16 hold exactly, and that are no pattern of the block size.
fn wave(count: usize, seed: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 37 + seed * 11) % 127) as f32 * 0.25 - 15.0;
    (0..count).map(value).collect()
}

fn tensor(values: Vec<f32>, dtype: DType) -> Tensor<1> {
    let data = TensorData::new(values.clone(), [values.len()]);
    Tensor::from_data(data, (&Device::default(), dtype))
}

fn dtypes() -> Vec<DType> {
    let mut dtypes = vec![DType::F16, DType::BF16, DType::F32, DType::F64];
    dtypes.retain(|dtype| Device::default().supports_dtype(*dtype));
    dtypes
}

fn values<E: Element>(tensor: Tensor<1>) -> Vec<E> {
    tensor.into_data().try_to_vec().unwrap()
}

#[test]
fn the_weighted_sum_of_every_dtype_and_size() {
    for count in [1, 2, 15, 16, 1023, 1024, 1025, 65_536, 65_537, 200_001] {
        for dtype in dtypes() {
            let (target, source) = (wave(count, 1), wave(count, 2));
            let both = || target.iter().zip(&source);
            let sum = |wide, keep, add| {
                let target = tensor(target.clone(), wide);
                blend(target, tensor(source.clone(), dtype), keep, add)
            };
            let expected: Vec<f32> = both().map(|(t, s)| 0.75 * t + 0.5 * s).collect();
            assert_eq!(values::<f32>(sum(DType::F32, 0.75, 0.5)), expected);

            if !dtypes().contains(&DType::F64) {
                continue;
            }
            let found = values::<f64>(sum(DType::F64, 0.1, 0.9));
            let expected = both().map(|(t, s)| 0.1 * f64::from(*t) + 0.9 * f64::from(*s));
            // A fused multiply-add rounds once. Weights in f32 would be off by 1e-9.
            for (value, expected) in found.into_iter().zip(expected) {
                assert!((value - expected).abs() < 1e-13, "{value} for {expected}");
            }
        }
    }
}

#[test]
fn a_running_sum_rounds_once_for_each_term() {
    let [target, source] = [[1.0, 1e8], [1e-8, 3.0]].map(|v| tensor(v.to_vec(), DType::F32));
    let result = blend(target, source, 1.0, 1.0);
    assert_eq!(values::<f32>(result), [1.0f32 + 1e-8, 1e8 + 3.0]);
}

#[test]
fn infinity_and_nan_stay() {
    let target = tensor(vec![1.0, 2.0, f32::INFINITY], DType::F32);
    let source = tensor(vec![f32::INFINITY, f32::NAN, f32::NEG_INFINITY], DType::F16);
    let sum = values::<f32>(blend(target, source, 1.0, 1.0));
    assert_eq!(sum[0], f32::INFINITY);
    assert!(sum[1].is_nan() && sum[2].is_nan());
}

#[test]
fn a_shared_target_and_the_source_stay_as_they_are() {
    let [target, source] = [1, 2].map(|seed| tensor(wave(99, seed), DType::F32));
    let sum = values::<f32>(blend(target.clone(), source.clone(), 2.0, 1.0));
    assert_ne!(sum, wave(99, 1));
    assert_eq!(values::<f32>(target), wave(99, 1));
    assert_eq!(values::<f32>(source), wave(99, 2));
}

#[test]
fn views_of_other_layouts_are_read_in_their_order() {
    let device = Device::default();
    let base = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
    let turned = || base.clone().transpose();
    let [first, last] = [0, 1].map(|row| base.clone().slice([row..row + 1, 0..3]));
    for (target, source, add, expected) in [
        (
            turned().zeros_like(),
            turned(),
            1.0,
            [1.0, 4.0, 2.0, 5.0, 3.0, 6.0].to_vec(),
        ),
        (
            turned(),
            turned(),
            1.0,
            [2.0, 8.0, 4.0, 10.0, 6.0, 12.0].to_vec(),
        ),
        (last, first, -1.0, vec![3.0f32; 3]),
    ] {
        let expected = TensorData::new(expected, target.dims());
        assert_eq!(blend(target, source, 1.0, add).into_data(), expected);
    }
}

#[test]
fn empty_tensors_and_half_targets_are_composed() {
    let device = Device::default();
    let empty = Tensor::<1>::zeros([0], &device);
    assert_eq!(blend(empty.clone(), empty, 0.5, 0.5).dims(), [0]);
    let half = tensor(vec![1.0, 2.0], DType::F16);
    let sum = blend(half.clone(), half, 0.5, 1.0);
    assert_eq!(sum.dtype(), DType::F16);
    assert_eq!(values::<f32>(sum.cast(FloatDType::F32)), [1.5, 3.0]);
}

#[test]
#[should_panic(expected = "one shape")]
fn other_shapes_are_refused() {
    let [three, one] = [3, 1].map(|count| tensor(wave(count, 1), DType::F32));
    blend(three, one, 1.0, 1.0);
}

/// What stays is the target, bit for bit, whoever holds it. Products by these weights are exact: compilers may contract one of them and the sum,
/// and on some CPUs LLVM takes another one in each of the two kernels.
#[test]
fn unless_the_device_says_no() {
    let dtypes = dtypes().into_iter();
    for dtype in dtypes.filter(|dtype| *dtype != DType::BF16) {
        let wide = match dtype {
            DType::F64 => dtype,
            _ => DType::F32,
        };
        for count in [1, 7, 1024, 1025] {
            for (found, is_held) in [(0.0, false), (0.0, true), (1.0, false), (1.0, true)] {
                let target = || {
                    let mut values = wave(count, 1);
                    values[0] = -0.0;
                    tensor(values, wide)
                };
                let source = tensor(wave(count, 2), dtype);
                let expected = match found > 0.0 {
                    true => target(),
                    false => blend(target(), source.clone(), 0.75, 0.125),
                };
                let given = target();
                let held = is_held.then(|| given.clone());
                let found_inf = tensor(vec![found], DType::F32);
                let result = blend_unless(given, source, 0.75, 0.125, found_inf);
                let bits = |tensor: Tensor<1>| tensor.into_data().as_bytes().to_vec();
                let at = format!("{dtype:?} {count} {found} {is_held}");
                assert_eq!(bits(result), bits(expected), "{at}");
                if let Some(held) = held {
                    assert_eq!(bits(held), bits(target()), "{at}");
                }
            }
        }
    }
}
