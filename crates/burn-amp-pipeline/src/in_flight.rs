//! Jobs that were sent to the thread, and whose results were not received.

use burn_amp_core::warn;
use std::collections::VecDeque;

use crate::{update::Updated, worker::Pending};

/// The jobs whose results were not received, in their order.
#[derive(Default)]
pub(super) struct InFlight(pub(super) VecDeque<(What, Pending<Updated>)>);

/// What a job is to the one who sends it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum What {
    Update,
    MicroBatch,
    /// No call of `step`.
    Other,
}

impl InFlight {
    pub(super) fn has_update(&self) -> bool {
        self.0.iter().any(|(what, _)| *what == What::Update)
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
