use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::GradScaler;
use crate::{
    gradient_status::GradientStatus,
    loss_scale::{LossScale, StepOutcome},
    mixed_precision::MixedPrecision,
};

/// Steps that are remembered: metrics run in a thread of their own, and may be behind.
const STEPS: usize = 128;

/// A view of a loss scaler at work, for metrics, a progress bar, or threads of one's own.
///
/// Made by [`MixedPrecision::monitor`](crate::MixedPrecision::monitor) and
/// [`ScaledOptimizer::monitor`](crate::ScaledOptimizer::monitor). Clones see the same scaler. Reading never waits for a
/// device: all values are host values that the step has read anyway. The scaler's state itself is not shared and
/// cannot be changed from here.
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
/// let monitor = amp.monitor();
/// let last = std::thread::spawn(move || monitor.last()).join().unwrap();
/// assert_eq!((last.loss_scale, last.steps, last.skipped), (65536.0, 1, 0));
/// assert!(last.gradient_norm.is_some());
/// # let _ = model;
/// ```
#[derive(Clone, Default)]
pub struct ScalerMonitor {
    readings: Arc<Mutex<Readings>>,
    /// How a `Learner` run that fails is ended.
    #[cfg(feature = "train")]
    pub(crate) ending: Arc<super::ending::Ending>,
}

/// What a [`ScalerMonitor`] tells of a step. Host values.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScalerReading {
    /// The loss scale after the step, that of the next one; 1 of a disabled scaler.
    pub loss_scale: f32,
    /// Optimizer steps so far, skipped ones included.
    pub steps: u64,
    /// Skipped steps so far.
    pub skipped: u64,
    /// Skipped steps in a row, up to this one; or dropped micro-batches.
    pub consecutive_skips: u64,
    /// Micro-batches so far that were left out of an accumulation window because they overflowed; no steps.
    pub dropped: u64,
    /// Gradients so far that were thrown away with `discard`; no steps.
    pub discarded: u64,
    /// Clean steps in a row since the loss scale last moved.
    pub growth_tracker: u32,
    /// Whether the step was skipped; none before the first step.
    pub outcome: Option<StepOutcome>,
    /// The L2 norm of the unscaled gradients of the step before clipping, over their finite values; none before the first
    /// step, and of a disabled scaler that does not clip.
    pub gradient_norm: Option<f64>,
    /// The largest magnitude among the finite unscaled gradients; none as for the norm.
    pub max_abs_gradient: Option<f64>,
    /// The share of gradient values that are exactly zero, from 0 to 1; none as for the norm.
    pub zero_gradients: Option<f64>,
    /// The number of gradients (tensors) that clipping has changed; none if the step was not clipped.
    pub clipped_gradients: Option<u64>,
    /// The smallest number by which a group's gradients were multiplied to meet its global norm: 1 where they were within;
    /// none if no group is clipped by its global norm.
    pub clip_coefficient: Option<f64>,
}

struct Readings {
    last: ScalerReading,
    /// The readings of the last steps, and how many there were in all.
    steps: VecDeque<ScalerReading>,
    count: u64,
}

impl Default for Readings {
    fn default() -> Self {
        Self {
            last: ScalerReading::of(&GradScaler::new(LossScale::default())),
            steps: VecDeque::new(),
            count: 0,
        }
    }
}

impl ScalerMonitor {
    /// A monitor that shows the present state of `scaler`, and follows it as far as it is published.
    pub(crate) fn new(scaler: &GradScaler) -> Self {
        // That of a `MixedPrecision` is shared by its optimizers.
        let monitor = scaler.precision().map(MixedPrecision::monitor);
        let monitor = monitor.unwrap_or_default();
        monitor.publish(scaler);
        monitor
    }

    /// What the last step was like. Before the first: the scaler as it was built or loaded.
    pub fn last(&self) -> ScalerReading {
        self.readings().last
    }

    /// The loss scale of the next step.
    pub fn loss_scale(&self) -> f32 {
        self.last().loss_scale
    }

    /// Makes the state of `scaler` the last reading.
    pub(crate) fn publish(&self, scaler: &GradScaler) {
        self.readings().last = ScalerReading::of(scaler);
    }

    /// As [`publish`](Self::publish), at the end of a step.
    pub(crate) fn publish_step(&self, scaler: &GradScaler) {
        let reading = ScalerReading::of(scaler);
        let mut readings = self.readings();
        readings.last = reading;
        if readings.steps.len() == STEPS {
            readings.steps.pop_front();
        }
        readings.steps.push_back(reading);
        readings.count += 1;
    }

    /// How many steps were shown so far.
    #[cfg(feature = "train")]
    pub(crate) fn count(&self) -> u64 {
        self.readings().count
    }

    /// The step after the first `seen`, or the oldest that is remembered, and its number.
    #[cfg(feature = "train")]
    pub(crate) fn after(&self, seen: u64) -> Option<(u64, ScalerReading)> {
        let readings = self.readings();
        let forgotten = readings.count - readings.steps.len() as u64;
        let seen = seen.max(forgotten);
        let reading = readings.steps.get((seen - forgotten) as usize)?;
        Some((seen + 1, *reading))
    }

    fn readings(&self) -> MutexGuard<'_, Readings> {
        // Nothing in here is left half written by a panic.
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for ScalerMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScalerMonitor")
            .field("last", &self.last())
            .finish_non_exhaustive()
    }
}

impl ScalerReading {
    fn of(scaler: &GradScaler) -> Self {
        let counters = scaler.counters();
        let status = scaler.last_status();
        Self {
            loss_scale: scaler.loss_scale(),
            steps: counters.steps(),
            skipped: counters.skipped(),
            consecutive_skips: counters.consecutive_skips(),
            dropped: counters.dropped(),
            discarded: counters.discarded(),
            growth_tracker: scaler.growth_tracker(),
            outcome: scaler.last_outcome(),
            gradient_norm: status.map(GradientStatus::norm),
            max_abs_gradient: status.map(GradientStatus::max_abs),
            zero_gradients: status.map(GradientStatus::zero_share),
            clipped_gradients: status.and_then(|s| s.clipped()).map(|n| n as u64),
            clip_coefficient: status.and_then(GradientStatus::clip_coefficient),
        }
    }
}

#[cfg(all(test, feature = "train"))]
mod tests {
    use super::{STEPS, ScalerMonitor};
    use crate::GradScalerConfig;

    #[test]
    fn steps_come_in_order_and_none_is_left_out_while_remembered() {
        let mut scaler = GradScalerConfig::new().init().unwrap();
        let monitor = ScalerMonitor::new(&scaler);
        let mut step = |scale: u32| {
            scaler.set_loss_scale(scale.into()).unwrap();
            monitor.publish_step(&scaler);
            // What is not a step is shown, but not counted.
            monitor.publish(&scaler);
        };
        (1..=10).for_each(&mut step);
        let mut seen = 0;
        for expected in 1..=10 {
            let (number, reading) = monitor.after(seen).unwrap();
            assert_eq!(number, expected);
            assert_eq!(reading.loss_scale, expected as f32);
            seen = number;
        }
        assert!(monitor.after(seen).is_none());

        let last = 11 + STEPS as u32;
        (11..=last).for_each(&mut step);
        let (number, reading) = monitor.after(seen).unwrap();
        assert_eq!((number, reading.loss_scale), (12, 12.0));
        assert_eq!(monitor.loss_scale(), last as f32);
    }
}
