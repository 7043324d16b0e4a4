use burn::train::metric::MetricMetadata;

use crate::scaler::{ScalerMonitor, ScalerReading};

/// A metric's place in the steps of a monitor.
///
/// Burn updates metrics in a thread of their own, later than the step: they take the steps one by one.
#[derive(Clone)]
pub(super) struct Follow {
    monitor: ScalerMonitor,
    seen: u64,
}

impl Follow {
    pub(super) fn new(monitor: &ScalerMonitor) -> Self {
        Self {
            monitor: monitor.clone(),
            seen: monitor.count(),
        }
    }

    /// What the next step was like; none if no step was made since the last call, as inside an accumulation window.
    pub(super) fn next(&mut self) -> Option<ScalerReading> {
        let (number, reading) = self.monitor.after(self.seen)?;
        self.seen = number;
        Some(reading)
    }

    /// The present loss scale.
    pub(super) fn loss_scale(&self) -> f64 {
        self.monitor.loss_scale().into()
    }
}

/// Whether an item is one of a validation, which has no learning rate. Those of reinforcement learning have no iteration
/// either.
pub(super) fn in_validation(metadata: &MetricMetadata) -> bool {
    metadata.lr.is_none() && metadata.iteration.is_some()
}
