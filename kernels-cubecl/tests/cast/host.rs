//! The device under test, tensors of given values, and what the host makes of them.

use burn::tensor::{DType, Device, FloatDType, Shape, Tensor, TensorData, bf16, f16};
use burn_amp_kernels::Factor;

use crate::device::{self, has_kernels, keeps_subnormals};
use crate::number;
pub use crate::skipped::skipped;

/// A power of two each way, none, the ends of f32, and one that rounds.
pub const FACTORS: [f64; 6] = [1.0 / 65536.0, 65536.0, 1.0, LEAST, 1.0 / LEAST, 3.7];
const LEAST: f64 = f32::MIN_POSITIVE as f64;

pub fn autodiff() -> Device {
    Device::default().autodiff()
}

/// What the device has of f16, bf16 and f32.
pub fn dtypes() -> Vec<FloatDType> {
    let dtypes = device::dtypes().into_iter();
    let dtypes = dtypes.filter(|dtype| *dtype != DType::F64);
    dtypes.map(FloatDType::from).collect()
}

/// The first of them: half, where there is one.
pub fn narrowest() -> FloatDType {
    dtypes()[0]
}

/// Of an input, and of its cast.
pub type Pair = (FloatDType, FloatDType);

pub fn pairs() -> Vec<Pair> {
    let pair = |(from, to): (DType, DType)| (from.into(), to.into());
    device::pairs().into_iter().map(pair).collect()
}

/// Rounded to a dtype.
pub fn round(value: f32, dtype: FloatDType) -> f32 {
    number::rounded(dtype.into(), value.into()) as f32
}

/// Values that `dtype` has.
pub fn data(values: &[f32], shape: impl Into<Shape>, dtype: FloatDType) -> TensorData {
    TensorData::new(values.to_vec(), shape).convert_dtype(dtype.into())
}

/// A constant on the device's autodiff.
pub fn tensor<const D: usize>(values: &[f32], shape: [usize; D], dtype: FloatDType) -> Tensor<D> {
    let dtype_there: DType = dtype.into();
    Tensor::from_data(data(values, shape, dtype), (&autodiff(), dtype_there))
}

pub fn widen(data: &TensorData) -> Vec<f32> {
    let wide = number::widen(data).into_iter();
    wide.map(|value| value as f32).collect()
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    widen(&number::read(tensor))
}

/// A factor that is on the device, `ratio` times something.
pub fn on_device(factor: f64, ratio: f64) -> Factor {
    let scale = Tensor::from_floats([(factor / ratio) as f32], &Device::default());
    Factor::on_device(ratio, scale)
}

/// Same bits, NaN of all payloads alike.
pub fn same(a: f32, b: f32) -> bool {
    number::same(a.into(), b.into())
}

/// Asserts that values have the same bits.
pub fn assert_same(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let wrong = found.iter().zip(expected).find(|(a, b)| !same(**a, **b));
    assert_eq!(wrong, None);
}

/// Whether a device may take a value for zero.
fn flushed(value: f32, dtype: FloatDType) -> bool {
    let is_subnormal = value != 0.0 && f64::from(value.abs()) < number::smallest(dtype.into());
    is_subnormal && !keeps_subnormals(dtype.into())
}

/// Asserts that gradients of dtype `to` became `found`, of dtype `from`.
pub fn assert_products(gradients: &[f32], found: &[f32], (from, to): Pair, factor: f64) {
    assert_eq!(gradients.len(), found.len());
    for (gradient, found) in gradients.iter().zip(found) {
        let wide = gradient * factor as f32;
        let expected = round(wide, from);
        let zero = || {
            flushed(*gradient, to)
                || flushed(wide, FloatDType::F32)
                || flushed(wide, from)
                || flushed(expected, from)
                // The fallback adds a zero.
                || !has_kernels() && expected == 0.0
        };
        assert!(
            same(*found, expected) || *found == 0.0 && zero(),
            "{to:?} {gradient:e} times {factor:e} became {from:?} {found:e} and not {expected:e}"
        );
    }
}

/// Every value of 16 bits; for f32, some of those and their neighbours, which are rounded up, down and to even.
pub fn every_value(dtype: FloatDType) -> Vec<f32> {
    let halves = 0..=u16::MAX;
    let around = |wide: f32, ulp: u32| {
        let half = ulp / 2;
        let bits = wide.to_bits() & !(ulp - 1);
        [0, 1, half - 1, half, half + 1].map(|more| f32::from_bits(bits.wrapping_add(more)))
    };
    match dtype {
        FloatDType::F16 => halves.map(|bits| f16::from_bits(bits).to_f32()).collect(),
        FloatDType::BF16 => halves.map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        _ => {
            let (some, others) = (halves.clone().step_by(13), halves.step_by(17));
            let f16s = some.flat_map(|bits| around(f16::from_bits(bits).to_f32(), 1 << 13));
            let bf16s = others.flat_map(|bits| around(bf16::from_bits(bits).to_f32(), 1 << 16));
            // Half a unit above f16's largest value is infinite, and no sign of what vanishes gets lost.
            let edges = [65504.0, 65519.99, 65520.0, 1e30, 6e-8, 2.9e-8, 1e-30];
            let edges = edges.into_iter().flat_map(|edge| [edge, -edge]);
            f16s.chain(bf16s).chain(edges).collect()
        }
    }
}
