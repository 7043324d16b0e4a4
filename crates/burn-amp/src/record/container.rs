use burn::tensor::Bytes;
use burn_pack::{HEADER_SIZE, Header, Reader, Scalar, Tensor, Writer};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use super::checksum::checksum;
use crate::error::AmpError;

/// The version of the section that this release writes, and the newest that it reads.
const VERSION: u64 = 1;
const PREFIX: &str = "burn_amp.";
const VERSION_KEY: &str = "burn_amp.version";
const CHECKSUM_KEY: &str = "burn_amp.checksum";
const KIND_KEY: &str = "burn_amp.kind";
const STATE_KEY: &str = "burn_amp.state";

/// Whose state a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    GradScaler,
    ScaledOptimizer,
    AccumulationWindow,
    Ema,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::GradScaler => "grad_scaler",
            Self::ScaledOptimizer => "scaled_optimizer",
            Self::AccumulationWindow => "accumulation_window",
            Self::Ema => "ema",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [
            Self::GradScaler,
            Self::ScaledOptimizer,
            Self::AccumulationWindow,
            Self::Ema,
        ]
        .into_iter()
        .find(|kind| kind.name() == name)
    }

    /// What a container of this kind holds and what reads it, for messages.
    fn contents(self) -> &'static str {
        match self {
            Self::GradScaler => "a scaler's state only; load it with `GradScaler::load`",
            Self::ScaledOptimizer => "the state of a `ScaledOptimizer`",
            Self::AccumulationWindow => {
                "an accumulation window only; load it with `AccumulationWindow::load`"
            }
            Self::Ema => "averages of weights only; load them with `Ema::load`",
        }
    }
}

/// A burnpack in memory, with or without our section.
pub(crate) struct Container {
    tensors: Vec<Tensor>,
    scalars: BTreeMap<String, Scalar>,
    metadata: BTreeMap<String, String>,
    section: Option<(Kind, String)>,
    origin: String,
}

impl Container {
    pub(crate) fn empty() -> Self {
        Self {
            tensors: Vec::new(),
            scalars: BTreeMap::new(),
            metadata: BTreeMap::new(),
            section: None,
            origin: "memory".to_string(),
        }
    }

    /// Reads a container and checks its section, if it has one. `origin` names it in errors.
    pub(crate) fn from_bytes(bytes: Bytes, origin: &str) -> Result<Self, AmpError> {
        let damaged = |reason: String| AmpError::DamagedRecord {
            origin: origin.to_string(),
            reason,
        };
        let marked = mentions_section(&bytes);
        let reader = Reader::from_bytes(bytes).map_err(|error| damaged(error.to_string()))?;
        let mut scalars = reader.scalars().clone();
        let mut metadata = reader.metadata().clone();
        let tensors = reader
            .into_tensors()
            .map_err(|error| damaged(error.to_string()))?;

        let ours = |key: &&String| key.starts_with(PREFIX);
        let keys = scalars.keys().filter(ours).count() + metadata.keys().filter(ours).count();
        if keys == 0 && marked {
            return Err(damaged("a part of its head is unreadable".to_string()));
        }
        if keys == 0 {
            return Ok(Self {
                tensors,
                scalars,
                metadata,
                section: None,
                origin: origin.to_string(),
            });
        }
        // Every part is looked for: a damaged name must not make the section look absent.
        let version = scalars.get(VERSION_KEY).copied();
        match version {
            Some(Scalar::UInt(VERSION)) => {}
            Some(Scalar::UInt(found)) if found > VERSION => {
                return Err(AmpError::NewerRecord {
                    origin: origin.to_string(),
                    found,
                    supported: VERSION,
                });
            }
            other => return Err(damaged(format!("`{VERSION_KEY}` is {other:?}"))),
        }
        let expected = match scalars.remove(CHECKSUM_KEY) {
            Some(Scalar::UInt(expected)) => expected,
            other => return Err(damaged(format!("`{CHECKSUM_KEY}` is {other:?}"))),
        };
        let found = checksum(&tensors, &scalars, &metadata, origin)?;
        if u64::from(found) != expected {
            return Err(damaged(format!(
                "its checksum is {found:08x}, but {expected:08x} was stored"
            )));
        }
        let missing = |key: &str| damaged(format!("`{key}` is missing"));
        let kind = metadata.remove(KIND_KEY).ok_or_else(|| missing(KIND_KEY))?;
        let kind = Kind::parse(&kind).ok_or_else(|| damaged(format!("its kind is `{kind}`")))?;
        let state = metadata
            .remove(STATE_KEY)
            .ok_or_else(|| missing(STATE_KEY))?;
        scalars.remove(VERSION_KEY);
        Ok(Self {
            tensors,
            scalars,
            metadata,
            section: Some((kind, state)),
            origin: origin.to_string(),
        })
    }

    /// Reads a whole file. A path without extension gets `.bpk`.
    pub(crate) fn load(path: &Path) -> Result<Self, AmpError> {
        let path = resolve(path);
        let origin = path.display().to_string();
        let bytes = fs::read(&path).map_err(|error| AmpError::RecordIo {
            origin: origin.clone(),
            reason: error.to_string(),
        })?;
        Self::from_bytes(Bytes::from_bytes_vec(bytes), &origin)
    }

    pub(crate) fn with_section<S: Serialize>(mut self, kind: Kind, state: &S) -> Self {
        // Plain data without maps or foreign types: there is no way for it to fail.
        let json = serde_json::to_string(state).expect("a record is plain data");
        self.section = Some((kind, json));
        self
    }

    /// Whose state is in the section, if there is one.
    pub(crate) fn kind(&self) -> Option<Kind> {
        self.section.as_ref().map(|(kind, _)| *kind)
    }

    /// The state in the section, if there is one.
    pub(crate) fn section<S: DeserializeOwned>(&self) -> Result<Option<S>, AmpError> {
        let Some((_, state)) = &self.section else {
            return Ok(None);
        };
        let state = serde_json::from_str(state).map_err(|error| self.damaged(error.to_string()))?;
        Ok(Some(state))
    }

    /// Keeps a further state beside the section, under a key of its own that starts as ours do.
    pub(crate) fn set_state<S: Serialize>(&mut self, key: &str, state: &S) {
        let json = serde_json::to_string(state).expect("a record is plain data");
        self.metadata.insert(key.to_string(), json);
    }

    /// Takes out a further state, if there is one.
    pub(crate) fn take_state<S: DeserializeOwned>(
        &mut self,
        key: &str,
    ) -> Result<Option<S>, AmpError> {
        let Some(json) = self.metadata.remove(key) else {
            return Ok(None);
        };
        let state = serde_json::from_str(&json)
            .map_err(|error| self.damaged(format!("`{key}`: {error}")))?;
        Ok(Some(state))
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
        AmpError::DamagedRecord {
            origin: self.origin.clone(),
            reason: reason.into(),
        }
    }

    /// The error for a container without `wanted`: says what it holds instead.
    pub(crate) fn foreign(&self, wanted: &str) -> AmpError {
        let contents = match self.kind() {
            Some(kind) => kind.contents(),
            None => "nothing of this crate",
        };
        AmpError::ForeignRecord {
            origin: self.origin.clone(),
            reason: format!("it holds {wanted}, but {contents}"),
        }
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

    /// The container without our section.
    pub(crate) fn into_plain_bytes(self) -> Result<Bytes, AmpError> {
        Self {
            section: None,
            ..self
        }
        .into_bytes()
    }

    pub(crate) fn into_bytes(self) -> Result<Bytes, AmpError> {
        let origin = self.origin.clone();
        self.into_writer()?
            .into_bytes()
            .map_err(|error| AmpError::RecordIo {
                origin,
                reason: error.to_string(),
            })
    }

    /// Writes beside the destination, syncs and renames: the old file is whole until the new one is.
    pub(crate) fn save(self, path: &Path) -> Result<(), AmpError> {
        self.into_writer()?
            .write_to_file(path)
            .map_err(|error| AmpError::RecordIo {
                origin: path.display().to_string(),
                reason: error.to_string(),
            })
    }

    fn into_writer(self) -> Result<Writer, AmpError> {
        let Self {
            tensors,
            mut scalars,
            mut metadata,
            section,
            origin,
        } = self;
        if let Some((kind, state)) = section {
            metadata.insert(KIND_KEY.to_string(), kind.name().to_string());
            metadata.insert(STATE_KEY.to_string(), state);
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

/// The file that `save` would have written for this path, or else the path itself.
///
/// Burn's readers look the other way round, and then find a folder or an older file of that name.
fn resolve(path: &Path) -> PathBuf {
    let saved = path.with_extension(burn_pack::EXTENSION);
    if path.extension().is_none() && (saved.is_file() || !path.exists()) {
        saved
    } else {
        path.to_path_buf()
    }
}

/// Whether the head of a container names our section, readable or not.
///
/// A damaged length in it can make a reader stop before the section, as if there were none.
fn mentions_section(bytes: &[u8]) -> bool {
    let Some(header) = bytes.get(..HEADER_SIZE) else {
        return false;
    };
    let Ok(header) = Header::from_bytes(header) else {
        return false;
    };
    let end = (HEADER_SIZE + header.metadata_size as usize).min(bytes.len());
    bytes[HEADER_SIZE..end]
        .windows(PREFIX.len())
        .any(|window| window == PREFIX.as_bytes())
}
