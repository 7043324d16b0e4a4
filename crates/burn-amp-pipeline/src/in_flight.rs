//! Jobs that were sent to the thread, and settings that were queued, which the training has not received.

use burn_amp_core::internal::pipeline::{SentStep, TrainingSide};
use burn_amp_core::{AmpError, warn};
use std::{cell::OnceCell, collections::VecDeque};

use crate::{update::Updated, worker::Pending};

/// The jobs whose results were not received, in their order.
#[derive(Default)]
pub(super) struct InFlight(pub(super) VecDeque<Job>);

pub(super) enum Job {
    /// A change of settings.
    Set(Box<dyn Fn(&mut TrainingSide) -> Result<(), AmpError> + Send>),
    /// A step; none of a micro-batch, and where a module is handed over.
    Sent(Option<SentStep>, Reply),
}

/// The result of a job, which may not have come.
pub(super) struct Reply {
    pending: Pending<Updated>,
    come: OnceCell<Result<Updated, AmpError>>,
}

impl Reply {
    pub(super) fn of(pending: Pending<Updated>) -> Self {
        let come = OnceCell::new();
        Self { pending, come }
    }

    /// Waits for it.
    fn wait(&self) -> &Result<Updated, AmpError> {
        self.come.get_or_init(|| self.pending.wait())
    }

    /// Waits for it, and takes it.
    pub(super) fn take(self) -> Result<Updated, AmpError> {
        let come = self.come.into_inner();
        come.unwrap_or_else(|| self.pending.wait())
    }
}

impl Job {
    fn is_update(&self) -> bool {
        matches!(self, Self::Sent(Some(_), _))
    }
}

impl InFlight {
    pub(super) fn has_update(&self) -> bool {
        self.0.iter().any(Job::is_update)
    }

    /// Takes out the jobs up to the last update.
    pub(super) fn take_update(&mut self) -> Vec<Job> {
        let last = self.0.iter().rposition(Job::is_update);
        self.0.drain(..last.map_or(0, |last| last + 1)).collect()
    }

    /// Changes settings of a copy: what is wrong with them is an error of the step that receives them.
    pub(super) fn set(&self, side: &mut TrainingSide) {
        for job in &self.0 {
            if let Job::Set(change) = job {
                drop(change(side));
            }
        }
    }

    /// Ends all of them. Waits for them. The first error of those that were done, and that of the thread if it has ended.
    pub(super) fn end_on(&self, side: &mut TrainingSide) -> Result<Option<AmpError>, AmpError> {
        let mut failed = None;
        for job in &self.0 {
            let ended = match job {
                Job::Set(change) => change(side),
                Job::Sent(step, reply) => {
                    let updated = reply.wait().as_ref().map_err(AmpError::clone)?;
                    let made = updated.made.as_ref();
                    made.map_or(Ok(()), |made| side.receive(step.clone(), made))
                }
            };
            failed = failed.or(ended.err());
        }
        Ok(failed)
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
