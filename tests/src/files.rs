//! Files of a scaler, a window or averages alone, in one word.

use crate::prelude::*;

/// What has a record. Named as the methods of `ScaledOptimizer`.
#[allow(clippy::wrong_self_convention)]
pub trait Files {
    /// The state as it is now.
    fn record(&self) -> AmpRecord;

    /// Takes the state over.
    fn take(&mut self, record: AmpRecord) -> Result<(), AmpError>;

    /// Loads a record from bytes.
    fn from_bytes(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        self.take(AmpRecord::from_bytes(bytes)?)
    }

    /// The state, to be compared.
    fn bits(&self) -> Bytes {
        self.record().into_bytes().unwrap()
    }
}

macro_rules! files {
    ($($owner:ty,)*) => {
        $(
            impl Files for $owner {
                fn record(&self) -> AmpRecord {
                    self.to_record()
                }

                fn take(&mut self, record: AmpRecord) -> Result<(), AmpError> {
                    self.load_record(record)
                }
            }
        )*
    };
}

files! { GradScaler, Scaler, AccumulationWindow, Ema, }

impl Files for AmpRecord {
    fn record(&self) -> AmpRecord {
        self.clone()
    }

    fn take(&mut self, record: AmpRecord) -> Result<(), AmpError> {
        *self = record;
        Ok(())
    }
}
