//! Tensors of given values, and what the host makes of a gradient.

use super::*;

/// A power of two each way, none, the ends of f32, and one that rounds.
pub const FACTORS: [f64; 6] = [1.0 / 65536.0, 65536.0, 1.0, LEAST, 1.0 / LEAST, 3.7];
const LEAST: f64 = f32::MIN_POSITIVE as f64;

pub fn autodiff() -> Device {
    Device::default().autodiff()
}

/// Half, where there is one.
pub fn narrowest() -> DType {
    narrow_dtypes()[0]
}

/// Of an input, and of its cast.
pub type Pair = (DType, DType);

/// Values that `dtype` has.
pub fn data(values: &[f64], shape: impl Into<Shape>, dtype: DType) -> TensorData {
    TensorData::new(values.to_vec(), shape).convert_dtype(dtype)
}

/// A constant on the device's autodiff.
pub fn tensor<const D: usize>(values: &[f64], shape: [usize; D], dtype: DType) -> Tensor<D> {
    Tensor::from_data(data(values, shape, dtype), (&autodiff(), dtype))
}

/// An input, and a gradient of its cast.
pub fn both<const D: usize>(
    (from, to): Pair,
    [inputs, gradients]: [&[f64]; 2],
    shape: [usize; D],
) -> [Tensor<D>; 2] {
    [tensor(inputs, shape, from), tensor(gradients, shape, to)]
}

/// A factor that is on the device, `ratio` times something.
pub fn on_device(factor: f64, ratio: f64) -> Factor {
    let scale = Tensor::from_floats([(factor / ratio) as f32], &Device::default());
    Factor::on_device(ratio, scale)
}

/// Asserts that gradients of dtype `to` became `found`, of dtype `from`.
pub fn assert_products(gradients: &[f64], found: &[f64], (from, to): Pair, factor: f64) {
    assert_eq!(gradients.len(), found.len());
    for (gradient, found) in gradients.iter().zip(found) {
        let wide = product(to, *gradient, factor as f32);
        let expected = rounded(from, wide);
        // The fallback adds a zero.
        let added = !has_kernels() && expected == 0.0;
        let is_zero = || *found == 0.0 && (added || may_flush(to, from, *gradient, wide));
        let fits = same(*found, expected) || is_zero();
        assert!(
            fits,
            "{to:?} {gradient:e} by {factor:e} became {from:?} {found:e}"
        );
    }
}

/// Every value of 16 bits; for f32, some of those and their neighbours, which are rounded up, down and to even.
pub fn every_value(dtype: DType) -> Vec<f64> {
    let halves = 0..=u16::MAX;
    let around = |wide: f32, ulp: u32| {
        let half = ulp / 2;
        let bits = wide.to_bits() & !(ulp - 1);
        let value = |more| f64::from(f32::from_bits(bits.wrapping_add(more)));
        [0, 1, half - 1, half, half + 1].map(value)
    };
    match dtype {
        DType::F16 => halves.map(|bits| f16::from_bits(bits).to_f64()).collect(),
        DType::BF16 => halves.map(|bits| bf16::from_bits(bits).to_f64()).collect(),
        _ => {
            let (some, others) = (halves.clone().step_by(13), halves.step_by(17));
            let f16s = some.flat_map(|bits| around(f16::from_bits(bits).to_f32(), 1 << 13));
            let bf16s = others.flat_map(|bits| around(bf16::from_bits(bits).to_f32(), 1 << 16));
            // Half a unit above f16's largest value is infinite, and no sign of what vanishes gets lost.
            let edges = [65504.0f32, 65519.99, 65520.0, 1e30, 6e-8, 2.9e-8, 1e-30];
            let edges = edges.map(|edge| [edge, -edge].map(f64::from)).concat();
            f16s.chain(bf16s).chain(edges).collect()
        }
    }
}
