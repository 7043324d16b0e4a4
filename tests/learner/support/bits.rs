//! Parameters and files in a form that can be compared bit by bit.

use super::*;

/// All that the file of a model, an optimizer or a scheduler holds.
pub fn pack(path: &Path) -> Pack {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    burn_amp_tests::pack(Bytes::from_bytes_vec(bytes))
}

/// The parameter under which the scaler's state is stored.
pub const STATE_ID: u64 = u64::from_le_bytes(*b"burn_amp");

/// The values alone, in the order of their paths.
pub fn values<M: Module>(module: &M) -> Vec<Values> {
    parameters(module).into_values().map(|(_, v)| v).collect()
}

pub fn all_finite<M: Module>(model: &M) -> bool {
    numbers(model).into_iter().all(f32::is_finite)
}

/// Everything that the checkpoints of the fourth epoch hold, and the models themselves: bit for bit the same.
pub fn assert_same(left: &Done, right: &Done) {
    for name in ["model", "optim", "scheduler"] {
        let file = format!("checkpoint/{name}-4.bpk");
        let [one, other] = [left, right].map(|done| pack(&done.folder.path().join(&file)));
        assert!(one == other, "{name}");
    }
    for done in [left, right] {
        assert_eq!(done.stored_state(4), done.model.scaler().bits());
    }
    assert!(left.bits() == right.bits());
}
