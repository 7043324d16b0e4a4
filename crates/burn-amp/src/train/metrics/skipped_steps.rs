use super::averaged::{Averaged, averaged_metric};
use crate::scaler::{ScalerMonitor, ScalerReading};

/// The share of the epoch's steps so far that were skipped, in percent, for `SupervisedTraining::metric_train_numeric`;
/// [`with_amp`](crate::train::AmpTraining::with_amp) registers it.
///
/// A step by itself is 0 or 100. "N/A" in validation. Reads host values; never waits for the device.
#[derive(Clone)]
pub struct SkippedStepsMetric {
    averaged: Averaged,
}

impl SkippedStepsMetric {
    /// Follows the scaler of this monitor.
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
