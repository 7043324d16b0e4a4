use burn::optim::StateSink;
use burn::tensor::{Bytes, TensorData};
use burn_pack::{HEADER_SIZE, MAX_METADATA_SIZE, Reader, Scalar, Tensor, Writer};
use crc32fast::Hasher;
use serde::Serialize;
use std::{collections::BTreeMap, fs, path::Path};

use super::file::{saved_path, write_whole};
use super::{names_of, section::names_section};
use crate::error::AmpError;

/// A burnpack in memory. A clone shares the tensors.
#[derive(Clone, Default)]
pub struct Container {
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) scalars: BTreeMap<String, Scalar>,
    metadata: BTreeMap<String, String>,
    /// Its name in messages.
    pub(super) origin: String,
}

impl Container {
    pub(super) fn empty_of(origin: &str) -> Self {
        Self {
            origin: origin.to_string(),
            ..Self::default()
        }
    }

    /// Reads a container. `origin` names it in errors.
    pub(crate) fn from_bytes(bytes: Bytes, origin: &str) -> Result<Self, AmpError> {
        let bytes = bytes.shared();
        let mut container = Self::empty_of(origin);
        let reader = Reader::from_bytes(bytes.clone());
        container.read(reader.map_err(|error| container.damaged(error.to_string()))?)?;
        let head = &bytes[..bytes.len().min(HEADER_SIZE + MAX_METADATA_SIZE as usize)];
        // A damaged length can make a reader stop before the section.
        match !container.has_section() && names_section(head) {
            true => Err(container.damaged("a part of its head is unreadable")),
            false => Ok(container),
        }
    }

    fn read(&mut self, reader: Reader) -> Result<(), AmpError> {
        self.scalars = reader.scalars().clone();
        self.check_version()?;
        self.metadata = reader.metadata().clone();
        let tensors = reader.into_tensors();
        self.extend(tensors.map_err(|error| self.damaged(error.to_string()))?);
        Ok(())
    }

    /// Reads a whole file. A path without extension gets `.bpk`.
    pub(super) fn load(path: &Path) -> Result<Self, AmpError> {
        let path = saved_path(path);
        let origin = origin_of(&path);
        // The head alone first: what is refused for it may be large.
        match Reader::from_file_exact(&path) {
            Ok(reader) => Self::empty_of(&origin).read(reader)?,
            // Told apart below: a file that is not there, and one that is too short.
            Err(burn_pack::Error::IoError(_)) => {}
            Err(error) => return Err(AmpError::damaged(origin, error.to_string())),
        }
        let bytes = fs::read(&path);
        let bytes = bytes.map_err(|error| AmpError::record_io(&origin, error.to_string()))?;
        Self::from_bytes(Bytes::from_bytes_vec(bytes), &origin)
    }

    /// Adds tensors.
    pub(super) fn extend(&mut self, tensors: impl IntoIterator<Item = Tensor>) {
        let named = tensors.into_iter();
        (self.tensors).extend(named.map(|tensor| (tensor.name.clone(), tensor)));
    }

    /// Takes out all that is stored of one parameter.
    pub fn take_of(&mut self, id: &str) -> Self {
        self.metadata.remove(id);
        let tensors = self.tensors.extract_if(names_of(id), |_, _| true);
        let scalars = self.scalars.extract_if(names_of(id), |_, _| true);
        Self {
            tensors: tensors.collect(),
            scalars: scalars.collect(),
            ..Self::empty_of(&self.origin)
        }
    }

    /// Gives tensors and scalars to Burn, as the state of an optimizer.
    pub fn flatten(self, out: &mut StateSink) -> Result<(), AmpError> {
        out.scalars.extend(self.scalars);
        for tensor in self.tensors.into_values() {
            let parts = tensor.into_parts();
            let (name, dtype, shape, _, bytes) =
                parts.map_err(|error| AmpError::damaged(&self.origin, error.to_string()))?;
            (out.tensors).push((name, TensorData::from_bytes(bytes, shape, dtype)));
        }
        Ok(())
    }

    /// The error for contents that contradict each other.
    pub(super) fn damaged(&self, reason: impl Into<String>) -> AmpError {
        AmpError::damaged(&self.origin, reason)
    }

    /// The bytes of a tensor of this.
    pub(super) fn bytes_of(&self, tensor: &Tensor) -> Result<Bytes, AmpError> {
        let bytes = tensor.to_bytes();
        bytes.map_err(|error| self.damaged(error.to_string()))
    }

    /// CRC-32 over all that is here, by name. Waits for the device: reads all tensors.
    pub(super) fn checksum(&self) -> Result<u32, AmpError> {
        fn add(hasher: &mut Hasher, head: impl Serialize) {
            hasher.update(&serde_json::to_vec(&head).expect("texts and numbers"));
        }
        let mut hasher = Hasher::new();
        for tensor in self.tensors.values() {
            let bytes = self.bytes_of(tensor)?;
            let sizes: &[usize] = &tensor.shape;
            let dtype = tensor.dtype.name();
            add(
                &mut hasher,
                (&tensor.name, dtype, sizes, tensor.param_id, bytes.len()),
            );
            hasher.update(&bytes);
        }
        add(&mut hasher, (&self.scalars, &self.metadata));
        Ok(hasher.finalize())
    }

    /// Drops the parameters that a scalar of this name marks: they have nothing else but their rank and path.
    pub(super) fn without_marked(mut self, mark: &str) -> Self {
        let id = |name: &String| Some(name.strip_suffix(mark)?.strip_suffix('.')?.to_string());
        let marked: Vec<String> = self.scalars.keys().filter_map(id).collect();
        for id in marked {
            self.take_of(&id);
        }
        self
    }

    pub(super) fn into_bytes(self) -> Result<Bytes, AmpError> {
        let origin = self.origin.clone();
        let written = self.into_writer().into_bytes().map(Bytes::shared);
        // Nobody can use what Burn's reader refuses.
        let read = written.and_then(|bytes| Reader::from_bytes(bytes.clone()).map(|_| bytes));
        read.map_err(|error| AmpError::record_io(origin, error.to_string()))
    }

    /// Writes beside the destination, checks, syncs and renames: the old file is whole until the new one is.
    pub(super) fn save(self, path: &Path) -> Result<(), AmpError> {
        let target = match path.extension() {
            Some(_) => path.to_path_buf(),
            None => path.with_extension(burn_pack::EXTENSION),
        };
        let writer = self.into_writer().auto_extension(false);
        write_whole(&target, |scratch| {
            writer.write_to_file_in_place(scratch)?;
            // What Burn's reader refuses must not take the place of a file that it reads.
            Reader::from_file_exact(scratch).map(drop)
        })
        .map_err(|reason| AmpError::record_io(origin_of(path), reason))
    }

    fn into_writer(self) -> Writer {
        let mut writer = Writer::new(self.tensors.into_values().collect());
        for (name, value) in &self.scalars {
            writer = writer.with_scalar(name, *value);
        }
        for (name, value) in &self.metadata {
            writer = writer.with_metadata(name, value);
        }
        writer
    }
}

/// A file's name in messages.
fn origin_of(path: &Path) -> String {
    match path.as_os_str().is_empty() {
        true => "an empty path".to_string(),
        false => path.display().to_string(),
    }
}
