//! Records that no release has written, under a checksum that holds.

use burn_pack::Scalar;
use crc32fast::Hasher;

use burn_amp_tests::prelude::*;

const CHECKSUM: &str = "burn_amp.checksum";

/// Changes a record and seals it again.
pub fn forged(bytes: &Bytes, change: impl FnOnce(&mut Pack)) -> Bytes {
    let mut contents = pack(bytes.clone());
    change(&mut contents);
    seal(contents)
}

/// The record as bytes, with the checksum of what it holds.
pub fn seal(mut contents: Pack) -> Bytes {
    contents.scalars.remove(CHECKSUM);
    let sum = checksum(&contents);
    contents
        .scalars
        .insert(CHECKSUM.to_string(), Scalar::UInt(sum));
    contents.into_bytes()
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
    use crate::support::{adam, trained};
    let mut optim = trained(adam(), DType::F32, 0..3, &[1]);
    let bytes = optim.into_bytes().unwrap();
    let again = forged(&bytes, |_| ());
    assert_eq!(pack(again.clone()), pack(bytes));
    adam().from_bytes(again).unwrap();
}
