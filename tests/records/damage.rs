//! Every byte of a small record flipped, one at a time, and every length cut off: a clean load or a clean error, and
//! after an error the old state.

use burn_amp_tests::prelude::*;

use crate::support::{Files, Pack, Small, adam, master_adam, momentum, pack, quietly};

/// Bits that turn a number, a letter or a length into a near one, and all bits.
const MASKS: [u8; 5] = [1, 2, 4, 128, 255];

/// What became of all the damaged files.
struct Survey {
    /// Positions at which some flip went unnoticed.
    unnoticed: Vec<usize>,
    refused: usize,
}

/// Damages `bytes` in every way. `load` gets the damaged bytes and returns the result and the state after it;
/// `after_load` judges what a load that succeeded has made of the state.
fn survey<S: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    old: &S,
    load: impl Fn(Bytes) -> (Result<(), AmpError>, S),
    after_load: impl Fn(&S, usize),
) -> Survey {
    let mut survey = Survey {
        unnoticed: Vec::new(),
        refused: 0,
    };
    let flipped = (0..bytes.len()).flat_map(|at| {
        // In the padding between the parts one is enough.
        let padding = bytes[at..].iter().take(8).all(|byte| *byte == 0);
        let masks = if padding { &MASKS[4..] } else { &MASKS };
        masks.iter().map(move |mask| (at, Some(*mask)))
    });
    let cut = (0..bytes.len()).map(|at| (at, None));
    for (at, mask) in flipped.chain(cut) {
        let mut damaged = bytes.to_vec();
        match mask {
            Some(mask) => damaged[at] ^= mask,
            None => damaged.truncate(at),
        }
        let damaged = Bytes::from_bytes_vec(damaged);
        let Ok((result, state)) = quietly(|| load(damaged)) else {
            panic!("byte {at}, mask {mask:?}: it panicked");
        };
        match result {
            Ok(()) => {
                after_load(&state, at);
                survey.unnoticed.push(at);
            }
            Err(error) => {
                assert_eq!(state, *old, "byte {at}, mask {mask:?}: {error}");
                assert_clean(&error);
                survey.refused += 1;
            }
        }
    }
    survey
}

fn assert_clean(error: &AmpError) {
    let known = matches!(
        error,
        AmpError::DamagedRecord { .. }
            | AmpError::ForeignRecord { .. }
            | AmpError::NewerRecord { .. }
    );
    assert!(known, "{error:?}");
    assert!(error.to_string().starts_with("memory "), "{error}");
}

/// Where `part` is in `bytes`.
fn position(bytes: &[u8], part: &[u8]) -> std::ops::Range<usize> {
    let found = bytes.windows(part.len()).position(|window| window == part);
    let start = found.expect("the part is in the record");
    start..start + part.len()
}

/// A sealed record: what is loaded is what was saved, or nothing is.
fn check_optimizer<O: ModuleOptim + Clone>(build: impl Fn() -> ScaledOptimizer<O>, dtype: DType) {
    let state = |optim: &mut ScaledOptimizer<O>| pack(optim.into_bytes().unwrap());
    let mut saved = build();
    Small::new(dtype).train(&mut saved, 0..9, &[2, 7]);
    let mut old = build();
    Small::new(dtype).train(&mut old, 20..23, &[21]);
    let bytes = saved.into_bytes().unwrap();
    let (saved, before) = (state(&mut saved), state(&mut old));
    assert_ne!(saved, before);

    let load = |damaged| {
        let mut victim = old.clone();
        let result = victim.from_bytes(damaged);
        (result, state(&mut victim))
    };
    let exact = |loaded: &Pack, at: usize| assert_eq!(*loaded, saved, "byte {at}");
    let survey = survey(&bytes, &before, load, exact);
    assert!(survey.refused > 1000);

    // The scaler's state, the version and every value of every tensor are in the unharmed file only.
    let mut parts = vec![
        position(&bytes, saved.metadata["burn_amp.state"].as_bytes()),
        position(&bytes, b"burn_amp.version"),
        position(&bytes, b"burn_amp.checksum"),
    ];
    let values = saved.tensors.values().map(|(_, values)| &values.2);
    parts.extend(values.map(|values| position(&bytes, values)));
    for part in parts {
        let missed: Vec<_> = survey
            .unnoticed
            .iter()
            .filter(|at| part.contains(at))
            .collect();
        assert!(missed.is_empty(), "{part:?}: {missed:?}");
    }
}

#[test]
fn of_a_scaled_optimizer() {
    check_optimizer(momentum, DType::F32);
}

#[test]
fn of_a_scaled_optimizer_with_masters() {
    check_optimizer(master_adam, DType::F16);
}

#[test]
fn of_a_scaler() {
    let mut optim = momentum();
    Small::new(DType::F32).train(&mut optim, 0..9, &[2, 7]);
    let saved = optim.scaler().bits();
    let bytes = optim.scaler().into_bytes().unwrap();
    let old = momentum().scaler().clone();
    let before = old.bits();
    assert_ne!(saved, before);

    let load = |damaged| {
        let mut victim = old.clone();
        let result = victim.from_bytes(damaged);
        (result, victim.bits())
    };
    let survey = survey(&bytes, &before, load, |loaded, at| {
        assert_eq!(*loaded, saved, "byte {at}");
    });
    let json = pack(bytes.clone()).metadata["burn_amp.state"].clone();
    let part = position(&bytes, json.as_bytes());
    assert!(survey.unnoticed.iter().all(|at| !part.contains(at)));
    assert!(survey.refused > 1000);
}

/// It has no tensors: what is left of it must not read as the file of an optimizer that has not stepped yet.
#[test]
fn of_a_scaler_is_never_taken_for_an_optimizer() {
    let bytes = momentum().scaler().into_bytes().unwrap();
    let mut old = momentum();
    let before = pack(old.into_bytes().unwrap());
    let load = |damaged| {
        let mut victim = old.clone();
        let result = victim.from_bytes(damaged);
        (result, pack(victim.into_bytes().unwrap()))
    };
    let survey = survey(&bytes, &before, load, |_, at| {
        panic!("byte {at}: a scaler's file was loaded as an optimizer's")
    });
    assert!(survey.refused > 1000);
}

/// Burn's own files have no checksum. What is read as a state must at least be one that the next step can use.
#[test]
fn of_a_plain_optimizer() {
    let mut saved = adam();
    let net = Small::new(DType::F32).train(&mut saved, 0..9, &[]);
    let bytes = saved.optimizer().into_bytes().unwrap();
    let mut old = adam();
    let before = pack(old.into_bytes().unwrap());
    let load = |damaged| {
        let mut victim = old.clone();
        let result = victim.from_bytes(damaged);
        if result.is_ok() {
            net.clone().train(&mut victim.clone(), 9..11, &[]);
        }
        (result, pack(victim.into_bytes().unwrap()))
    };
    let survey = survey(&bytes, &before, load, |_, _| ());
    assert!(survey.refused > 1000);
}
