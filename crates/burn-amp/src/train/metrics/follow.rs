use burn::tensor::TensorReadError;
use burn_std::ExecutionError;

use crate::{
    scaler::{ScalerMonitor, ScalerReading},
    train::ending::Watch,
};

/// A metric's place in the readings of a monitor.
///
/// Burn updates metrics in a thread of their own, later than the step: they take the readings one by one.
#[derive(Clone)]
pub(super) struct Follow {
    watch: Watch,
    seen: u64,
}

impl Follow {
    pub(super) fn new(monitor: &ScalerMonitor) -> Self {
        Self {
            watch: monitor.watch(),
            seen: monitor.number(),
        }
    }

    /// What the next step was like; none if no step was made since the last call, as inside an accumulation window.
    ///
    /// An error if the run has failed and nobody else says so: Burn then ends the run with it.
    pub(super) fn next(&mut self) -> Result<Option<ScalerReading>, TensorReadError> {
        let monitor = self.watch.monitor();
        if let Some(error) = monitor.unreported() {
            return Err(ExecutionError::with_context(error.to_string()).into());
        }
        while let Some((number, reading)) = monitor.after(self.seen) {
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
        self.watch.monitor().last()
    }
}
