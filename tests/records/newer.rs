//! Records of a later release.

use burn_amp_tests::prelude::*;
use burn_pack::Scalar;

use crate::support::{Files, adam, contents, is_error, pack, refused, says, trained};

/// The same record with another value under `burn_amp.version`; the checksum is left as it was.
fn with_version(bytes: Bytes, version: Scalar) -> Bytes {
    let mut contents = pack(bytes);
    let name = "burn_amp.version".to_string();
    contents.scalars.insert(name, version).unwrap();
    contents.into_bytes()
}

#[test]
fn a_newer_version_is_refused_and_says_so() {
    let mut optim = trained(adam(), DType::F32, 0..3, &[]);
    let of_scaler = optim.scaler().into_bytes().unwrap();
    let mut victim = adam();
    for version in [2, 1000, u64::MAX] {
        let expected = AmpError::NewerRecord {
            origin: "memory".to_string(),
            found: version,
            supported: 1,
        };
        let found = version.to_string();
        says(&expected, ["memory", &found, "up to 1", "update burn-amp"]);
        let version = Scalar::UInt(version);
        let bytes = with_version(optim.into_bytes().unwrap(), version);
        let error = refused(&mut victim, |optim| optim.from_bytes(bytes));
        assert_eq!(error, expected);
        let bytes = with_version(of_scaler.clone(), version);
        let error = refused(&mut victim, |optim| optim.scaler_mut().from_bytes(bytes));
        assert_eq!(error, expected);
    }
}

#[test]
fn no_version_at_all_is_damage() {
    let bytes = adam().into_bytes().unwrap();
    for version in [
        Scalar::UInt(0),
        Scalar::Int(1),
        Scalar::Bool(true),
        Scalar::Float(1.0),
    ] {
        let bytes = with_version(bytes.clone(), version);
        let error = adam().from_bytes(bytes).unwrap_err();
        is_error(&error, "DamagedRecord", ["burn_amp.version"]);
    }
    // The helper itself does no harm.
    let mut same = adam();
    same.from_bytes(with_version(bytes.clone(), Scalar::UInt(1)))
        .unwrap();
    assert_eq!(contents(&mut same), pack(bytes));
}
