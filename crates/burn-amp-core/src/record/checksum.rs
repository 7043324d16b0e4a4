use burn_pack::Scalar;
use crc32fast::Hasher;

use super::Container;
use crate::error::AmpError;

impl Container {
    /// CRC-32 over names, types, shapes and values, in the container's order: by name.
    pub(super) fn checksum(&self) -> Result<u32, AmpError> {
        let mut hasher = Hasher::new();
        for tensor in self.tensors.values() {
            text(&mut hasher, &tensor.name);
            text(&mut hasher, tensor.dtype.name());
            for size in tensor.shape.iter() {
                number(&mut hasher, *size as u64);
            }
            number(&mut hasher, tensor.param_id.unwrap_or(u64::MAX));
            let bytes = self.bytes_of(tensor)?;
            number(&mut hasher, bytes.len() as u64);
            hasher.update(&bytes);
        }
        for (name, value) in &self.scalars {
            text(&mut hasher, name);
            let (tag, bits) = match value {
                Scalar::Int(value) => (0, *value as u64),
                Scalar::UInt(value) => (1, *value),
                Scalar::Float(value) => (2, value.to_bits()),
                Scalar::Bool(value) => (3, u64::from(*value)),
            };
            number(&mut hasher, tag);
            number(&mut hasher, bits);
        }
        for (key, value) in &self.metadata {
            text(&mut hasher, key);
            text(&mut hasher, value);
        }
        Ok(hasher.finalize())
    }
}

/// Lengths come first, so that no two contents read the same.
fn text(hasher: &mut Hasher, text: &str) {
    number(hasher, text.len() as u64);
    hasher.update(text.as_bytes());
}

fn number(hasher: &mut Hasher, number: u64) {
    hasher.update(&number.to_le_bytes());
}
