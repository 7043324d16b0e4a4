use burn::tensor::Bytes;
use burn_pack::{
    HEADER_SIZE, Header, MAX_METADATA_SIZE, MAX_TENSOR_COUNT, MAX_TENSOR_SIZE, Reader, Scalar,
    Tensor, Writer,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{
    checksum::checksum,
    file::{saved_path, write_whole},
    state::{NO_VALUES, State},
};
use crate::{error::AmpError, param_tensors::ParamTensors};

/// The version of the section that this release writes, and the newest that it reads.
const VERSION: u64 = 1;
const PREFIX: &str = "burn_amp.";
const VERSION_KEY: &str = "burn_amp.version";
const CHECKSUM_KEY: &str = "burn_amp.checksum";
/// What the section holds, and the state of the loss scale, if there is one.
const KIND: &str = "kind";
const STATE: &str = "state";
/// What the names of hooks' states begin with.
const HOOK: &str = "hook.";

/// How a version and a checksum go on after their names, in the bytes of a sealed head. In no text: no parameter's name reads so.
const NUMBER: &[u8] = b"\xa1\x64UInt";

/// A burnpack in memory, with or without our section. A clone shares the tensors.
#[derive(Clone)]
pub(crate) struct Container {
    tensors: Vec<Tensor>,
    scalars: BTreeMap<String, Scalar>,
    metadata: BTreeMap<String, String>,
    origin: String,
    /// Handles to the memory of tensors that are not read yet, so that nobody changes them in place until then.
    held: Vec<ParamTensors>,
}

impl Container {
    pub(crate) fn empty() -> Self {
        Self {
            tensors: Vec::new(),
            scalars: BTreeMap::new(),
            metadata: BTreeMap::new(),
            origin: "memory".to_string(),
            held: Vec::new(),
        }
    }

    /// Reads a container and checks its section, if it has one. `origin` names it in errors.
    pub(crate) fn from_bytes(bytes: Bytes, origin: &str) -> Result<Self, AmpError> {
        let bytes = bytes.shared();
        let mut container = Self {
            origin: origin.to_string(),
            ..Self::empty()
        };
        let reader = Reader::from_bytes(bytes.clone());
        let reader = reader.map_err(|error| container.damaged(error.to_string()))?;
        let expected = read_seal(&reader, origin)?;
        if expected.is_none() && hides_section(&bytes) {
            return Err(container.damaged("a part of its head is unreadable"));
        }
        container.scalars = reader.scalars().clone();
        container.metadata = reader.metadata().clone();
        container.tensors =
            (reader.into_tensors()).map_err(|error| container.damaged(error.to_string()))?;
        let Some(expected) = expected else {
            return Ok(container);
        };
        container.scalars.remove(CHECKSUM_KEY);
        let found = checksum(
            &container.tensors,
            &container.scalars,
            &container.metadata,
            origin,
        )?;
        if u64::from(found) != expected {
            return Err(container.damaged(format!(
                "its checksum is {found:08x}, but {expected:08x} was stored"
            )));
        }
        container.scalars.remove(VERSION_KEY);
        let has = |name: &str| container.metadata.contains_key(&key_of(name));
        if !has(KIND) || !has(STATE) {
            return Err(container.damaged("its kind or its state is missing"));
        }
        Ok(container)
    }

    /// Reads a whole file. A path without extension gets `.bpk`.
    pub(crate) fn load(path: &Path) -> Result<Self, AmpError> {
        let path = saved_path(path);
        let origin = path.display().to_string();
        // The head alone first: what is refused for it may be large.
        match Reader::from_file_exact(&path) {
            Ok(reader) => {
                read_seal(&reader, &origin)?;
            }
            // Told apart below: a file that is not there, and one that is too short.
            Err(burn_pack::Error::IoError(_)) => {}
            Err(error) => return Err(AmpError::damaged(origin, error.to_string())),
        }
        let bytes = fs::read(&path);
        let bytes = bytes.map_err(|error| AmpError::record_io(&origin, error.to_string()))?;
        Self::from_bytes(Bytes::from_bytes_vec(bytes), &origin)
    }

    /// Makes it a sealed one of this kind.
    pub(super) fn seal_as(&mut self, kind: &str) {
        self.metadata.insert(key_of(KIND), kind.to_string());
        // Every release looks for one, and reads it where there is a loss scale.
        let state = self.metadata.entry(key_of(STATE));
        state.or_insert_with(|| "null".to_string());
    }

    /// Takes out the kind of a sealed one.
    pub(super) fn take_kind(&mut self) -> Option<String> {
        self.metadata.remove(&key_of(KIND))
    }

    /// Adds a state. On some devices its tensors are read when the container is written.
    pub(super) fn put_state(&mut self, name: &str, tensors: Option<&str>, state: &State) {
        if state.json != NO_VALUES {
            self.metadata.insert(key_of(name), state.json.clone());
        }
        if let Some(field) = tensors {
            self.put_params(&state.tensors, &format!(".{}", key_of(field)));
        }
    }

    /// Takes out a state, if there is one.
    pub(super) fn take_state(
        &mut self,
        name: &str,
        tensors: Option<&str>,
    ) -> Result<Option<State>, AmpError> {
        let tensors = match tensors {
            Some(field) => self.take_params(&format!(".{}", key_of(field)))?,
            None => ParamTensors::default(),
        };
        let json = self.metadata.remove(&key_of(name));
        let is_there = json.is_some() || tensors.len() > 0;
        let json = json.unwrap_or_else(|| NO_VALUES.to_string());
        Ok(is_there.then_some(State { json, tensors }))
    }

    /// Adds the state of a hook.
    pub(super) fn put_hook(&mut self, name: &str, state: &State) {
        let name = format!("{HOOK}{name}");
        self.put_state(&name, Some(&name), state);
    }

    /// Takes out the states of all hooks, by their names.
    pub(super) fn take_hooks(&mut self) -> Result<BTreeMap<String, State>, AmpError> {
        let prefix = key_of(HOOK);
        let keys = self.metadata.keys().map(String::as_str);
        let tensors = self.tensors.iter().map(|tensor| &tensor.name);
        let fields = tensors.filter_map(|name| Some(name.split_once('.')?.1));
        let names = keys
            .chain(fields)
            .filter_map(|name| name.strip_prefix(&prefix));
        let names: BTreeSet<String> = names.map(String::from).collect();
        let mut states = BTreeMap::new();
        for name in names {
            let key = format!("{HOOK}{name}");
            if let Some(state) = self.take_state(&key, Some(&key))? {
                states.insert(name, state);
            }
        }
        Ok(states)
    }

    /// The error for a state that was refused.
    pub(super) fn refusal(&self, name: &str, reason: &str) -> AmpError {
        refusal(&self.origin, name, reason)
    }

    /// Refuses what is left of our own after all that is known was taken out: it must not be lost in silence.
    pub(crate) fn check_rest(&self) -> Result<(), AmpError> {
        let keys = self.scalars.keys().chain(self.metadata.keys());
        let mut names = keys.filter(|key| key.starts_with(PREFIX)).chain(
            self.tensors
                .iter()
                .map(|tensor| &tensor.name)
                .filter(|name| {
                    let field = name.split_once('.').map_or("", |(_, field)| field);
                    field.starts_with(PREFIX)
                }),
        );
        match names.next() {
            Some(name) => Err(self.later(&format!("`{name}`"))),
            None => Ok(()),
        }
    }

    /// Adds tensors.
    pub(crate) fn extend(&mut self, tensors: Vec<Tensor>) {
        self.tensors.extend(tensors);
        self.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Takes out the tensors with such a name.
    pub(crate) fn split_tensors(&mut self, chosen: impl Fn(&str) -> bool) -> Vec<Tensor> {
        let (taken, kept) = std::mem::take(&mut self.tensors)
            .into_iter()
            .partition(|tensor| chosen(&tensor.name));
        self.tensors = kept;
        taken
    }

    /// The error for contents that contradict each other.
    pub(crate) fn damaged(&self, reason: impl Into<String>) -> AmpError {
        AmpError::damaged(&self.origin, reason)
    }

    /// The error for contents that this release does not know, in a container that is whole.
    pub(super) fn later(&self, what: &str) -> AmpError {
        later(&self.origin, what)
    }

    /// Where the container came from, for messages.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    pub(crate) fn scalars(&self) -> &BTreeMap<String, Scalar> {
        &self.scalars
    }

    /// Without the parameters that a scalar of this name marks: they have nothing else but their rank and path.
    pub(crate) fn without_marked(mut self, mark: &str) -> Self {
        let id = |name: &String| Some(name.strip_suffix(mark)?.strip_suffix('.')?.to_string());
        let marked: Vec<String> = self.scalars.keys().filter_map(id).collect();
        for id in marked {
            let of_it = |name: &str| name.split_once('.').is_some_and(|(of, _)| of == id);
            self.scalars.retain(|name, _| !of_it(name));
            self.metadata.remove(&id);
        }
        self
    }

    /// The first of our tensors or scalars that `other` does not hold bit for bit, in words.
    pub(crate) fn first_missing_in(&self, other: &Self) -> Result<Option<String>, AmpError> {
        let bytes = |tensor: &Tensor| {
            tensor
                .to_bytes()
                .map_err(|error| self.damaged(error.to_string()))
        };
        for tensor in &self.tensors {
            let name = &tensor.name;
            // Both are sorted by name, as burnpack keeps them.
            let found = (other.tensors)
                .binary_search_by(|other| other.name.cmp(name))
                .map(|index| &other.tensors[index]);
            let Ok(found) = found else {
                return Ok(Some(format!("its tensor `{name}` is unknown here")));
            };
            if found.dtype != tensor.dtype {
                let (stored, loaded) = (tensor.dtype.name(), found.dtype.name());
                let text =
                    format!("its tensor `{name}` is {stored}, but would be loaded as {loaded}");
                return Ok(Some(text));
            }
            if found.shape != tensor.shape || *bytes(found)? != *bytes(tensor)? {
                return Ok(Some(format!("its tensor `{name}` would be changed")));
            }
        }
        let scalars = self.scalars.iter();
        let lost = scalars.filter(|(name, value)| other.scalars.get(*name) != Some(*value));
        Ok(lost
            .map(|(name, _)| format!("its value `{name}` is unknown here"))
            .next())
    }

    pub(crate) fn into_bytes(self) -> Result<Bytes, AmpError> {
        let origin = self.origin.clone();
        let refused = |reason: String| AmpError::record_io(&origin, reason);
        let bytes = self.into_writer()?.into_bytes();
        let bytes = bytes.map_err(|error| refused(error.to_string()))?;
        let size = Header::from_bytes(&bytes).map_or(0, |header| header.metadata_size);
        match size > MAX_METADATA_SIZE {
            true => Err(refused(format!(
                "its head would have {size} bytes, but Burn's reader takes at most {MAX_METADATA_SIZE}"
            ))),
            false => Ok(bytes),
        }
    }

    /// Writes beside the destination, checks, syncs and renames: the old file is whole until the new one is.
    pub(crate) fn save(mut self, path: &Path) -> Result<(), AmpError> {
        let origin = path.display().to_string();
        self.origin.clone_from(&origin);
        let writer = self.into_writer()?.auto_extension(false);
        write_whole(path, |scratch| {
            writer.write_to_file_in_place(scratch)?;
            // What Burn's reader refuses must not take the place of a file that it reads.
            Reader::from_file_exact(scratch).map(drop)
        })
        .map_err(|reason| AmpError::record_io(origin, reason))
    }

    /// Keeps handles to the memory of tensors until they are read.
    pub(crate) fn hold(&mut self, tensors: ParamTensors) {
        self.held.push(tensors);
    }

    fn into_writer(self) -> Result<Writer, AmpError> {
        let Self {
            tensors,
            mut scalars,
            metadata,
            origin,
            // Let go at the end, when the checksum has read them.
            held: _held,
        } = self;
        let count = tensors.len();
        let large = tensors.iter().find(|t| t.byte_len() > MAX_TENSOR_SIZE);
        let reason = match large {
            Some(tensor) => Some(format!(
                "its tensor `{}` has {} bytes, but Burn's reader takes at most {MAX_TENSOR_SIZE}",
                tensor.name,
                tensor.byte_len()
            )),
            None if count > MAX_TENSOR_COUNT => Some(format!(
                "it would hold {count} tensors, but Burn's reader takes at most {MAX_TENSOR_COUNT}"
            )),
            None => None,
        };
        if let Some(reason) = reason {
            return Err(AmpError::record_io(origin, reason));
        }
        if metadata.contains_key(&key_of(KIND)) {
            scalars.insert(VERSION_KEY.to_string(), Scalar::UInt(VERSION));
            let checksum = checksum(&tensors, &scalars, &metadata, &origin)?;
            scalars.insert(CHECKSUM_KEY.to_string(), Scalar::UInt(checksum.into()));
        }
        let mut writer = Writer::new(tensors);
        for (key, value) in &scalars {
            writer = writer.with_scalar(key, *value);
        }
        for (key, value) in &metadata {
            writer = writer.with_metadata(key, value);
        }
        Ok(writer)
    }
}

/// The error for a state that was refused: of a later release, if it has names that this one does not know.
pub(super) fn refusal(origin: &str, name: &str, reason: &str) -> AmpError {
    let what = format!("`{}`: {reason}", key_of(name));
    match reason.starts_with("unknown ") {
        true => later(origin, &what),
        false => AmpError::damaged(origin, what),
    }
}

fn later(origin: &str, what: &str) -> AmpError {
    let reason = format!(
        "{what}: this release does not know it; update burn-amp to load what a later one has saved"
    );
    AmpError::foreign(origin, reason)
}

/// The name of our own by which a container has something.
fn key_of(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Whether bytes in which a reader finds no section hold one all the same: a damaged length can make it stop before that.
fn hides_section(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(HEADER_SIZE + MAX_METADATA_SIZE as usize)];
    let numbers = head
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == NUMBER[0]);
    numbers
        .map(|(at, _)| head.split_at(at))
        .any(|(name, value)| {
            let names = [VERSION_KEY, CHECKSUM_KEY];
            value.starts_with(NUMBER) && names.iter().any(|key| name.ends_with(key.as_bytes()))
        })
}

/// The checksum in a head; none if there is no section of ours. Says first whether a later release has written it.
fn read_seal(reader: &Reader, origin: &str) -> Result<Option<u64>, AmpError> {
    let (scalars, metadata) = (reader.scalars(), reader.metadata());
    // Every part is looked for: a damaged name must not make the section look absent.
    let mut keys = scalars.keys().chain(metadata.keys());
    if !keys.any(|key| key.starts_with(PREFIX)) {
        return Ok(None);
    }
    let origin = origin.to_string();
    let (found, key) = match (scalars.get(VERSION_KEY), scalars.get(CHECKSUM_KEY)) {
        (Some(Scalar::UInt(VERSION)), Some(Scalar::UInt(checksum))) => return Ok(Some(*checksum)),
        (Some(Scalar::UInt(found)), _) if *found > VERSION => {
            return Err(AmpError::NewerRecord {
                origin,
                found: *found,
                supported: VERSION,
            });
        }
        (Some(Scalar::UInt(VERSION)), other) => (other, CHECKSUM_KEY),
        (other, _) => (other, VERSION_KEY),
    };
    let reason = format!("`{key}` is {found:?}");
    Err(AmpError::damaged(origin, reason))
}
