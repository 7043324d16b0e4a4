use burn::tensor::TensorReadError;
use burn_std::ExecutionError;

use crate::scaler::{ScalerMonitor, ScalerReading};

/// A metric's place in the readings of a monitor.
///
/// Burn updates metrics in a thread of their own, later than the step: they take the readings one by one.
#[derive(Clone)]
pub(super) struct Follow {
    monitor: ScalerMonitor,
    seen: u64,
    /// Updates after a failure that the interrupter was told.
    after_failure: u32,
}

/// A run whose interrupter was told ends at once; one that does not has another interrupter.
const PATIENCE: u32 = 16;

impl Follow {
    pub(super) fn new(monitor: &ScalerMonitor) -> Self {
        monitor.watch();
        Self {
            monitor: monitor.clone(),
            seen: monitor.number(),
            after_failure: 0,
        }
    }

    /// What the next step was like; none if no step was made since the last call, as inside an accumulation window.
    ///
    /// An error if the run has failed and nobody else says so: Burn then ends the run with it.
    pub(super) fn next(&mut self) -> Result<Option<ScalerReading>, TensorReadError> {
        if let Some(error) = self.monitor.error() {
            self.after_failure += 1;
            if !self.monitor.has_interrupter() || self.after_failure > PATIENCE {
                return Err(ExecutionError::with_context(error.to_string()).into());
            }
        }
        while let Some((number, reading)) = self.monitor.after(self.seen) {
            self.seen = number;
            // What is not a step is a state that was loaded.
            if reading.is_step {
                return Ok(Some(reading));
            }
        }
        Ok(None)
    }

    /// What the last step was like, or the scaler before the first.
    pub(super) fn last(&self) -> ScalerReading {
        self.monitor.last()
    }
}
