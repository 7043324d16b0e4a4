use burn::train::Interrupter;
use std::sync::{OnceLock, atomic::AtomicBool};

use crate::error::AmpError;

/// Who ends a `Learner` run that fails, and why it failed. Used by `train`.
#[derive(Default)]
pub(crate) struct Ending {
    pub(crate) error: OnceLock<AmpError>,
    pub(crate) interrupter: OnceLock<Interrupter>,
    /// Whether a metric will report the error.
    pub(crate) watched: AtomicBool,
}
