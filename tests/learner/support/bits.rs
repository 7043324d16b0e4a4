//! Parameters and files in a form that can be compared bit by bit.

use burn::{module::Module, tensor::Bytes};
use burn_amp::{GradScaler, Resume};
use burn_amp_tests::{Values, parameters};
use burn_pack::{Reader, Scalar};
use std::{collections::BTreeMap, path::Path};

/// All that a burnpack holds, without the ids of its parameters, which are random.
#[derive(Clone, Debug, PartialEq)]
pub struct Pack {
    pub tensors: BTreeMap<String, Values>,
    pub scalars: BTreeMap<String, Scalar>,
    pub metadata: BTreeMap<String, String>,
}

/// Opens a model's or a scheduler's file.
pub fn pack(path: &Path) -> Pack {
    let reader = Reader::from_file(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let tensors = reader.into_tensors().unwrap().into_iter().map(|tensor| {
        let (name, dtype, shape, _, bytes) = tensor.into_parts().unwrap();
        (name, (dtype, shape.to_vec(), bytes.to_vec()))
    });
    Pack {
        tensors: tensors.collect(),
        scalars,
        metadata,
    }
}

/// Opens an optimizer's file: ids are replaced by the paths that they have in the model of the same epoch. The scaler's state
/// is left out: it has ids inside, and `Resume` reads it.
pub fn optimizer_pack<M: Module>(path: &Path, model: &M) -> Pack {
    let names: BTreeMap<String, String> = parameters(model)
        .into_iter()
        .map(|(path, (id, _))| (id.to_string(), path))
        .collect();
    let rename = |name: String| match name.split_once('.') {
        Some((id, _)) if id == STATE_ID.to_string() => None,
        Some((id, field)) => Some(format!("{}/{field}", names[id])),
        None if name == STATE_ID.to_string() => None,
        None => Some(names[&name].clone()),
    };
    let Pack {
        tensors,
        scalars,
        metadata,
    } = pack(path);
    Pack {
        tensors: renamed(tensors, rename),
        scalars: renamed(scalars, rename),
        metadata: renamed(metadata, rename),
    }
}

/// The parameter under which the scaler's state is stored.
pub const STATE_ID: u64 = u64::from_le_bytes(*b"burn_amp");

fn renamed<V>(
    values: BTreeMap<String, V>,
    rename: impl Fn(String) -> Option<String>,
) -> BTreeMap<String, V> {
    let rename = |(name, value)| rename(name).map(|name| (name, value));
    values.into_iter().filter_map(rename).collect()
}

/// The values alone, in the order of their paths.
pub fn values<M: Module>(module: &M) -> Vec<Values> {
    parameters(module).into_values().map(|(_, v)| v).collect()
}

/// The state of a scaler, to be compared.
pub fn scaler_state(scaler: &GradScaler) -> Bytes {
    scaler.to_record().into_bytes().unwrap()
}

/// The state of the scaler in a checkpoint.
pub fn stored_state(stored: &Resume) -> Bytes {
    let record = stored.record().unwrap().clone();
    record.without_averages().into_bytes().unwrap()
}
