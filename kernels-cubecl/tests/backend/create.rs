//! Tensors on the device under test, from bits or from pseudorandom numbers.

use std::iter::repeat_with;

use super::*;

/// S. Vigna, "splitmix64".
pub struct Bits(pub u64);

impl Bits {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

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

/// A tensor whose values have these bits, the first of them.
pub fn from_bits<const D: usize>(
    dtype: DType,
    bits: impl IntoIterator<Item = u64>,
    shape: [usize; D],
) -> Tensor<D> {
    let bits = bits.into_iter().take(shape.iter().product());
    let bytes = bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(dtype.size()));
    let data = TensorData::from_bytes_vec(bytes.collect(), shape, dtype);
    Tensor::from_data(data, (&device(), dtype))
}

/// A tensor of f32.
pub fn floats<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (&device(), DType::F32))
}

/// From 0 to 1.
pub fn part(bits: &mut Bits) -> f32 {
    (bits.draw() >> 40) as f32 / (1u64 << 24) as f32
}

/// A value of magnitude 2^-8 to 2^7.
pub fn ordinary(bits: &mut Bits, dtype: DType) -> u64 {
    let (width, fraction) = format(dtype);
    let (draw, rest) = (bits.draw(), bits.draw() % (1 << fraction));
    let one = (1 << (width - 2 - fraction)) - 1;
    let exponent = one - 8 + draw % 16;
    (draw >> 63) << (width - 1) | exponent << fraction | rest
}

/// A tensor of ordinary values, but one in 32 has any bits, and one in 32 is a zero.
pub fn random<const D: usize>(dtype: DType, seed: u64, shape: [usize; D]) -> Tensor<D> {
    let (width, mut bits) = (format(dtype).0, Bits(seed));
    let value = || match bits.draw() % 32 {
        0 => bits.draw() >> (64 - width),
        1 => (bits.draw() >> 63) << (width - 1),
        _ => ordinary(&mut bits, dtype),
    };
    from_bits(dtype, repeat_with(value), shape)
}
