//! Parameters and files in a form that can be compared bit by bit.

use std::{collections::BTreeMap, fs, path::Path};

use super::*;

/// All that the file of a model or a scheduler holds, without the ids of its parameters, which are random.
pub fn pack(path: &Path) -> Pack {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut pack = burn_amp_tests::pack(Bytes::from_bytes_vec(bytes));
    pack.tensors.values_mut().for_each(|(id, _)| *id = None);
    pack
}

/// Opens an optimizer's file: ids are replaced by the paths that they have in the model of the same epoch. The scaler's state
/// is left out: it has ids inside, and `Resume` reads it.
fn optimizer_pack<M: Module>(path: &Path, model: &M) -> Pack {
    let names: BTreeMap<String, String> = parameters(model)
        .into_iter()
        .map(|(path, (id, _))| (id.to_string(), path))
        .collect();
    let rename = |name: String| {
        let (id, field) = name.split_once('.').unwrap_or((&name, ""));
        (id != STATE_ID.to_string()).then(|| format!("{}/{field}", names[id]))
    };
    let mut pack = pack(path).renamed(rename);
    // Paths by ids.
    let metadata = std::mem::take(&mut pack.metadata).into_iter();
    let named = metadata.filter_map(|(name, value)| Some((rename(name)?, value)));
    pack.metadata.extend(named);
    pack
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

/// The state of the scaler in a checkpoint.
pub fn stored_state(stored: &Resume) -> Bytes {
    let record = stored.record().unwrap().clone();
    record.without_averages().bits()
}

/// Everything that the checkpoints of the fourth epoch hold, and the models themselves: bit for bit the same.
pub fn assert_same(left: &Done, right: &Done) {
    let file = |done: &Done, name: &str| {
        let folder = done.folder.path();
        folder.join(format!("checkpoint/{name}-4.bpk"))
    };
    for name in ["model", "scheduler"] {
        let (one, other) = (pack(&file(left, name)), pack(&file(right, name)));
        assert!(one == other, "{name}");
    }
    let optim = |done: &Done| optimizer_pack(&file(done, "optim"), &done.model);
    assert!(optim(left) == optim(right), "optim");
    for done in [left, right] {
        let stored = Resume::check(done.folder.path(), 4).unwrap();
        assert_eq!(stored_state(&stored), done.model.scaler().bits());
    }
    assert!(left.bits() == right.bits());
}
