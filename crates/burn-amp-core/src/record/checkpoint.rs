//! The record in a `Learner`'s checkpoint: in the file of the optimizer, as the state of a parameter that no model has. Burn's Learner stores
//! nothing else, and asks nobody.

use burn::tensor::Bytes;

use super::{AmpRecord, Container};
use crate::error::AmpError;

/// The parameter that no model has.
pub const ID: u64 = u64::from_le_bytes(*b"burn_amp");
/// The name of its only tensor: the bytes of a burnpack, with a version and a checksum, each inverted, so that nothing in them is
/// taken for a section of the file around them.
pub const TENSOR: &str = "scaler";

#[doc(hidden)]
impl AmpRecord {
    /// The bytes of that tensor.
    pub fn into_checkpoint(self) -> Result<Bytes, AmpError> {
        Ok(inverted(&self.into_bytes()?))
    }

    /// The record of such bytes.
    pub fn from_checkpoint(bytes: &[u8], origin: &str) -> Result<Self, AmpError> {
        let record = Self::from_container(Container::from_bytes(inverted(bytes), origin)?)?;
        match record.counters() {
            Some(_) => Ok(record),
            None => Err(record.foreign("no state of a loss scaler")),
        }
    }
}

impl Container {
    /// Takes the record out of the file of a `Learner`'s optimizer; none if it is that of a run without scaler.
    pub(super) fn take_checkpoint(&mut self) -> Result<Option<AmpRecord>, AmpError> {
        let (mut tensors, _) = self.take_of(&ID.to_string());
        let Some(tensor) = tensors.pop() else {
            return Ok(None);
        };
        let bytes = self.bytes_of(&tensor)?;
        AmpRecord::from_checkpoint(&bytes, &self.origin).map(Some)
    }
}

fn inverted(bytes: &[u8]) -> Bytes {
    Bytes::from_bytes_vec(bytes.iter().map(|byte| !byte).collect())
}
