use super::averaged::{Averaged, averaged_metric};
use crate::scaler::{ScalerMonitor, ScalerReading};

/// The share of gradient values that are exactly zero, in percent, for `SupervisedTraining::metric_train_numeric`;
/// [`with_amp`](crate::train::AmpTraining::with_amp) registers it.
///
/// Underflow shows here: compare with the same run in f32, since ReLU and sparse inputs have zeros of their own. An
/// epoch's value is the mean over its steps. "N/A" in validation, and with a disabled scaler. Reads host values; never waits
/// for the device.
#[derive(Clone)]
pub struct ZeroGradientsMetric {
    averaged: Averaged,
}

impl ZeroGradientsMetric {
    /// Follows the scaler of this monitor.
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
