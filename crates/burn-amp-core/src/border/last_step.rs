//! What a program may ask of the last step.

use crate::{
    border::mixed_precision::MixedPrecision, gradients::status::GradientStatus,
    journal::step_counters::StepCounters, scale::loss_scale::StepOutcome,
};

/// What metrics, a progress bar or other threads may ask of a training: what an optimizer of this
/// `MixedPrecision` did last, by hand or in a `Learner`.
///
/// With several optimizers, the counters are of all steps, and outcome and gradients those of the one that stepped last. Reading never waits for a device: all
/// values are host values that the step has read anyway, or, with a `Fused` optimizer, those of an earlier step that are
/// known.
///
/// ```
/// use burn::{
///     module::Module, nn::LinearConfig, optim::{GradientsParams, SgdConfig},
///     tensor::{Device, Distribution, Tensor},
/// };
/// use burn_amp::{MixedPrecision, ScaledOptimizer};
///
/// let device = Device::flex().autodiff();
/// let amp = MixedPrecision::f16();
/// let mut model = LinearConfig::new(4, 2).init(&device).apply_reparameterization(amp.clone());
/// let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
///
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
/// let loss = amp.autocast(input, |x| model.forward(x)).mean();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// model = optim.step(0.1, model, grads);
///
/// std::thread::spawn(move || {
///     assert_eq!(amp.loss_scale(), 65536.0);
///     assert_eq!((amp.counters().steps(), amp.counters().skipped()), (1, 0));
///     assert!(amp.last_status().unwrap().norm() > 0.0);
/// })
/// .join()
/// .unwrap();
/// # let _ = model;
/// ```
impl MixedPrecision {
    /// Steps taken and skipped so far, by all optimizers together. Clones of one count as one, as the clone that stepped last; and what is in a
    /// row is of the optimizer that stepped last.
    pub fn counters(&self) -> StepCounters {
        self.journal().counters()
    }

    /// The outcome of the last step; none before the first. See [`GradScaler::last_outcome`](crate::GradScaler::last_outcome).
    pub fn last_outcome(&self) -> Option<StepOutcome> {
        self.journal().last().0
    }

    /// The measures of the last step's gradients, before clipping; none before the first step, and of a disabled scaler that
    /// does not clip. See [`GradScaler::last_status`](crate::GradScaler::last_status).
    pub fn last_status(&self) -> Option<GradientStatus> {
        self.journal().last().1
    }
}
