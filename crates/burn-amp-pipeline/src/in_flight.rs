//! Jobs that were sent to the thread, and settings that were queued, which the training has not received.

use burn_amp_core::internal::pipeline::TrainingSide;
use burn_amp_core::{AmpError, warn};
use std::collections::VecDeque;

/// The jobs that have not ended on the side that trains, in their order.
#[derive(Default)]
pub(super) struct InFlight(pub(super) VecDeque<Job>);

/// Ends a job on the side that trains, or on a copy.
type End = dyn Fn(&mut TrainingSide) -> Result<(), AmpError> + Send;

pub(super) struct Job {
    pub(super) is_update: bool,
    /// Ends it on the side that trains, or on a copy. Waits for its result.
    pub(super) end: Box<End>,
}

impl InFlight {
    pub(super) fn has_update(&self) -> bool {
        self.0.iter().any(|job| job.is_update)
    }
}

/// A drop is no place for errors.
impl Drop for InFlight {
    fn drop(&mut self) {
        if self.has_update() && !std::thread::panicking() {
            warn!(
                "a `PipelinedOptimizer` was dropped with an update whose parameters nobody has received: call \
                 `model = optim.synchronize(model)?` at the end of the training"
            );
        }
    }
}
