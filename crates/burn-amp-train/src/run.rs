//! What ends a run, and whether something has.

use burn::tensor::Device;
use burn::train::train::WorkerFailure;
use burn::train::{Interrupter, TrainingError};
use std::ops::DerefMut;
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

use super::steps::{Shared, State as Steps};
use burn_amp_core::internal::{is_remote, learner, locked};
use burn_amp_core::{AmpError, MixedPrecision};

/// The state of a training, which clones of one `MixedPrecision` share.
#[derive(Default)]
pub(super) struct State {
    pub(super) error: Option<AmpError>,
    pub(super) interrupter: Option<Interrupter>,
    /// The thread whose memory the gradients of the last step are in, if nobody has summed them since; none in `ddp`.
    pub(super) maker: Option<ThreadId>,
    /// The workers whose gradients are summed, and their devices.
    workers: Vec<(Worker, Device)>,
}

/// Says whether a worker is still there.
type Worker = Weak<Mutex<Steps>>;

/// Refuses a second worker on one remote device, whose sums its server could not tell apart.
pub(super) fn check_worker(
    amp: &MixedPrecision,
    steps: &Shared,
    device: &Device,
) -> Result<(), AmpError> {
    let own = Arc::downgrade(steps);
    let workers = &mut state(amp).workers;
    workers.retain(|(worker, _)| worker.strong_count() > 0);
    if workers.iter().any(|(worker, _)| worker.ptr_eq(&own)) {
        return Ok(());
    }
    if is_remote(device) && workers.iter().any(|(_, other)| other == device) {
        let device = format!("{device:?} twice");
        let allowed = "each remote device once: start a server with two (`burn-amp serve --device flex --device flex`), or two servers";
        return Err(AmpError::refused("devices", device, allowed));
    }
    workers.push((own, device.clone()));
    Ok(())
}

/// Ends the run with an error, through the interrupter. The first error of a run stays.
pub(super) fn fail(amp: &MixedPrecision, error: AmpError) -> Result<(), AmpError> {
    log::error!("{error}");
    let interrupter = {
        let mut state = state(amp);
        state.error.get_or_insert_with(|| error.clone());
        state.interrupter.clone()
    };
    let Some(interrupter) = interrupter else {
        return Err(error);
    };
    interrupter.fail(TrainingError::Workers(vec![WorkerFailure {
        device_id: 0,
        message: error.to_string(),
    }]));
    Ok(())
}

/// Forgets a failure: another run begins, or a model takes a step that has not failed.
pub(super) fn forget_failure(amp: &MixedPrecision) {
    if state(amp).error.take().is_some() {
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
