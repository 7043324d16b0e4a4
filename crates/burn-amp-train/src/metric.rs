use burn::tensor::TensorReadError;
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};
use std::sync::Arc;

use burn_amp_core::{MixedPrecision, StepOutcome, internal::Followed};

/// A metric of the loss scale or of the gradients, for `SupervisedTraining::metric_train_numeric`.
///
/// It belongs to the training: in validation it is "N/A". It reads host values and never waits for the device.
#[derive(Clone)]
pub struct ScalerMetric {
    kind: Kind,
    name: MetricName,
    journal: Followed,
    /// The number of the last step that it has taken: Burn updates metrics in a thread of their own, later than the step, and so it takes them
    /// one by one.
    seen: u64,
    /// The last loss scale.
    scale: f64,
    mean: NumericMetricState,
    /// Tells whether there is a value, and one of the epoch, to be shown.
    known: (bool, bool),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    LossScale,
    SkippedSteps,
    GradientNorm,
    ZeroGradients,
}

impl ScalerMetric {
    pub(super) fn new(amp: &MixedPrecision, kind: Kind, name: &str) -> Self {
        let journal = Followed::from(amp);
        Self {
            kind,
            name: Arc::new(name.to_string()),
            seen: journal.steps(),
            journal,
            scale: amp.loss_scale().into(),
            mean: NumericMetricState::new(),
            known: (false, false),
        }
    }

    fn unit(&self) -> Option<&'static str> {
        matches!(self.kind, Kind::SkippedSteps | Kind::ZeroGradients).then_some("%")
    }

    /// The value of the next step; none if no step was made since the last call, as inside an accumulation window, and where the mean leaves it out.
    fn next(&mut self) -> Option<f64> {
        let (number, step) = self.journal.step_after(self.seen).unzip();
        self.seen = number.unwrap_or(self.seen);
        match self.kind {
            // Between two steps, that of the last one.
            Kind::LossScale => {
                self.scale = step.map_or(self.scale, |step| step.loss_scale);
                Some(self.scale)
            }
            Kind::SkippedSteps => {
                let skips = [StepOutcome::Skipped, StepOutcome::Guarded];
                let is_skipped = skips.contains(&step?.outcome?);
                Some(if is_skipped { 100.0 } else { 0.0 })
            }
            Kind::GradientNorm => {
                let step = step.filter(|step| step.outcome == Some(StepOutcome::Stepped));
                Some(step?.status?.norm())
            }
            Kind::ZeroGradients => Some(100.0 * step?.status?.zero_share()),
        }
    }

    /// The log entry of the last step, or of the epoch.
    fn entry(&self, known: bool, of_epoch: bool) -> SerializedEntry {
        if !known {
            return SerializedEntry::not_available(self.unit());
        }
        if self.kind == Kind::LossScale {
            let number = match of_epoch {
                true => NumericEntry::Final(self.scale),
                false => NumericEntry::Value(self.scale),
            };
            return SerializedEntry::new(format!("{}", self.scale), number.serialize());
        }
        let format = FormatOptions::new(self.name()).precision(3);
        let format = match self.unit() {
            Some(unit) => format.unit(unit),
            None => format,
        };
        match of_epoch {
            true => self.mean.compute_final(format),
            false => self.mean.compute_update(format),
        }
    }
}

impl Metric for ScalerMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn description(&self) -> Option<String> {
        let text = match self.kind {
            Kind::LossScale => "What gradients are multiplied by in half precision",
            Kind::SkippedSteps => {
                "The share of steps that were skipped: gradients overflowed, or a hook rejected them"
            }
            Kind::GradientNorm => {
                "The L2 norm of the unscaled gradients of all parameters, before clipping"
            }
            Kind::ZeroGradients => "The share of gradient values that are exactly zero",
        };
        Some(text.to_string())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: self.unit().map(str::to_string),
            higher_is_better: self.kind == Kind::LossScale,
        }
        .into()
    }

    fn update(
        &mut self,
        _: &(),
        metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        // An item of a validation has no learning rate. Those of reinforcement learning have no iteration either.
        let in_validation = metadata.lr.is_none() && metadata.iteration.is_some();
        let value = (!in_validation).then(|| self.next()).flatten();
        if let Some(value) = value {
            self.mean.update(value, 1);
        }
        self.known.0 = value.is_some();
        self.known.1 |= self.known.0;
        Ok(self.entry(self.known.0, false))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.entry(self.known.1, true))
    }

    fn clear(&mut self) {
        self.mean.reset();
        self.known = (false, false);
    }
}

impl Numeric for ScalerMetric {
    fn value(&self) -> Option<NumericEntry> {
        self.known.0.then(|| match self.kind {
            Kind::LossScale => NumericEntry::Value(self.scale),
            _ => self.mean.current_value(),
        })
    }

    fn running_value(&self) -> Option<NumericEntry> {
        match self.kind {
            Kind::LossScale => self.value(),
            _ => self.known.1.then(|| self.mean.running_value()),
        }
    }

    fn final_value(&self) -> NumericEntry {
        match (self.known.1, self.kind) {
            (true, Kind::LossScale) => NumericEntry::Final(self.scale),
            (true, _) => self.mean.final_value(),
            // Burn wants a number, and the mean of nothing is none.
            (false, _) => NumericEntry::Final(0.0),
        }
    }
}
