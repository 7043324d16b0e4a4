//! Every byte of a small record flipped, one at a time, and every length cut off: a clean load or a clean error, and
//! after an error the old state.

use std::fmt::Debug;

use crate::support::*;

/// Bits that turn a number, a letter or a length into a near one, and all bits: for the sweep. One is enough for every day.
const MASKS: [u8; 5] = [1, 2, 4, 128, 255];
const ONE: [u8; 1] = [1];

/// Loads `bytes`, damaged in every way, into copies of `old`, whose state stays where the load fails; `loaded` judges what a load that
/// succeeded has made of it.
fn survey<T: Clone, S: PartialEq + Debug>(
    masks: &'static [u8],
    bytes: &[u8],
    old: &T,
    state: impl Fn(&mut T) -> S,
    load: impl Fn(&mut T, Bytes) -> Result<(), AmpError>,
    loaded: impl Fn(&S, usize),
) {
    let before = state(&mut old.clone());
    let mut refused = 0;
    for at in 0..bytes.len() {
        // In the padding between the parts one is enough.
        let padding = bytes[at..].iter().take(8).all(|byte| *byte == 0);
        let skipped = if padding { masks.len() - 1 } else { 0 };
        let flips = masks[skipped..].iter().copied().map(Some);
        for mask in flips.chain([None]) {
            let mut damaged = bytes.to_vec();
            match mask {
                Some(mask) => damaged[at] ^= mask,
                None => damaged.truncate(at),
            }
            let damaged = Bytes::from_bytes_vec(damaged);
            let mut victim = old.clone();
            let result = quietly(|| load(&mut victim, damaged));
            let state = state(&mut victim);
            match result.unwrap_or_else(|_| panic!("byte {at}, mask {mask:?}: it panicked")) {
                Ok(()) => loaded(&state, at),
                Err(error) => {
                    assert_eq!(state, before, "byte {at}, mask {mask:?}: {error}");
                    assert_clean(&error);
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 1000);
}

fn assert_clean(error: &AmpError) {
    let variant = format!("{error:?}");
    let mut known = ["DamagedRecord", "ForeignRecord", "NewerRecord"].iter();
    assert!(known.any(|known| variant.starts_with(known)), "{variant}");
    assert!(error.to_string().starts_with("memory "), "{error}");
}

/// A sealed record: what is loaded is what was saved, or nothing is.
fn check_optimizer<O: ModuleOptim + Clone>(
    masks: &'static [u8],
    build: impl Fn() -> ScaledOptimizer<O>,
    dtype: DType,
) {
    let mut saved = trained(build(), dtype, 0..9, &[2, 7]);
    let mut old = trained(build(), dtype, 20..23, &[21]);
    let bytes = saved.into_bytes().unwrap();
    let saved = contents(&mut saved);
    assert_ne!(saved, contents(&mut old));
    let exact = |loaded: &_, at| assert_eq!(*loaded, saved, "byte {at}");
    let load = ScaledOptimizer::from_bytes;
    survey(masks, &bytes, &old, contents, load, exact);
}

#[test]
fn of_a_scaled_optimizer() {
    check_optimizer(&ONE, momentum, DType::F32);
}

#[test]
#[ignore = "slow"]
fn sweep_of_records() {
    check_optimizer(&MASKS, momentum, DType::F32);
    check_optimizer(&MASKS, master_adam, DType::F16);
    plain_optimizer(&MASKS);
}

#[test]
fn of_a_scaler() {
    let optim = trained(momentum(), DType::F32, 0..9, &[2, 7]);
    let bytes = optim.scaler().bits();
    let old = momentum().scaler().clone();
    assert_ne!(bytes, old.bits());
    let exact = |loaded: &_, at| assert_eq!(*loaded, bytes, "byte {at}");
    let state = |scaler: &mut GradScaler| scaler.bits();
    survey(&MASKS, &bytes, &old, state, Files::from_bytes, exact);
}

/// It has no tensors: what is left of it must not read as the file of an optimizer that has not stepped yet.
#[test]
fn of_a_scaler_is_never_taken_for_an_optimizer() {
    let old = momentum();
    let bytes = old.scaler().bits();
    let load = ScaledOptimizer::from_bytes;
    survey(&MASKS, &bytes, &old, contents, load, |_, at| {
        panic!("byte {at}: a scaler's file was loaded as an optimizer's")
    });
}

#[test]
fn of_a_plain_optimizer() {
    plain_optimizer(&ONE);
}

/// Burn's own files have no checksum. What is read as a state must at least be one that the next step can use.
fn plain_optimizer(masks: &'static [u8]) {
    let mut saved = adam();
    let net = Small::new(DType::F32).train(&mut saved, 0..9, &[]);
    let bytes = saved.optimizer().into_bytes().unwrap();
    let load = |victim: &mut ScaledOptimizer<ModuleOptimizer>, damaged| {
        victim.from_bytes(damaged)?;
        net.clone().train(&mut victim.clone(), 9..11, &[]);
        Ok(())
    };
    survey(masks, &bytes, &adam(), contents, load, |_, _| ());
}
