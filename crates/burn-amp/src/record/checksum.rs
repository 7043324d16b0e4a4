use burn_pack::{Scalar, Tensor};
use crc32fast::Hasher;
use std::collections::BTreeMap;

use crate::error::AmpError;

/// CRC-32 over names, types, shapes and values, in the container's order: by name.
pub(super) fn checksum(
    tensors: &[Tensor],
    scalars: &BTreeMap<String, Scalar>,
    metadata: &BTreeMap<String, String>,
    origin: &str,
) -> Result<u32, AmpError> {
    let mut hasher = Hasher::new();
    let mut sorted: Vec<&Tensor> = tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    for tensor in sorted {
        text(&mut hasher, &tensor.name);
        text(&mut hasher, tensor.dtype.name());
        for size in tensor.shape.iter() {
            number(&mut hasher, *size as u64);
        }
        number(&mut hasher, tensor.param_id.unwrap_or(u64::MAX));
        let bytes = tensor.to_bytes();
        let bytes = bytes.map_err(|error| AmpError::damaged(origin, error.to_string()))?;
        number(&mut hasher, bytes.len() as u64);
        hasher.update(&bytes);
    }
    for (name, value) in scalars {
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
    for (key, value) in metadata {
        text(&mut hasher, key);
        text(&mut hasher, value);
    }
    Ok(hasher.finalize())
}

/// Lengths come first, so that no two contents read the same.
fn text(hasher: &mut Hasher, text: &str) {
    number(hasher, text.len() as u64);
    hasher.update(text.as_bytes());
}

fn number(hasher: &mut Hasher, number: u64) {
    hasher.update(&number.to_le_bytes());
}
