//! How a run that cannot go on is ended: through Burn's error path, not by a panic.

use burn::train::{Interrupter, TrainingError, train::WorkerFailure};

use crate::{error::AmpError, scaler::ScalerMonitor};

impl ScalerMonitor {
    /// The error that has ended the run: the loss scale is exhausted, the loss is NaN, or a parameter cannot be stepped.
    ///
    /// None again as soon as a model takes a step that has not failed: a new one, or one on which
    /// [`Module::train`](burn::module::Module::train) was called. Never waits for the device.
    pub fn error(&self) -> Option<AmpError> {
        self.ending.state().error.clone()
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

    /// The handle through which a run that fails is ended: that of the `SupervisedTraining` with
    /// [`with_amp`](super::AmpTraining::with_amp), or else one to be given to a run (`with_interrupter`).
    ///
    /// Burn's `LearningResult::error` then says why, as the failure of a worker (the nearest of Burn's errors);
    /// [`check`](Self::check) has the error itself.
    pub fn interrupter(&self) -> Interrupter {
        let mut state = self.ending.state();
        state.interrupter.get_or_insert_default().clone()
    }

    /// Ends the run through its own handle.
    pub(super) fn end_through(&self, interrupter: Interrupter) {
        self.ending.state().interrupter = Some(interrupter);
    }

    /// Ends the run with an error, through the [`interrupter`](Self::interrupter): for strategies and agents that step by
    /// themselves. A `Learner` of [`MixedPrecision::learner`](crate::MixedPrecision::learner) does it on its own. The first
    /// error of a run stays.
    ///
    /// # Errors
    ///
    /// The error itself, if nobody has asked for the interrupter: then nobody listens.
    pub fn fail(&self, error: AmpError) -> Result<(), AmpError> {
        log::error!("{error}");
        let interrupter = {
            let mut state = self.ending.state();
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

    /// Forgets a failure: a model takes a step that has not failed.
    pub(super) fn forget_failure(&self) {
        let mut state = self.ending.state();
        if state.error.take().is_some()
            && let Some(interrupter) = &state.interrupter
        {
            interrupter.reset();
        }
    }
}
