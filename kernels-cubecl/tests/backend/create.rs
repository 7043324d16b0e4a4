//! Tensors on the device under test, from bits or from pseudorandom numbers.

use burn::tensor::{DType, Tensor, TensorData};

use crate::{device::device, random::Bits};

/// Stored bits and bits of the fraction of a dtype.
pub fn format(dtype: DType) -> (u32, u32) {
    match dtype {
        DType::F16 => (16, 10),
        DType::BF16 => (16, 7),
        DType::F32 => (32, 23),
        DType::F64 => (64, 52),
        dtype => unreachable!("{dtype:?}"),
    }
}

/// A tensor whose values have these bits.
pub fn from_bits<const D: usize>(dtype: DType, bits: &[u64], shape: [usize; D]) -> Tensor<D> {
    let bytes = |bits: &u64| bits.to_le_bytes().into_iter().take(dtype.size());
    let bytes = bits.iter().flat_map(bytes).collect();
    let data = TensorData::from_bytes_vec(bytes, shape, dtype);
    Tensor::from_data(data, (&device(), dtype))
}

/// A tensor of f32.
pub fn floats<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (&device(), DType::F32))
}

/// A value of a dtype: mostly of magnitude 2^-8 to 2^7, one in 32 of any bits, one in 32 zero.
fn value(bits: &mut Bits, dtype: DType) -> u64 {
    let (width, fraction) = format(dtype);
    let draw = bits.draw();
    let sign = (draw >> 63) << (width - 1);
    match draw & 31 {
        0 => bits.draw() & (u64::MAX >> (64 - width)),
        1 => sign,
        _ => {
            let one = (1u64 << (width - 1 - fraction - 1)) - 1;
            let exponent = one - 8 + ((draw >> 5) & 15);
            let rest = bits.draw() & ((1 << fraction) - 1);
            sign | exponent << fraction | rest
        }
    }
}

/// From 0 to 1.
pub fn part(bits: &mut Bits) -> f32 {
    (bits.draw() >> 40) as f32 / (1u64 << 24) as f32
}

/// A tensor of ordinary values with special ones here and there.
pub fn random<const D: usize>(dtype: DType, seed: u64, shape: [usize; D]) -> Tensor<D> {
    let mut bits = Bits(seed);
    let length = shape.iter().product();
    let values: Vec<u64> = (0..length).map(|_| value(&mut bits, dtype)).collect();
    from_bits(dtype, &values, shape)
}
