use burn::{
    tensor::TensorReadError,
    train::metric::{
        Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes,
        NumericEntry, SerializedEntry,
    },
};
use std::sync::Arc;

use super::follow::Follow;
use crate::scaler::ScalerMonitor;

/// The loss scale after each step, for `SupervisedTraining::metric_train_numeric`.
///
/// A value in the course of the run, not a mean: an epoch's value is that at its end. Reads host values; never waits for
/// the device. Reports the error of a run that fails; see [`ScalerMonitor::interrupter`].
#[derive(Clone)]
pub struct LossScaleMetric {
    name: MetricName,
    follow: Follow,
    scale: f64,
}

impl LossScaleMetric {
    /// Follows the scaler of this monitor, and stands for the run's error path as long as it or a clone lives: give it to the
    /// run. Of one that is not in the run a failure ends in a panic a few steps later.
    pub fn new(monitor: &ScalerMonitor) -> Self {
        let follow = Follow::new(monitor);
        Self {
            name: Arc::new("Loss Scale".to_string()),
            scale: follow.last().loss_scale.into(),
            follow,
        }
    }

    fn entry(&self, entry: NumericEntry) -> SerializedEntry {
        SerializedEntry::new(format!("{}", self.scale), entry.serialize())
    }
}

impl Metric for LossScaleMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some("The factor by which losses are multiplied before backward".to_string())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: None,
            higher_is_better: true,
        }
        .into()
    }

    fn update(&mut self, _: &(), _: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        if let Some(reading) = self.follow.next()? {
            self.scale = reading.loss_scale.into();
        }
        Ok(self.entry(NumericEntry::Value(self.scale)))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.entry(self.final_value()))
    }

    fn clear(&mut self) {}
}

impl Numeric for LossScaleMetric {
    fn value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(self.scale))
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.value()
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Final(self.scale)
    }
}
