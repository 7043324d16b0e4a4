//! Our part of a container: the state of a parameter that no model has. Burn's readers pass over it, its optimizers drop it, and a `Learner`,
//! which stores an optimizer's record and nothing else, stores it in its checkpoints.
//!
//! One tensor is an index in JSON: the values of each state by its name, and which parameters have a tensor in it. Those tensors stand beside it, and so
//! do a version and a checksum, as scalars.

use burn::optim::{StateSink, StateSource};
use burn::tensor::{Bytes, DType, TensorData};
use burn_pack::{Scalar, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

use super::{AmpRecord, Container, State, names_of};
use crate::{error::AmpError, values::ParamTensors};

/// The parameter that no model has.
pub const SECTION: u64 = u64::from_le_bytes(*b"burn_amp");
/// The version that this release writes, and the newest that it reads. A release that adds anything writes another.
const VERSION: u64 = 1;

/// The name of the index, and those of the scalars.
const INDEX: &str = "record";
const VERSION_NAME: &str = "version";
const CHECKSUM: &str = "checksum";
/// The scalar that Burn adds to each state in an optimizer's record: the section is one of them.
const RANK: &str = "__rank";

/// The states of a record by their names.
pub(super) type States = BTreeMap<String, State>;

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    /// True where an optimizer's state, which may be empty, is sealed with the section.
    optimizer: bool,
    states: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Vec<u64>>,
}

impl Container {
    /// Adds a section, with a checksum over all that is here then. Waits for the device.
    pub(super) fn seal(&mut self, states: &States, optimizer: bool) -> Result<(), AmpError> {
        let mut index = Index {
            optimizer,
            ..Index::default()
        };
        for (name, state) in states {
            index.states.insert(name.clone(), state.values.clone());
            let ids = index.tensors.entry(name.clone()).or_default();
            for (id, tensor) in &state.tensors {
                self.add_ours(&format!("{name}.{}", id.val()), tensor.to_data());
                ids.push(id.val());
            }
        }
        let json = serde_json::to_vec(&index).expect("texts and numbers");
        let shape = [json.len()];
        let json = Bytes::from_bytes_vec(json);
        self.add_ours(INDEX, TensorData::from_bytes(json, shape, DType::U8));
        let version = Scalar::UInt(VERSION);
        self.scalars.insert(key(VERSION_NAME), version);
        // Reads all tensors: the states need not hold their memory any longer.
        let checksum = Scalar::UInt(self.checksum()?.into());
        self.scalars.insert(key(CHECKSUM), checksum);
        Ok(())
    }

    fn add_ours(&mut self, name: &str, data: TensorData) {
        let (bytes, shape, dtype) = data.into_parts();
        let tensor = Tensor::new(key(name), dtype, shape, Some(SECTION), bytes);
        self.extend([tensor]);
    }

    /// Takes the section out, if there is one, and checks it: the states, and whether there is an optimizer's beside them.
    pub(super) fn unseal(&mut self) -> Result<Option<(States, bool)>, AmpError> {
        if !self.has_section() {
            return Ok(None);
        }
        self.check_version()?;
        let is_state = self.scalars.remove(&key(RANK)).is_some();
        let stored = self.scalars.remove(&key(CHECKSUM));
        let version = self.scalars.get(&key(VERSION_NAME)).copied();
        let (Some(Scalar::UInt(VERSION)), Some(Scalar::UInt(expected))) = (version, stored) else {
            let reason = format!("its version is {version:?}, and its checksum {stored:?}");
            return Err(self.damaged(reason));
        };
        let whole = (!is_state).then(|| self.checksum());
        let mut section = self.take_of(&SECTION.to_string());
        let found = whole.unwrap_or_else(|| section.checksum())?;
        if u64::from(found) != expected {
            return Err(self.damaged(format!(
                "its checksum is {found:08x}, but {expected:08x} was stored"
            )));
        }
        section.scalars.remove(&key(VERSION_NAME));
        let index = section.tensors.remove(&key(INDEX));
        let index = index.ok_or_else(|| self.damaged(format!("`{}` is missing", key(INDEX))))?;
        let index = self.index(&self.bytes_of(&index)?)?;
        let holds_optimizer = index.optimizer || is_state;
        let states = section.take_states(index)?;
        match section.tensors.keys().chain(section.scalars.keys()).next() {
            Some(name) => Err(self.damaged(format!("`{name}` is unknown"))),
            None => Ok(Some((states, holds_optimizer))),
        }
    }

    /// True if there is a section, or what damage has left of one.
    pub(super) fn has_section(&self) -> bool {
        let mut tensors = self.tensors.range(names_of(&SECTION.to_string()));
        let names = [VERSION_NAME, CHECKSUM];
        tensors.next().is_some()
            || names
                .iter()
                .any(|name| self.scalars.contains_key(&key(name)))
    }

    /// Refuses a container that a later release has written.
    pub(super) fn check_version(&self) -> Result<(), AmpError> {
        match self.scalars.get(&key(VERSION_NAME)) {
            Some(Scalar::UInt(found)) if *found > VERSION => Err(AmpError::NewerRecord {
                origin: self.origin.clone(),
                found: *found,
                supported: VERSION,
            }),
            _ => Ok(()),
        }
    }

    fn index(&self, json: &[u8]) -> Result<Index, AmpError> {
        let index = serde_json::from_slice(json);
        index.map_err(|error| self.damaged(format!("`{}`: {error}", key(INDEX))))
    }

    /// Takes the states of an index out of a section. Their tensors stay on the host until their parameter's device is known.
    fn take_states(&mut self, mut index: Index) -> Result<States, AmpError> {
        let mut states = States::new();
        for (name, values) in index.states {
            let mut tensors = ParamTensors::default();
            for id in index.tensors.remove(&name).unwrap_or_default() {
                let name = key(&format!("{name}.{id}"));
                let tensor = self.tensors.remove(&name);
                let tensor =
                    tensor.ok_or_else(|| self.damaged(format!("tensor `{name}` is missing")))?;
                if !matches!(tensor.dtype, DType::F32 | DType::F64) {
                    let dtype = tensor.dtype.name();
                    let reason = format!("tensor `{name}` is {dtype}, but must be f32 or f64");
                    return Err(self.damaged(reason));
                }
                let bytes = self.bytes_of(&tensor)?;
                let data = TensorData::from_bytes(bytes, tensor.shape, tensor.dtype);
                tensors.insert(id.into(), data.into());
            }
            states.insert(name, State { values, tensors });
        }
        Ok(states)
    }
}

/// Writes a record into a `Learner`'s checkpoint, as the state of [`SECTION`]: a section alone. Waits for the device.
pub fn write(record: AmpRecord, out: &mut StateSink) -> Result<(), AmpError> {
    record.into_container()?.flatten(out)
}

/// Reads what [`write`] has written; gives none of the checkpoint of a run without this crate.
pub fn read(src: &mut StateSource) -> Result<Option<AmpRecord>, AmpError> {
    let section = SECTION.to_string();
    let Some(index) = src.take_tensor(&section, INDEX) else {
        return Ok(None);
    };
    let mut container = Container::empty_of("the loss scaler's state in the optimizer's record");
    for name in [VERSION_NAME, CHECKSUM] {
        let scalar = src.take_scalar(&section, name);
        container
            .scalars
            .extend(scalar.map(|scalar| (key(name), scalar)));
    }
    container.check_version()?;
    for (name, ids) in container.index(index.as_bytes())?.tensors {
        for name in ids.iter().map(|id| format!("{name}.{id}")) {
            if let Some(data) = src.take_tensor(&section, &name) {
                container.add_ours(&name, data);
            }
        }
    }
    container.add_ours(INDEX, index);
    AmpRecord::from_container(container).map(Some)
}

/// True if bytes hold a name of the section. No parameter's path reads so.
pub(super) fn names_section(bytes: &[u8]) -> bool {
    [VERSION_NAME, CHECKSUM].iter().any(|name| {
        let name = key(name).into_bytes();
        bytes.windows(name.len()).any(|part| part == name)
    })
}

/// The name of a tensor or a scalar of the section.
fn key(name: &str) -> String {
    format!("{SECTION}.{name}")
}
