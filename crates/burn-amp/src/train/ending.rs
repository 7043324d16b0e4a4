//! How a run that cannot go on is ended: through Burn's error path, not by a panic.

use burn::train::{Interrupter, TrainingError, train::WorkerFailure};

use crate::{error::AmpError, scaler::ScalerMonitor};

impl ScalerMonitor {
    /// The error that has ended the run of a `Learner`: the loss scale is exhausted, or a parameter cannot be stepped.
    ///
    /// None again as soon as the model takes another step, which it does after a record was loaded into it, or
    /// [`Module::train`](burn::module::Module::train) called on it. Takes a lock only after a failure; never waits for the device.
    pub fn error(&self) -> Option<AmpError> {
        match self.ending.has_failed() {
            true => self.ending.state().error.clone(),
            false => None,
        }
    }

    /// Whether the run could go on to its end, to be asked after `launch`.
    ///
    /// More reliable than `LearningResult::error`, which Burn 0.22.1 clears at the end of a run with the dashboard.
    ///
    /// # Errors
    ///
    /// The error that has ended the run.
    pub fn check(&self) -> Result<(), AmpError> {
        self.error().map_or(Ok(()), Err)
    }

    /// A handle for `SupervisedTraining::with_interrupter`, through which a run that fails is ended.
    ///
    /// Burn's `LearningResult::error` then says why, as the failure of a worker (the nearest of Burn's errors);
    /// [`check`](Self::check) has the error itself. Always the same handle. Not needed in a run with one of this
    /// crate's metrics, except with `ExecutionStrategy::ddp`, where Burn panics when a metric fails.
    pub fn interrupter(&self) -> Interrupter {
        let (interrupter, error) = {
            let mut state = self.ending.state();
            let interrupter = state.interrupter.get_or_insert_default().clone();
            (interrupter, state.error.clone())
        };
        if let Some(error) = error
            && !interrupter.should_stop()
        {
            interrupter.fail(training_error(&error));
        }
        interrupter
    }

    /// Ends the run; gives the error back if nobody is there to end it. The first error stays.
    pub(super) fn fail(&self, error: AmpError) -> Result<(), AmpError> {
        log::error!("{error}");
        let (interrupter, watched) = {
            let mut state = self.ending.state();
            if state.error.is_none() {
                state.error = Some(error.clone());
                state.failures += 1;
            }
            self.ending.set_failed(true);
            (state.interrupter.clone(), state.watchers > 0)
        };
        match interrupter {
            Some(interrupter) => interrupter.fail(training_error(&error)),
            None if !watched => return Err(error),
            None => {}
        }
        Ok(())
    }

    /// Says what a step after the failure proves: the interrupter is not the run's. Returns whether a metric may still report
    /// the failure.
    pub(super) fn not_heard(&self) -> bool {
        let mut state = self.ending.state();
        state.unheard = true;
        state.watchers > 0
    }

    /// The number of the present failure, for a model that is to go on after it.
    pub(super) fn failure(&self) -> Option<u64> {
        match self.ending.has_failed() {
            true => Some(self.ending.state().failures),
            false => None,
        }
    }

    /// Forgets a failure, unless there was another since: the model takes a step again.
    pub(super) fn forget_failure(&self, number: u64) {
        let interrupter = {
            let mut state = self.ending.state();
            if state.failures != number || state.error.take().is_none() {
                return;
            }
            state.unheard = false;
            self.ending.set_failed(false);
            state.interrupter.clone()
        };
        if let Some(interrupter) = interrupter {
            interrupter.reset();
        }
    }

    /// Promises that a metric will report the error, for as long as it lives.
    pub(super) fn watch(&self) -> Watch {
        self.ending.state().watchers += 1;
        Watch {
            monitor: self.clone(),
        }
    }

    /// The error, if the interrupter has not ended the run for it, or will not.
    pub(super) fn unreported(&self) -> Option<AmpError> {
        if !self.ending.has_failed() {
            return None;
        }
        let state = self.ending.state();
        let silent = state.interrupter.is_none() || state.unheard;
        state.error.clone().filter(|_| silent)
    }
}

/// A metric's promise to report a failure: metrics that are dropped, or were built for their name alone, report nothing.
pub(super) struct Watch {
    monitor: ScalerMonitor,
}

impl Watch {
    pub(super) fn monitor(&self) -> &ScalerMonitor {
        &self.monitor
    }
}

impl Clone for Watch {
    fn clone(&self) -> Self {
        self.monitor.watch()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.monitor.ending.state().watchers -= 1;
    }
}

fn training_error(error: &AmpError) -> TrainingError {
    TrainingError::Workers(vec![WorkerFailure {
        device_id: 0,
        message: error.to_string(),
    }])
}
