use super::averaged::{Averaged, averaged_metric};
use crate::scaler::{ScalerMonitor, ScalerReading};

/// The L2 norm of all unscaled gradients before clipping, for `SupervisedTraining::metric_train_numeric`;
/// [`with_amp`](crate::train::AmpTraining::with_amp) registers it.
///
/// An epoch's value is the mean over its steps. Skipped steps are left out. "N/A" in validation, and with a disabled scaler that
/// does not clip: it measures nothing. Reads host values; never waits for the device.
#[derive(Clone)]
pub struct GradientNormMetric {
    averaged: Averaged,
}

impl GradientNormMetric {
    /// Follows the scaler of this monitor.
    pub fn new(monitor: &ScalerMonitor) -> Self {
        Self {
            averaged: Averaged::new(monitor, "Gradient Norm", None),
        }
    }

    fn value_of(reading: &ScalerReading) -> Option<f64> {
        let applied = reading.outcome.is_some_and(|outcome| outcome.is_stepped());
        reading.gradient_norm.filter(|_| applied)
    }
}

averaged_metric!(
    GradientNormMetric,
    "The L2 norm of the unscaled gradients of all parameters, before clipping"
);
