use super::averaged::{Averaged, averaged_metric};
use crate::scaler::{ScalerMonitor, ScalerReading};

/// The share of gradient values that are exactly zero, in percent, for `SupervisedTraining::metric_train_numeric`.
///
/// Underflow shows here: compare with the same run in f32, since ReLU and sparse inputs have zeros of their own. An
/// epoch's value is the mean over its steps, 0 if there is none. Nothing is shown with a disabled scaler. Reads host values; never waits for
/// the device. Reports the error of a run that fails; see [`ScalerMonitor::interrupter`].
#[derive(Clone)]
pub struct ZeroGradientsMetric {
    averaged: Averaged,
}

impl ZeroGradientsMetric {
    /// Follows the scaler of this monitor, and stands for the run's error path as long as it or a clone lives: give it to the
    /// run. Of one that is not in the run a failure ends in a panic a few steps later.
    pub fn new(monitor: &ScalerMonitor) -> Self {
        Self {
            averaged: Averaged::new(monitor, "Zero Gradients", Some("%")),
        }
    }

    fn value_of(reading: &ScalerReading) -> Option<f64> {
        reading.zero_gradients.map(|share| 100.0 * share)
    }
}

averaged_metric!(
    ZeroGradientsMetric,
    "The share of gradient values that are exactly zero"
);
