use burn::train::{
    Interrupter, LearnerModel, SupervisedTraining, TrainingError, train::WorkerFailure,
};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    error::AmpError, gradient_status::GradientStatus, loss_scale::StepOutcome,
    mixed_precision::MixedPrecision, scaler::GradScaler, step_counters::StepCounters,
};

/// Steps that are remembered: metrics run in a thread of their own, and may be behind.
const STEPS: usize = 128;

/// What metrics, a progress bar or other threads may ask of a training (feature `train`): what an optimizer of this
/// `MixedPrecision` did last, by hand or in a `Learner`.
///
/// With several optimizers, counters and gradients are those of the one that stepped last. Reading never waits for a device: all
/// values are host values that the step has read anyway, or, with a [`Fused`](crate::Fused) optimizer, those of an earlier step that are
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
    /// Adds the metrics of this crate to a training of Burn's, and ends a run that cannot go on, in Burn's way.
    ///
    /// The metrics: loss scale, skipped steps, gradient norm, share of zero gradients ([`loss_scale_metric`](Self::loss_scale_metric) and the like). There are none
    /// without a scaler, as in f32 and bf16, where nothing is measured. The end: through the run's interrupter. Set one of
    /// your own (`with_interrupter`) before this call.
    ///
    /// `training` is any `SupervisedTraining`, configured in full or in part.
    pub fn training<M: LearnerModel>(
        &self,
        training: SupervisedTraining<M>,
    ) -> SupervisedTraining<M> {
        self.state().interrupter = Some(training.interrupter());
        match self.live().schedule().config().enabled {
            true => training
                .metric_train_numeric(self.loss_scale_metric())
                .metric_train_numeric(self.skipped_steps_metric())
                .metric_train_numeric(self.gradient_norm_metric())
                .metric_train_numeric(self.zero_gradients_metric()),
            false => training,
        }
    }
}

/// What clones of one `MixedPrecision` know of its training.
#[derive(Default)]
struct State {
    counters: StepCounters,
    outcome: Option<StepOutcome>,
    status: Option<GradientStatus>,
    /// The last steps, and how many there were in all.
    steps: VecDeque<Reading>,
    count: u64,
    error: Option<AmpError>,
    interrupter: Option<Interrupter>,
}

/// What a metric shows of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The loss scale after the step.
    pub(super) loss_scale: f64,
    pub(super) outcome: Option<StepOutcome>,
    pub(super) norm: Option<f64>,
    pub(super) zero_share: Option<f64>,
}

impl MixedPrecision {
    /// Steps taken and skipped so far.
    pub fn counters(&self) -> StepCounters {
        self.state().counters
    }

    /// The outcome of the last step; none before the first. See [`GradScaler::last_outcome`].
    pub fn last_outcome(&self) -> Option<StepOutcome> {
        self.state().outcome
    }

    /// The measures of the last step's gradients, before clipping; none before the first step, and of a disabled scaler that
    /// does not clip. See [`GradScaler::last_status`].
    pub fn last_status(&self) -> Option<GradientStatus> {
        self.state().status.clone()
    }

    /// Whether the run could go on to its end, to be asked after `launch`. Never waits for the device.
    ///
    /// More reliable than `LearningResult::error`, which Burn 0.22.1 clears at the end of a run with the dashboard.
    ///
    /// # Errors
    ///
    /// The error that has ended the run: the loss scale is exhausted, the loss is NaN, or a parameter cannot be stepped. Forgotten as
    /// soon as a model takes a step that has not failed: a new one, or one on which
    /// [`Module::train`](burn::module::Module::train) was called.
    pub fn run_result(&self) -> Result<(), AmpError> {
        self.state().error.clone().map_or(Ok(()), Err)
    }

    /// The handle through which a run that fails is ended: that of the training given to [`MixedPrecision::training`], or
    /// else one to be given to a run (`with_interrupter`).
    ///
    /// Burn's `LearningResult::error` then says why, as the failure of a worker (the nearest of Burn's errors);
    /// [`run_result`](Self::run_result) has the error itself.
    pub fn interrupter(&self) -> Interrupter {
        self.state().interrupter.get_or_insert_default().clone()
    }

    /// Ends the run with an error, through the [`interrupter`](Self::interrupter): for strategies and agents that step by
    /// themselves. A `Learner` of [`MixedPrecision::learner`] does it on its own. The first error of a run stays.
    ///
    /// # Errors
    ///
    /// The error itself, if `interrupter` was never called, so that nothing can be ended by it.
    pub fn fail_run(&self, error: AmpError) -> Result<(), AmpError> {
        log::error!("{error}");
        let interrupter = {
            let mut state = self.state();
            state.error.get_or_insert_with(|| error.clone());
            state.interrupter.clone()
        };
        match interrupter {
            Some(interrupter) => {
                interrupter.fail(TrainingError::Workers(vec![WorkerFailure {
                    device_id: 0,
                    message: error.to_string(),
                }]));
                Ok(())
            }
            None => Err(error),
        }
    }

    /// Forgets a failure: a model takes a step that has not failed.
    pub(super) fn forget_failure(&self) {
        let mut state = self.state();
        if state.error.take().is_some()
            && let Some(interrupter) = &state.interrupter
        {
            interrupter.reset();
        }
    }

    /// Shows the present state of a scaler of the same `MixedPrecision`; `stepped` if it has counted a step.
    pub(crate) fn publish(&self, scaler: &GradScaler, stepped: bool) {
        let status = scaler.last_status();
        let mut state = self.state();
        state.counters = *scaler.counters();
        state.outcome = scaler.last_outcome();
        state.status = status.cloned();
        if stepped {
            if state.steps.len() == STEPS {
                state.steps.pop_front();
            }
            let outcome = state.outcome;
            state.steps.push_back(Reading {
                loss_scale: scaler.loss_scale().into(),
                outcome,
                norm: status.map(GradientStatus::norm),
                zero_share: status.map(GradientStatus::zero_share),
            });
            state.count += 1;
        }
    }

    /// How many steps were shown so far.
    pub(super) fn steps_shown(&self) -> u64 {
        self.state().count
    }

    /// The step after the first `seen`, or the oldest that is remembered, and its number.
    pub(super) fn step_after(&self, seen: u64) -> Option<(u64, Reading)> {
        let state = self.state();
        let forgotten = state.count - state.steps.len() as u64;
        let seen = seen.max(forgotten);
        let reading = state.steps.get((seen - forgotten) as usize)?;
        Some((seen + 1, *reading))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.extension::<Mutex<State>>();
        let state = state.expect("nothing else is kept there").lock();
        // Nothing in here is left half written by a panic.
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::STEPS;
    use crate::{GradScaler, MixedPrecision};

    #[test]
    fn steps_come_in_order_and_none_is_left_out_while_remembered() {
        let amp = MixedPrecision::f16();
        let mut scaler = GradScaler::from(&amp);
        let mut step = |scale: u32| {
            scaler.set_loss_scale(scale.into()).unwrap();
            amp.publish(&scaler, true);
            // What is not a step is shown, but not counted.
            amp.publish(&scaler, false);
        };
        (1..=10).for_each(&mut step);
        let mut seen = 0;
        for expected in 1..=10 {
            let (number, reading) = amp.step_after(seen).unwrap();
            assert_eq!(number, expected);
            assert_eq!(reading.loss_scale, expected as f64);
            seen = number;
        }
        assert!(amp.step_after(seen).is_none());

        let last = 11 + STEPS as u32;
        (11..=last).for_each(&mut step);
        let (number, reading) = amp.step_after(seen).unwrap();
        assert_eq!((number, reading.loss_scale), (12, 12.0));
        assert_eq!(amp.loss_scale(), last as f32);
    }
}
