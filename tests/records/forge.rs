//! Records that no release has written, under a checksum that holds.

use burn_amp_tests::prelude::*;
use burn_pack::{Scalar, Tensor, Writer};
use crc32fast::Hasher;
use serde_json::Value;

use crate::support::{Pack, pack};

pub const STATE: &str = "burn_amp.state";
const CHECKSUM: &str = "burn_amp.checksum";

/// Changes a record and seals it again.
pub fn forged(bytes: &Bytes, change: impl FnOnce(&mut Pack)) -> Bytes {
    let mut contents = pack(bytes.clone());
    change(&mut contents);
    seal(contents)
}

/// Changes the JSON under `key`, and seals the record again.
pub fn with_json(bytes: &Bytes, key: &str, change: impl FnOnce(&mut Value)) -> Bytes {
    forged(bytes, |pack| {
        let text = pack.metadata.get_mut(key).expect("such a state");
        let mut state = serde_json::from_str(text).unwrap();
        change(&mut state);
        *text = state.to_string();
    })
}

/// The record as bytes, with the checksum of what it holds.
pub fn seal(mut contents: Pack) -> Bytes {
    contents.scalars.remove(CHECKSUM);
    let sum = checksum(&contents);
    contents
        .scalars
        .insert(CHECKSUM.to_string(), Scalar::UInt(sum));
    unsealed(contents)
}

/// The record as bytes, as it is.
pub fn unsealed(contents: Pack) -> Bytes {
    let tensor = |(name, (id, (dtype, shape, bytes)))| {
        Tensor::new(name, dtype, shape, id, Bytes::from_bytes_vec(bytes))
    };
    let mut writer = Writer::new(contents.tensors.into_iter().map(tensor).collect());
    for (name, value) in &contents.scalars {
        writer = writer.with_scalar(name, *value);
    }
    for (name, value) in &contents.metadata {
        writer = writer.with_metadata(name, value);
    }
    writer.into_bytes().unwrap()
}

/// CRC-32 of lengths and contents, by name.
fn checksum(contents: &Pack) -> u64 {
    let mut hasher = Hasher::new();
    let number = |hasher: &mut Hasher, number: u64| hasher.update(&number.to_le_bytes());
    let text = |hasher: &mut Hasher, text: &[u8]| {
        number(hasher, text.len() as u64);
        hasher.update(text);
    };
    for (name, (id, (dtype, shape, bytes))) in &contents.tensors {
        text(&mut hasher, name.as_bytes());
        text(&mut hasher, dtype.name().as_bytes());
        for size in shape {
            number(&mut hasher, *size as u64);
        }
        number(&mut hasher, id.unwrap_or(u64::MAX));
        text(&mut hasher, bytes);
    }
    for (name, value) in &contents.scalars {
        text(&mut hasher, name.as_bytes());
        let (tag, bits) = match value {
            Scalar::Int(value) => (0, *value as u64),
            Scalar::UInt(value) => (1, *value),
            Scalar::Float(value) => (2, value.to_bits()),
            Scalar::Bool(value) => (3, u64::from(*value)),
        };
        number(&mut hasher, tag);
        number(&mut hasher, bits);
    }
    for (key, value) in &contents.metadata {
        text(&mut hasher, key.as_bytes());
        text(&mut hasher, value.as_bytes());
    }
    hasher.finalize().into()
}

/// The seal here is that of the library: or every other test in here would see damage only.
#[test]
fn a_record_that_is_sealed_again_is_the_same() {
    use burn::tensor::DType;
    let mut optim = crate::support::adam();
    crate::support::Small::new(DType::F32).train(&mut optim, 0..3, &[1]);
    let bytes = optim.into_bytes().unwrap();
    let again = forged(&bytes, |_| ());
    assert_eq!(pack(again.clone()), pack(bytes));
    crate::support::adam().from_bytes(again).unwrap();
}
