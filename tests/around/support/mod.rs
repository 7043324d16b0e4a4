//! What these tests share.

mod pair;

pub use burn_amp_tests::{Files, Pack, Run, address, captured, pack, parameters, resumed};
pub use pair::{Pair, Trial, Values, all, masters, norm, on_flex, sgd, under, values};

use burn_amp_tests::prelude::*;

/// The module with parameters, and ids from `from` on, that are the same in every run.
pub fn filled<M: Module>(module: M, from: usize) -> M {
    burn_amp_tests::fill_with_ids(module, from, 0.7)
}

/// Numbers between -0.7 and 0.7.
pub fn wave(from: usize, count: usize) -> Vec<f32> {
    burn_amp_tests::wave(from, count, 0.7)
}

/// Gives `load` a record with one bit changed, everywhere, and cut short. It returns what became of a victim, whose state stays as
/// it was `before` where the record is refused.
pub fn damaged(whole: &[u8], before: &Pack, load: impl Fn(Bytes) -> (Result<(), AmpError>, Pack)) {
    let load = |bytes: Vec<u8>| load(Bytes::from_bytes_vec(bytes));
    let (all, after) = load(whole.to_vec());
    all.unwrap();
    assert_ne!(before, &after);
    let mut refused = 0;
    for position in (0..whole.len()).step_by(5) {
        let mut bytes = whole.to_vec();
        bytes[position] ^= 0x10;
        // A byte that nothing reads is padding: then all of the donor is there.
        let (result, found) = load(bytes);
        let expected = if result.is_ok() { &after } else { before };
        assert_eq!(&found, expected, "at {position}");
        refused += u32::from(result.is_err());
    }
    assert!(refused > 50, "only {refused} changes were noticed");
    for length in (0..whole.len()).step_by(61) {
        let (result, found) = load(whole[..length].to_vec());
        result.unwrap_err();
        assert_eq!(&found, before, "cut at {length}");
    }
}
