//! Records that no release has written, under a checksum that holds.

use burn_amp_tests::prelude::*;

/// Changes a record and seals it again.
pub fn forged(bytes: &Bytes, change: impl FnOnce(&mut Pack)) -> Bytes {
    let mut contents = pack(bytes.clone());
    change(&mut contents);
    seal(contents)
}

/// The record as bytes, with the checksum that its reader finds: it says so where another is stored.
pub fn seal(mut contents: Pack) -> Bytes {
    let mut store = |sum| {
        let name = "burn_amp.checksum".to_string();
        contents.scalars.insert(name, Scalar::UInt(sum));
        contents.clone().into_bytes()
    };
    let bytes = store(0);
    let error = AmpRecord::from_bytes(bytes.clone()).err();
    let message = error.map_or(String::new(), |error| error.to_string());
    match message.split_once("its checksum is ") {
        Some((_, found)) => store(u64::from_str_radix(&found[..8], 16).unwrap()),
        None => bytes,
    }
}
