//! Damage that hides a record's section: what is left must not read as the record of a plain optimizer.

use burn_amp_tests::prelude::*;

use crate::{
    forge::forged,
    support::{Small, adam, pack, quietly},
};

fn sealed() -> Vec<u8> {
    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 0..9, &[2, 7]);
    optim.into_bytes().unwrap().to_vec()
}

#[test]
fn two_bytes_that_emptied_an_optimizer() {
    let mut bytes = sealed();
    // No tensors, and a head that ends before the section.
    bytes[19] = 0xa0;
    bytes[6..10].copy_from_slice(&256u32.to_le_bytes());
    let mut optim = adam();
    Small::new(DType::F32).train(&mut optim, 20..23, &[21]);
    let before = pack(optim.into_bytes().unwrap());
    let error = optim.from_bytes(Bytes::from_bytes_vec(bytes)).unwrap_err();
    assert!(matches!(error, AmpError::DamagedRecord { .. }), "{error}");
    assert_eq!(pack(optim.into_bytes().unwrap()), before);
}

/// One bit in the length of the head, and one at its begin, in records whose heads are of many lengths.
#[test]
fn pairs_of_bits() {
    let honest = Bytes::from_bytes_vec(sealed());
    let mut refused = 0;
    for longer in (0..800).step_by(50) {
        let bytes = forged(&honest, |pack| {
            let path = "w".repeat(longer);
            pack.metadata.insert("1001".to_string(), path);
        });
        AmpRecord::from_bytes(bytes.clone()).unwrap();
        // The magic number and the version come before the length, at byte 6, and the name of the first part after it.
        for (at, bit) in [10, 19]
            .into_iter()
            .flat_map(|at| (0..8).map(move |bit| (at, bit)))
        {
            for length_bit in 0..32 {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 1 << bit;
                damaged[6 + length_bit / 8] ^= 1 << (length_bit % 8);
                let damaged = Bytes::from_bytes_vec(damaged);
                let record = quietly(|| AmpRecord::from_bytes(damaged));
                match record.expect("no panic") {
                    Ok(record) => assert!(
                        record.counters().is_some(),
                        "{longer}: {at}.{bit}, {length_bit}"
                    ),
                    Err(_) => refused += 1,
                }
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

    let device = Device::flex().autodiff();
    let model = Named {
        burn_amp: LinearConfig::new(3, 2).init(&device),
    };
    let mut optim = adam();
    let loss = model
        .burn_amp
        .forward(Tensor::<2>::ones([1, 3], &device))
        .sum();
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    optim.step(0.1, model, grads);
    let plain = optim.optimizer().into_bytes().unwrap();
    let paths = pack(plain.clone()).metadata;
    assert!(
        paths.values().any(|path| path == "burn_amp.weight"),
        "{paths:?}"
    );

    let mut loaded = adam();
    loaded.from_bytes(plain.clone()).unwrap();
    let kept = loaded.optimizer().into_bytes().unwrap();
    assert_eq!(pack(kept).tensors, pack(plain).tensors);
}
