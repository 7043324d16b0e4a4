//! Damage that hides a record's section: what is left must not read as the record of a plain optimizer.

use crate::{forge::forged, support::*};

/// One bit in the length of the head, and one at its begin, in records whose heads are of many lengths.
#[test]
fn pairs_of_bits() {
    let mut optim = trained(adam(), DType::F32, 0..9, &[2, 7]);
    let honest = optim.into_bytes().unwrap();
    // What an earlier run has found: no tensors, and a head that ends before the section.
    let mut empty = honest.to_vec();
    empty[19] = 0xa0;
    empty[6..10].copy_from_slice(&256u32.to_le_bytes());
    let error = AmpRecord::from_bytes(Bytes::from_bytes_vec(empty)).unwrap_err();
    is_error(&error, "DamagedRecord", []);
    let mut refused = 0;
    for longer in (0..800).step_by(50) {
        let bytes = forged(&honest, |pack| {
            let path = "w".repeat(longer);
            pack.metadata.insert("1001".to_string(), path);
        });
        AmpRecord::from_bytes(bytes.clone()).unwrap();
        // The magic number and the version come before the length, at byte 6, and the name of the first part after it.
        let pairs = (0..16).flat_map(|begin| (0..32).map(move |length| (begin, length)));
        for (begin, length) in pairs {
            let mut damaged = bytes.to_vec();
            damaged[[10, 19][begin / 8]] ^= 1 << (begin % 8);
            damaged[6 + length / 8] ^= 1 << (length % 8);
            let damaged = Bytes::from_bytes_vec(damaged);
            let record = quietly(|| AmpRecord::from_bytes(damaged));
            match record.expect("no panic") {
                Ok(record) => assert!(record.counters().is_some(), "{longer}: {begin}, {length}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 5000, "{refused}");
}

/// A parameter may have any name.
#[test]
fn a_plain_record_of_a_parameter_with_our_name() {
    #[derive(Module, Debug)]
    struct Named {
        burn_amp: Linear,
    }

    let burn_amp = LinearConfig::new(3, 2).init(&flex());
    let model = Named { burn_amp };
    let mut optim = adam();
    let grads = gradients(&model, 0, 1.0, FloatDType::F32);
    optim.step(0.1, model, grads);
    let plain = state(optim.optimizer());
    let mut paths = plain.metadata.values();
    assert!(paths.any(|path| path == "burn_amp.weight"), "{plain:?}");

    let mut loaded = adam();
    let bytes = optim.optimizer().into_bytes();
    loaded.from_bytes(bytes.unwrap()).unwrap();
    assert_eq!(state(loaded.optimizer()).tensors, plain.tensors);
}
