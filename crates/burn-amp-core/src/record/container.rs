use burn::tensor::Bytes;
use burn_pack::{
    HEADER_SIZE, Header, MAX_METADATA_SIZE, MAX_TENSOR_COUNT, MAX_TENSOR_SIZE, Reader, Scalar,
    Tensor, Writer,
};
use std::collections::{BTreeMap, BTreeSet};
use std::{fs, path::Path};

use super::file::{saved_path, write_whole};
use crate::{error::AmpError, values::ParamTensors};

/// The version of the section that this release writes, and the newest that it reads.
const VERSION: u64 = 1;
const PREFIX: &str = "burn_amp.";
const VERSION_KEY: &str = "burn_amp.version";
const CHECKSUM_KEY: &str = "burn_amp.checksum";
/// What the section holds, and the state of the loss scale, if there is one.
const KIND: &str = "kind";
pub(super) const STATE: &str = "state";

/// How a version and a checksum go on after their names, in the bytes of a sealed head. In no text: no parameter's name reads so.
const NUMBER: &[u8] = b"\xa1\x64UInt";

/// A burnpack in memory, with or without our section. A clone shares the tensors.
#[derive(Clone, Default)]
pub struct Container {
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) scalars: BTreeMap<String, Scalar>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Where the container came from, for messages.
    pub(super) origin: String,
    /// Handles to the memory of tensors that are not read yet, so that nobody changes them in place until then.
    pub(super) held: Vec<ParamTensors>,
}

impl Container {
    pub(crate) fn empty() -> Self {
        Self {
            origin: "memory".to_string(),
            ..Self::default()
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
        let tensors = reader.into_tensors();
        container.extend(tensors.map_err(|error| container.damaged(error.to_string()))?);
        let Some(expected) = expected else {
            return Ok(container);
        };
        container.scalars.remove(CHECKSUM_KEY);
        let found = container.checksum()?;
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
    pub(super) fn load(path: &Path) -> Result<Self, AmpError> {
        let path = saved_path(path);
        let origin = origin_of(&path);
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

    /// The names of states that are here and begin so, without their beginning.
    pub(super) fn names_from(&self, start: &str) -> BTreeSet<String> {
        let keys = self.metadata.keys().map(String::as_str);
        let fields = self.tensors.keys();
        let fields = fields.filter_map(|name| Some(name.split_once('.')?.1));
        let start = key_of(start);
        let names = keys.chain(fields);
        let names = names.filter_map(|name| name.strip_prefix(&start));
        names.map(String::from).collect()
    }

    /// Refuses what is left of our own after all that is known was taken out: it must not be lost in silence.
    pub(crate) fn check_rest(&self) -> Result<(), AmpError> {
        let keys = self.scalars.keys().chain(self.metadata.keys());
        let keys = keys.filter(|key| key.starts_with(PREFIX));
        let is_ours = |name: &&String| {
            let field = name.split_once('.').map_or("", |(_, field)| field);
            field.starts_with(PREFIX)
        };
        let mut names = keys.chain(self.tensors.keys().filter(is_ours));
        match names.next() {
            Some(name) => Err(later(&self.origin, &format!("`{name}`"))),
            None => Ok(()),
        }
    }

    /// Adds tensors.
    pub(super) fn extend(&mut self, tensors: impl IntoIterator<Item = Tensor>) {
        let named = tensors.into_iter();
        (self.tensors).extend(named.map(|tensor| (tensor.name.clone(), tensor)));
    }

    /// Takes out the tensors with such a name.
    pub(super) fn split_tensors(&mut self, chosen: impl Fn(&str) -> bool) -> Vec<Tensor> {
        let taken = self.tensors.extract_if(.., |name, _| chosen(name));
        taken.map(|(_, tensor)| tensor).collect()
    }

    /// Takes out all that is stored of one parameter: its tensors and scalars are given back.
    pub fn take_of(&mut self, id: &str) -> (Vec<Tensor>, Vec<(String, Scalar)>) {
        let of_it = |name: &str| name.split_once('.').is_some_and(|(of, _)| of == id);
        self.metadata.remove(id);
        let scalars = self.scalars.extract_if(.., |name, _| of_it(name));
        let scalars = scalars.collect();
        (self.split_tensors(of_it), scalars)
    }

    /// The error for contents that contradict each other.
    pub(crate) fn damaged(&self, reason: impl Into<String>) -> AmpError {
        AmpError::damaged(&self.origin, reason)
    }

    /// The bytes of a tensor of this.
    pub(super) fn bytes_of(&self, tensor: &Tensor) -> Result<Bytes, AmpError> {
        let bytes = tensor.to_bytes();
        bytes.map_err(|error| self.damaged(error.to_string()))
    }

    /// Without the parameters that a scalar of this name marks: they have nothing else but their rank and path.
    pub(crate) fn without_marked(mut self, mark: &str) -> Self {
        let id = |name: &String| Some(name.strip_suffix(mark)?.strip_suffix('.')?.to_string());
        let marked: Vec<String> = self.scalars.keys().filter_map(id).collect();
        for id in marked {
            self.take_of(&id);
        }
        self
    }

    /// The first of our tensors or scalars that `other`, which Burn has loaded from this, does not hold bit for bit, and why.
    pub(crate) fn first_missing_in(&self, other: &Self) -> Result<Option<String>, AmpError> {
        const OTHER: &str = "it was saved by another optimizer or with other settings";
        for (name, tensor) in &self.tensors {
            let Some(found) = other.tensors.get(name) else {
                return Ok(Some(format!(
                    "its tensor `{name}` is unknown here: {OTHER}"
                )));
            };
            if found.dtype != tensor.dtype {
                let (stored, loaded) = (tensor.dtype.name(), found.dtype.name());
                return Ok(Some(format!(
                    "its tensor `{name}` is {stored}, and Burn would load it as {loaded}, the default float dtype of `Device::default()`. For a \
                     model in f64, call `Device::default().configure(FloatDType::F64)` at the start of the program. `MasterWeights` keep the \
                     state of a model in half precision in f32"
                )));
            }
            if found.shape != tensor.shape || *self.bytes_of(found)? != *self.bytes_of(tensor)? {
                return Ok(Some(format!(
                    "its tensor `{name}` would be changed: {OTHER}"
                )));
            }
        }
        let mut scalars = self.scalars.iter();
        let lost = scalars.find(|(name, value)| other.scalars.get(*name) != Some(*value));
        Ok(lost.map(|(name, _)| format!("its value `{name}` is unknown here: {OTHER}")))
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
        let origin = origin_of(path);
        self.origin.clone_from(&origin);
        let writer = self.into_writer()?.auto_extension(false);
        let target = match path.extension() {
            Some(_) => path.to_path_buf(),
            None => path.with_extension(burn_pack::EXTENSION),
        };
        write_whole(&target, |scratch| {
            writer.write_to_file_in_place(scratch)?;
            // What Burn's reader refuses must not take the place of a file that it reads.
            Reader::from_file_exact(scratch).map(drop)
        })
        .map_err(|reason| AmpError::record_io(origin, reason))
    }

    fn into_writer(mut self) -> Result<Writer, AmpError> {
        let count = self.tensors.len();
        let mut tensors = self.tensors.values();
        let large = tensors.find(|t| t.byte_len() > MAX_TENSOR_SIZE);
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
            return Err(AmpError::record_io(self.origin, reason));
        }
        if self.metadata.contains_key(&key_of(KIND)) {
            let version = Scalar::UInt(VERSION);
            self.scalars.insert(VERSION_KEY.to_string(), version);
            // That reads all tensors: their memory need not be held any longer.
            let checksum = Scalar::UInt(self.checksum()?.into());
            self.scalars.insert(CHECKSUM_KEY.to_string(), checksum);
        }
        let mut writer = Writer::new(self.tensors.into_values().collect());
        for (key, value) in &self.scalars {
            writer = writer.with_scalar(key, *value);
        }
        for (key, value) in &self.metadata {
            writer = writer.with_metadata(key, value);
        }
        Ok(writer)
    }
}

/// A file's name in messages.
fn origin_of(path: &Path) -> String {
    match path.as_os_str().is_empty() {
        true => "an empty path".to_string(),
        false => path.display().to_string(),
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

/// The error for contents that this release does not know, in a container that is whole.
pub(super) fn later(origin: &str, what: &str) -> AmpError {
    let reason = format!(
        "{what}: this release does not know it; update burn-amp to load what a later one has saved"
    );
    AmpError::foreign(origin, reason)
}

/// The name of our own by which a container has something.
pub(super) fn key_of(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Whether bytes in which a reader finds no section hold one all the same: a damaged length can make it stop before that.
fn hides_section(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(HEADER_SIZE + MAX_METADATA_SIZE as usize)];
    (0..head.len()).any(|at| {
        let (name, value) = head.split_at(at);
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
