//! Files of a scaler, a window or averages alone, in one word.

use burn::tensor::Bytes;
use burn_amp::{AccumulationWindow, AmpError, AmpRecord, Ema, GradScaler};
use std::path::Path;

/// What has a record. Named as the methods of `ScaledOptimizer`.
#[allow(clippy::wrong_self_convention)]
pub trait Files {
    fn record(&self) -> AmpRecord;

    fn take(&mut self, record: AmpRecord) -> Result<(), AmpError>;

    fn into_bytes(&self) -> Result<Bytes, AmpError> {
        self.record().into_bytes()
    }

    fn from_bytes(&mut self, bytes: Bytes) -> Result<(), AmpError> {
        self.take(AmpRecord::from_bytes(bytes)?)
    }

    /// The state, to be compared.
    #[allow(dead_code)]
    fn bits(&self) -> Bytes {
        self.into_bytes().unwrap()
    }

    fn save(&self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.record().save(path)
    }

    fn load(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.take(AmpRecord::load(path)?)
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
                    self.try_load_record(record)
                }
            }
        )*
    };
}

files! {
    GradScaler,
    AccumulationWindow,
    Ema,
}

impl Files for AmpRecord {
    fn record(&self) -> AmpRecord {
        self.clone()
    }

    fn take(&mut self, record: AmpRecord) -> Result<(), AmpError> {
        *self = record;
        Ok(())
    }
}
