//! Records of a later release.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use burn_pack::{Reader, Scalar, Writer};

use crate::support::{Files, Small, adam, pack};

/// The same record with another value under `burn_amp.version`; the checksum is left as it was.
fn with_version(bytes: Bytes, version: Scalar) -> Bytes {
    let reader = Reader::from_bytes(bytes).unwrap();
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let mut writer = Writer::new(reader.into_tensors().unwrap());
    for (name, value) in &scalars {
        let value = if name == "burn_amp.version" {
            version
        } else {
            *value
        };
        writer = writer.with_scalar(name, value);
    }
    for (name, value) in &metadata {
        writer = writer.with_metadata(name, value);
    }
    writer.into_bytes().unwrap()
}

#[test]
fn a_newer_version_is_refused_and_says_so() {
    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 0..3, &[]);
    let mut victim = adam();
    let before = pack(victim.into_bytes().unwrap());

    for version in [2, 1000, u64::MAX] {
        let expected = AmpError::NewerRecord {
            origin: "memory".to_string(),
            found: version,
            supported: 1,
        };
        let bytes = with_version(optim.into_bytes().unwrap(), Scalar::UInt(version));
        assert_eq!(victim.from_bytes(bytes).unwrap_err(), expected);
        let bytes = with_version(optim.scaler().into_bytes().unwrap(), Scalar::UInt(version));
        let error = victim.scaler_mut().from_bytes(bytes).unwrap_err();
        assert_eq!(error, expected);
        let message = error.to_string();
        says(
            &message,
            ["memory", &version.to_string(), "up to 1", "update burn-amp"],
        );
    }
    assert_eq!(pack(victim.into_bytes().unwrap()), before);
}

#[test]
fn no_version_at_all_is_damage() {
    let mut optim = adam();
    for version in [
        Scalar::UInt(0),
        Scalar::Int(1),
        Scalar::Bool(true),
        Scalar::Float(1.0),
    ] {
        let bytes = with_version(optim.into_bytes().unwrap(), version);
        let error = adam().from_bytes(bytes).unwrap_err();
        assert!(matches!(error, AmpError::DamagedRecord { .. }), "{error}");
        assert!(error.to_string().contains("burn_amp.version"), "{error}");
    }
    // The helper itself does no harm.
    let same = with_version(optim.into_bytes().unwrap(), Scalar::UInt(1));
    adam().from_bytes(same).unwrap();
}
