use super::averaged::{Averaged, averaged_metric};
use crate::scaler::{ScalerMonitor, ScalerReading};

/// The share of the epoch's steps so far that an overflow has turned into nothing, in percent, for
/// `SupervisedTraining::metric_train_numeric`.
///
/// A step by itself is 0 or 100. Reads host values; never waits for the device. Reports the error of a run that fails;
/// see [`ScalerMonitor::interrupter`].
#[derive(Clone)]
pub struct SkippedStepsMetric {
    averaged: Averaged,
}

impl SkippedStepsMetric {
    /// Follows the scaler of this monitor, and stands for the run's error path as long as it or a clone lives: give it to the
    /// run. Of one that is not in the run a failure ends in a panic a few steps later.
    pub fn new(monitor: &ScalerMonitor) -> Self {
        Self {
            averaged: Averaged::new(monitor, "Skipped Steps", Some("%")),
        }
    }

    fn value_of(reading: &ScalerReading) -> Option<f64> {
        reading
            .outcome
            .map(|outcome| if outcome.is_skipped() { 100.0 } else { 0.0 })
    }
}

averaged_metric!(
    SkippedStepsMetric,
    "The share of steps that were skipped because gradients overflowed"
);
