//! Numbers of all float dtypes as f64, which holds them without loss.

use burn::tensor::{DType, Tensor, TensorData, bf16, f16};

/// The values of a tensor.
pub fn widen(data: &TensorData) -> Vec<f64> {
    assert!(data.dtype().is_float(), "{:?}", data.dtype());
    data.iter().collect()
}

/// A tensor's data. Burn 0.22.1's CPU runtime cannot read every tensor that is empty.
pub fn read<const D: usize>(tensor: Tensor<D>) -> TensorData {
    match tensor.shape().num_elements() {
        0 => TensorData::from_bytes_vec(Vec::new(), tensor.shape(), tensor.dtype()),
        _ => tensor.into_data(),
    }
}

/// Same bits, NaN of all payloads alike.
pub fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// What an f32 is rounded to in a dtype.
pub fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f32(value as f32).to_f64(),
        DType::BF16 => bf16::from_f32(value as f32).to_f64(),
        _ => value,
    }
}

/// The smallest normal value.
pub fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::MIN_POSITIVE.to_f64_const(),
        DType::F64 => f64::MIN_POSITIVE,
        _ => f64::from(f32::MIN_POSITIVE),
    }
}
