//! Jobs that were sent to the thread, and settings that were queued, which the training has not received.

use burn_amp_core::internal::pipeline::{SentStep, TrainingSide};
use burn_amp_core::{AmpError, warn};
use std::{cell::OnceCell, collections::VecDeque};

use crate::{update::Updated, worker::Pending};

/// The jobs whose results were not received, in their order.
#[derive(Default)]
pub(super) struct InFlight(pub(super) VecDeque<Job>);

/// A change of settings.
type Change = dyn Fn(&mut TrainingSide) -> Result<(), AmpError> + Send;

pub(super) enum Job {
    Set(Box<Change>),
    /// A step, none of a micro-batch and where a module is handed over; and its result, when it was waited for.
    Sent(
        Option<SentStep>,
        Pending<Updated>,
        Box<OnceCell<Result<Updated, AmpError>>>,
    ),
}

impl Job {
    pub(super) fn is_update(&self) -> bool {
        matches!(self, Self::Sent(Some(_), ..))
    }

    pub(super) fn is_setting(&self) -> bool {
        matches!(self, Self::Set(_))
    }

    /// The result of what was sent. Waits for it.
    pub(super) fn result(&self) -> Option<&Result<Updated, AmpError>> {
        match self {
            Self::Set(_) => None,
            Self::Sent(_, pending, result) => Some(result.get_or_init(|| pending.wait())),
        }
    }

    /// Ends it on a side of the training, or on a copy. Waits for it.
    pub(super) fn end(&self, side: &mut TrainingSide) -> Result<(), AmpError> {
        match self {
            Self::Set(change) => change(side),
            Self::Sent(step, pending, result) => match result.get_or_init(|| pending.wait()) {
                Ok(updated) => match &updated.made {
                    Some(made) => side.receive(step.clone(), made),
                    None => Ok(()),
                },
                Err(ended) => Err(ended.clone()),
            },
        }
    }
}

impl InFlight {
    pub(super) fn has_update(&self) -> bool {
        self.0.iter().any(Job::is_update)
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
