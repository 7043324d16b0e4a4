use super::averaged::{Averaged, averaged_metric};
use crate::scaler::{ScalerMonitor, ScalerReading};

/// The L2 norm of all unscaled gradients before clipping, for `SupervisedTraining::metric_train_numeric`.
///
/// An epoch's value is the mean over its steps, 0 if there is none. Skipped steps are left out, and so is everything with a disabled scaler
/// that does not clip: it measures nothing. Reads host values; never waits for the device. Reports the error of a run that fails; see
/// [`ScalerMonitor::interrupter`].
#[derive(Clone)]
pub struct GradientNormMetric {
    averaged: Averaged,
}

impl GradientNormMetric {
    /// Follows the scaler of this monitor, and stands for the run's error path as long as it or a clone lives: give it to the
    /// run. Of one that is not in the run a failure ends in a panic a few steps later.
    pub fn new(monitor: &ScalerMonitor) -> Self {
        Self {
            averaged: Averaged::new(monitor, "Gradient Norm", None),
        }
    }

    fn value_of(reading: &ScalerReading) -> Option<f64> {
        let applied = reading.outcome.is_some_and(|outcome| outcome.is_applied());
        reading.gradient_norm.filter(|_| applied)
    }
}

averaged_metric!(
    GradientNormMetric,
    "The L2 norm of the unscaled gradients of all parameters, before clipping"
);
