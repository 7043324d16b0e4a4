//! `blend`: what it computes, and where.

use burn::tensor::{DType, Tensor, TensorData};
use burn_amp_kernels::{blend, blend_unless};

use crate::device::{device, dtypes};
use crate::number::{read, same, widen};
use crate::{create::floats, host::product_dtype};

/// Numbers that f16 and bf16 hold exactly, and that are no pattern of the block size.
fn wave(count: usize, seed: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 37 + seed * 11) % 127) as f32 * 0.25 - 15.0;
    (0..count).map(value).collect()
}

fn tensor(values: Vec<f32>, dtype: DType) -> Tensor<2> {
    let data = TensorData::new(values.clone(), [1, values.len()]);
    Tensor::from_data(data, (&device(), dtype))
}

fn values(tensor: Tensor<2>) -> Vec<f64> {
    widen(&read(tensor))
}

#[test]
fn the_weighted_sum_of_every_dtype_and_size() {
    // Exact in f32. A fused multiply-add of f64 rounds once; weights in f32 would be off by 1e-9.
    let weights = [(DType::F32, 0.75, 0.5, 0.0), (DType::F64, 0.1, 0.9, 1e-13)];
    let has = |dtype| dtypes().contains(&dtype);
    for (wide, keep, add, error) in weights.into_iter().filter(|weights| has(weights.0)) {
        for count in [0, 1, 2, 15, 16, 1023, 1024, 1025, 65_536, 65_537, 200_001] {
            let (target, source) = (wave(count, 1), wave(count, 2));
            for dtype in dtypes() {
                let targets = tensor(target.clone(), wide);
                let found = values(blend(targets, tensor(source.clone(), dtype), keep, add));
                assert_eq!(found.len(), count);
                for (found, (t, s)) in found.into_iter().zip(target.iter().zip(&source)) {
                    let expected = keep * f64::from(*t) + add * f64::from(*s);
                    let near = (found - expected).abs() <= error;
                    assert!(near, "{dtype:?}, {wide:?}: {found} for {expected}");
                }
            }
        }
    }
}

/// Rounded once for each term, what is not finite, half targets, and views in their order; targets and sources that are held stay.
#[test]
fn sums_by_hand() {
    let (infinity, nan) = (f32::INFINITY, f32::NAN);
    let wide = |values: &[f32]| tensor(values.to_vec(), DType::F32);
    // The narrowest that there is.
    let half = |values: &[f32]| tensor(values.to_vec(), dtypes()[0]);
    let plane = floats(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
    let turned = || plane.clone().transpose();
    let [first, last] = [0, 1].map(|row| plane.clone().slice([row..row + 1, 0..3]));
    let sum = |target: Tensor<2>, source: Tensor<2>, [keep, add]: [f64; 2], expected: &[f64]| {
        let all = || [values(target.clone()), values(source.clone())].concat();
        let before = all();
        let sum = blend(target.clone(), source.clone(), keep, add);
        assert_eq!((sum.dtype(), sum.dims()), (target.dtype(), target.dims()));
        let expected = expected.iter().copied().chain(before);
        let mut both = values(sum).into_iter().chain(all()).zip(expected);
        let same = both.all(|(a, b)| same(a, b));
        assert!(same, "{keep} and {add} of {target}");
    };
    let once = [f64::from(1.0f32 + 1e-8), f64::from(1e8f32 + 3.0)];
    let (plain, ends) = ([1.0, 1.0], half(&[infinity, nan, -infinity]));
    let bad = [f64::INFINITY, f64::NAN, f64::NAN];
    let two = || half(&[1.0, 2.0]);
    sum(wide(&[1.0, 1e8]), wide(&[1e-8, 3.0]), plain, &once);
    sum(wide(&[1.0, 2.0, infinity]), ends, plain, &bad);
    sum(two(), two(), [0.5, 1.0], &[1.5, 3.0]);
    let order = [1.0, 4.0, 2.0, 5.0, 3.0, 6.0];
    sum(turned().zeros_like(), turned(), plain, &order);
    let thrice = order.map(|value| 3.0 * value);
    sum(turned(), turned(), [2.0, 1.0], &thrice);
    sum(last, first, [1.0, -1.0], &[3.0; 3]);
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
    let bits = |tensor: Tensor<2>| tensor.into_data().as_bytes().to_vec();
    let dtypes = dtypes().into_iter();
    for dtype in dtypes.filter(|dtype| *dtype != DType::BF16) {
        let wide = product_dtype(dtype);
        let places = [1, 7, 1024, 1025].into_iter();
        for (count, found) in places.flat_map(|count| [(count, 0.0), (count, 1.0)]) {
            for is_held in [false, true] {
                let target = || tensor([vec![-0.0], wave(count - 1, 1)].concat(), wide);
                let source = tensor(wave(count, 2), dtype);
                let expected = match found > 0.0 {
                    true => target(),
                    false => blend(target(), source.clone(), 0.75, 0.125),
                };
                let given = target();
                let held = is_held.then(|| given.clone());
                let found_inf = floats(vec![found], [1]);
                let result = blend_unless(given, source, 0.75, 0.125, found_inf);
                let at = format!("{dtype:?} {count} {found} {is_held}");
                assert_eq!(bits(result), bits(expected), "{at}");
                assert!(held.is_none_or(|held| bits(held) == bits(target())), "{at}");
            }
        }
    }
}
