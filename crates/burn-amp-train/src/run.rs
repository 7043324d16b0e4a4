//! What ends a run, and whether something has.

use burn::train::train::WorkerFailure;
use burn::train::{Interrupter, TrainingError};
use std::ops::DerefMut;
use std::sync::Mutex;

use burn_amp_core::internal::{learner, locked};
use burn_amp_core::{AmpError, MixedPrecision};

/// The state of a training, which clones of one `MixedPrecision` share.
#[derive(Default)]
pub(super) struct State {
    pub(super) error: Option<AmpError>,
    pub(super) interrupter: Option<Interrupter>,
}

/// Ends the run with an error, through the interrupter. The first error of a run stays.
pub(super) fn fail(amp: &MixedPrecision, error: AmpError) -> Result<(), AmpError> {
    log::error!("{error}");
    let interrupter = {
        let mut state = state(amp);
        state.error.get_or_insert_with(|| error.clone());
        state.interrupter.clone()
    };
    match interrupter {
        Some(interrupter) => {
            interrupter.fail(TrainingError::Workers(vec![WorkerFailure {
                device_id: 0,
                message: error.to_string(),
            }]));
            Ok(())
        }
        None => Err(error),
    }
}

/// Forgets a failure: another run begins, or a model takes a step that has not failed.
pub(super) fn forget_failure(amp: &MixedPrecision) {
    let failed = state(amp).error.take();
    if failed.is_some() {
        reset(amp);
    }
}

/// Lets the interrupter end a run again. The error stays.
pub(super) fn reset(amp: &MixedPrecision) {
    let interrupter = state(amp).interrupter.clone();
    interrupter.into_iter().for_each(|one| one.reset());
}

pub(super) fn state(amp: &MixedPrecision) -> impl DerefMut<Target = State> {
    locked(learner::state_of::<Mutex<State>>(amp))
}
