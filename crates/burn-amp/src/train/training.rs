use burn::train::{LearnerModel, SupervisedTraining};

use super::{GradientNormMetric, LossScaleMetric, SkippedStepsMetric, ZeroGradientsMetric};
use crate::mixed_precision::MixedPrecision;

/// Mixed precision for Burn's `SupervisedTraining`.
pub trait AmpTraining {
    /// Shows the metrics of this crate, and lets a run that cannot go on end as Burn's runs end.
    ///
    /// The metrics: loss scale, skipped steps, gradient norm, share of zero gradients. None without a scaler, as in f32 and bf16,
    /// where nothing is measured. The end: through the run's interrupter. One of your own (`with_interrupter`) comes before this
    /// call.
    fn with_amp(self, amp: &MixedPrecision) -> Self;
}

impl<M: LearnerModel> AmpTraining for SupervisedTraining<M> {
    fn with_amp(self, amp: &MixedPrecision) -> Self {
        let monitor = amp.monitor();
        monitor.end_through(self.interrupter());
        match amp.config().enabled {
            true => self
                .metric_train_numeric(LossScaleMetric::new(&monitor))
                .metric_train_numeric(SkippedStepsMetric::new(&monitor))
                .metric_train_numeric(GradientNormMetric::new(&monitor))
                .metric_train_numeric(ZeroGradientsMetric::new(&monitor)),
            false => self,
        }
    }
}
