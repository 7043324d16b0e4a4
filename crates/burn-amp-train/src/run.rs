use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLrScheduler,
    train::{
        Interrupter, LearnerModel, LearningResult, SupervisedTraining, TrainingError,
        train::WorkerFailure,
    },
};
use std::sync::{Mutex, MutexGuard};

use super::{Scaled, learner::LearnerOptimizer};
use burn_amp_core::{
    AmpError, GradientStatus, MixedPrecision, StepCounters, StepError, StepOutcome,
    internal::locked,
};

/// What metrics, a progress bar or other threads may ask of a training (feature `train`): what an optimizer of this
/// `MixedPrecision` did last, by hand or in a `Learner`.
///
/// With several optimizers, the counters are of all steps, and outcome and gradients those of the one that stepped last. Reading never waits for a device: all
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
    /// Trains a model in this precision in Burn's `Learner`: [`learner`](Self::learner), [`training`](Self::training), the run, and
    /// [`run_result`](Self::run_result), in one call.
    ///
    /// `training` is a `SupervisedTraining` that is configured in full. `model`, `optim` and `lr_scheduler` are as for
    /// [`learner`](Self::learner), which has an example. Returns when the run is over.
    ///
    /// # Errors
    ///
    /// Those of [`learner`](Self::learner), with the model as it was given. If a step failed and so ended the run, the error of
    /// [`run_result`](Self::run_result), with the model as it was trained so far, in validation mode. What ends a run in Burn itself is in
    /// the result, as without burn-amp: `LearningResult::error`.
    pub fn launch<M: LearnerModel>(
        &self,
        training: SupervisedTraining<Scaled<M>>,
        model: M,
        optim: impl Into<LearnerOptimizer>,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Result<LearningResult<Scaled<M>>, StepError<M>> {
        let learner = self.learner(model.clone(), optim, lr_scheduler);
        let learner = learner.map_err(|error| StepError::new(model, error))?;
        let result = self.training(training).launch(learner);
        match self.run_result() {
            Ok(()) => Ok(result),
            Err(error) => Err(StepError::new(result.model.into_inner(), error)),
        }
    }

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
        self.enter_learner();
        self.state().interrupter = Some(training.interrupter());
        match self.live().config().enabled {
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
    error: Option<AmpError>,
    interrupter: Option<Interrupter>,
}

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

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.extension::<Mutex<State>>();
        locked(state.expect("nothing else is kept there"))
    }
}
