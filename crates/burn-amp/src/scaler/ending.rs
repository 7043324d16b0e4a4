use burn::train::Interrupter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::AmpError;

/// Who ends a `Learner` run that fails, and why it failed. Used by `train`.
#[derive(Default)]
pub(crate) struct Ending {
    state: Mutex<EndingState>,
}

#[derive(Default)]
pub(crate) struct EndingState {
    pub(crate) error: Option<AmpError>,
    pub(crate) interrupter: Option<Interrupter>,
}

impl Ending {
    pub(crate) fn state(&self) -> MutexGuard<'_, EndingState> {
        // Nothing in here is left half written by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
