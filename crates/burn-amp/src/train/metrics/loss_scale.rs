use burn::{
    tensor::TensorReadError,
    train::metric::{
        Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes,
        NumericEntry, SerializedEntry,
    },
};
use std::sync::Arc;

use super::follow::{Follow, in_validation};
use crate::scaler::ScalerMonitor;

/// The loss scale after each step, for `SupervisedTraining::metric_train_numeric`;
/// [`with_amp`](crate::train::AmpTraining::with_amp) registers it.
///
/// A value in the course of the run, not a mean: an epoch's value is that at its end. "N/A" in validation. Reads host values;
/// never waits for the device.
#[derive(Clone)]
pub struct LossScaleMetric {
    name: MetricName,
    follow: Follow,
    scale: f64,
    /// Whether the last item, and any of the epoch, was one of the training.
    known: (bool, bool),
}

impl LossScaleMetric {
    /// Follows the scaler of this monitor.
    pub fn new(monitor: &ScalerMonitor) -> Self {
        let follow = Follow::new(monitor);
        Self {
            name: Arc::new("Loss Scale".to_string()),
            scale: follow.loss_scale(),
            follow,
            known: (false, false),
        }
    }

    fn entry(&self, known: bool, entry: NumericEntry) -> SerializedEntry {
        match known {
            true => SerializedEntry::new(format!("{}", self.scale), entry.serialize()),
            false => SerializedEntry::not_available(None),
        }
    }
}

impl Metric for LossScaleMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        Some("What gradients are multiplied by in half precision".to_string())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: None,
            higher_is_better: true,
        }
        .into()
    }

    fn update(
        &mut self,
        _: &(),
        metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        self.known.0 = !in_validation(metadata);
        self.known.1 |= self.known.0;
        if self.known.0
            && let Some(reading) = self.follow.next()
        {
            self.scale = reading.loss_scale.into();
        }
        Ok(self.entry(self.known.0, NumericEntry::Value(self.scale)))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.entry(self.known.1, self.final_value()))
    }

    fn clear(&mut self) {
        self.known = (false, false);
    }
}

impl Numeric for LossScaleMetric {
    fn value(&self) -> Option<NumericEntry> {
        self.known.0.then_some(NumericEntry::Value(self.scale))
    }

    fn running_value(&self) -> Option<NumericEntry> {
        self.value()
    }

    fn final_value(&self) -> NumericEntry {
        match self.known.1 {
            true => NumericEntry::Final(self.scale),
            // Burn wants a number.
            false => NumericEntry::Final(0.0),
        }
    }
}
