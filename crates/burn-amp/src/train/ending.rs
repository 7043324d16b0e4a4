//! How a run that cannot go on is ended: through Burn's error path, not by a panic.

use burn::train::{Interrupter, TrainingError, train::WorkerFailure};
use std::sync::atomic::Ordering;

use crate::{error::AmpError, scaler::ScalerMonitor};

impl ScalerMonitor {
    /// The error that has ended the run of a `Learner`: the loss scale is exhausted, or a parameter cannot be stepped.
    pub fn error(&self) -> Option<&AmpError> {
        self.ending.error.get()
    }

    /// Whether the run could go on to its end, to be asked after `launch`.
    ///
    /// More reliable than `LearningResult::error`, which Burn 0.22.1 clears at the end of a run with the dashboard.
    ///
    /// # Errors
    ///
    /// The error that has ended the run.
    pub fn check(&self) -> Result<(), AmpError> {
        self.error().cloned().map_or(Ok(()), Err)
    }

    /// A handle for `SupervisedTraining::with_interrupter`, through which a run that fails is ended.
    ///
    /// Burn's `LearningResult::error` then says why, as the failure of a worker (the nearest of Burn's errors);
    /// [`check`](Self::check) has the error itself. Always the same handle. Not needed in a run with one of this
    /// crate's metrics, except with `ExecutionStrategy::ddp`, where Burn panics when a metric fails.
    pub fn interrupter(&self) -> Interrupter {
        let interrupter = self.ending.interrupter.get_or_init(Interrupter::new);
        if let Some(error) = self.error()
            && !interrupter.should_stop()
        {
            interrupter.fail(training_error(error));
        }
        interrupter.clone()
    }

    /// Ends the run; gives the error back if nobody is there to end it. The first error stays.
    pub(super) fn fail(&self, error: AmpError) -> Result<(), AmpError> {
        log::error!("{error}");
        let _ = self.ending.error.set(error.clone());
        if let Some(interrupter) = self.ending.interrupter.get() {
            interrupter.fail(training_error(&error));
        } else if !self.ending.watched.load(Ordering::Acquire) {
            return Err(error);
        }
        Ok(())
    }

    /// Promises that a metric will report the error.
    pub(super) fn watch(&self) {
        self.ending.watched.store(true, Ordering::Release);
    }

    /// Whether an interrupter was asked for, which is told of a failure.
    pub(super) fn has_interrupter(&self) -> bool {
        self.ending.interrupter.get().is_some()
    }
}

fn training_error(error: &AmpError) -> TrainingError {
    TrainingError::Workers(vec![WorkerFailure {
        device_id: 0,
        message: error.to_string(),
    }])
}
