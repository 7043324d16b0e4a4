use burn::train::{Interrupter, Learner, LearnerModel, LearningResult, SupervisedTraining};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLrScheduler, module::Module, tensor::Tensor};
use burn_amp_core::{
    AmpError, GradientStatus, MixedPrecision, StepError, internal::learner::set_running,
};
use std::borrow::Borrow;

use crate::learner::{self, LearnerOptimizer};
use crate::metric::{Kind, ScalerMetric};
use crate::{Scaled, run};

/// The methods of a [`MixedPrecision`] for Burn's `Learner`. Bring it into scope with `use burn_amp::train::LearnerExt`.
pub trait LearnerExt: Borrow<MixedPrecision> {
    /// Trains a model in this precision in Burn's `Learner`: [`learner`](Self::learner), [`training`](Self::training), the run, and
    /// [`run_result`](Self::run_result), in one call.
    ///
    /// `training` is a `SupervisedTraining` that is configured in full. `model`, `optim` and `lr_scheduler` are as for
    /// [`learner`](Self::learner), which has an example. Returns when the run is over.
    ///
    /// # Errors
    ///
    /// Those of [`learner`](Self::learner), with the model as it was given. If a step failed and so ended the run, the error of
    /// [`run_result`](Self::run_result); what ended it in Burn itself (data, checkpoints, a worker that panicked) as [`AmpError::RunFailed`]. Both
    /// with the model as it was trained so far, in validation mode. With Burn's dashboard, Burn 0.22.1 clears errors of its own when it closes,
    /// and they cannot be seen here.
    fn launch<M: LearnerModel>(
        &self,
        training: SupervisedTraining<Scaled<M>>,
        model: M,
        optim: impl Into<LearnerOptimizer>,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Result<LearningResult<Scaled<M>>, StepError<M>> {
        let learner = self.learner(model.clone(), optim, lr_scheduler);
        let learner = learner.map_err(|error| StepError::new(model, error))?;
        let result = self.training(training).launch(learner);
        let failed = self.run_result().and(match &result.error {
            Some(error) => Err(AmpError::RunFailed {
                reason: error.to_string(),
            }),
            None => Ok(()),
        });
        match failed {
            Ok(()) => Ok(result),
            Err(error) => Err(StepError::new(result.model.into_trained(), error)),
        }
    }

    /// A Burn `Learner` that trains a model in this precision, in place of `Learner::new(model, optim, lr_scheduler)`.
    ///
    /// `model` is a plain f32 model with Burn's `TrainStep` and `InferenceStep`, whose forward pass calls
    /// [`autocast`](burn_amp_core::autocast), the free function: in its steps that is this precision. It is reparameterized
    /// here, unless it has been before; one that has another handle keeps that: call Burn's `materialize()` first. `optim` is Burn's `ModuleOptimizer`, or a [`ScaledOptimizer`](burn_amp_core::ScaledOptimizer) of this handle with
    /// [`with_clipping`](burn_amp_core::ScaledOptimizer::with_clipping),
    /// [`with_hook`](burn_amp_core::ScaledOptimizer::with_hook) (a hook sees no loss) and
    /// [`with_ema`](burn_amp_core::ScaledOptimizer::with_ema), whose state goes with it. Accumulation is Burn's `grads_accumulation`. For
    /// parameters that are bf16 themselves, `optim` is a [`MasterWeights`](burn_amp_torch::MasterWeights), with or without a `ScaledOptimizer` around it. `lr_scheduler` is any of Burn's. It advances on skipped
    /// steps too, unless it is a [`ScaledLrScheduler`](burn_amp_core::ScaledLrScheduler). Does not wait for the device.
    ///
    /// With a [`PipelinedOptimizer`](burn_amp_pipeline::PipelinedOptimizer) the optimizer steps on a thread of its own, one update behind. Validation and checkpoints wait for it,
    /// and see the newest parameters. It steps by itself: a model's own `TrainStep::optimize` is not called. It takes no averages, and no
    /// training in which each device steps by itself (`ddp`).
    ///
    /// With a [`Fused`](burn_amp_optim::Fused) optimizer a step is one pass for all parameters, and does not wait for the device, as in
    /// [`ScaledOptimizer::step`](burn_amp_core::ScaledOptimizer::step). Validation and checkpoints resolve all steps. It steps by itself too: where the model has a
    /// `TrainStep::optimize` that does more than Burn's, say so with [`ScaledOptimizer::with_own_optimize`](burn_amp_core::ScaledOptimizer::with_own_optimize), and it is called, as with other
    /// optimizers.
    ///
    /// One run at a time for each handle: its loss scale, its counters and what ends it are shared.
    ///
    /// ```
    /// use burn::{
    ///     data::{dataloader::{DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset},
    ///     lr_scheduler::constant::ConstantLr, module::Module,
    ///     nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}}, optim::AdamConfig,
    ///     tensor::{Device, Tensor},
    ///     train::{InferenceStep, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep, metric::LossMetric},
    /// };
    /// use burn_amp::{MixedPrecision, autocast, train::LearnerExt};
    ///
    /// #[derive(Module, Debug)]
    /// struct Regressor {
    ///     linear: Linear,
    /// }
    ///
    /// impl TrainStep for Regressor {
    ///     type Input = Tensor<2>;
    ///     type Output = RegressionOutput;
    ///
    ///     fn step(&self, inputs: Tensor<2>) -> TrainOutput<RegressionOutput> {
    ///         let output = InferenceStep::step(self, inputs);
    ///         TrainOutput::new(self, output.loss.backward(), output)
    ///     }
    /// }
    ///
    /// impl InferenceStep for Regressor {
    ///     type Input = Tensor<2>;
    ///     type Output = RegressionOutput;
    ///
    ///     fn step(&self, inputs: Tensor<2>) -> RegressionOutput {
    ///         let targets = inputs.clone().sum_dim(1);
    ///         let output = autocast(inputs, |x| self.linear.forward(x)); // f16 inside, f32 outside
    ///         let loss = MseLoss::new().forward(output.clone(), targets.clone(), Reduction::Mean);
    ///         RegressionOutput::new(loss, output, targets)
    ///     }
    /// }
    ///
    /// struct Rows;
    ///
    /// impl Batcher<[f32; 4], Tensor<2>> for Rows {
    ///     fn batch(&self, rows: Vec<[f32; 4]>, device: &Device) -> Tensor<2> {
    ///         let rows = rows.into_iter().map(|row| Tensor::<1>::from_data(row, device)).collect();
    ///         Tensor::stack(rows, 0)
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = std::env::temp_dir().join(format!("burn-amp-train-{}", std::process::id()));
    /// let device = Device::flex().autodiff();
    /// let rows: Vec<[f32; 4]> = (0..32).map(|i| [i as f32 / 32.0, 0.5, -0.25, 1.0]).collect();
    /// let loader = |rows| DataLoaderBuilder::new(Rows).batch_size(8).build(InMemDataset::new(rows));
    ///
    /// let model = Regressor { linear: LinearConfig::new(4, 1).init(&device) };
    /// let amp = MixedPrecision::f16();
    /// let learner = amp.learner(model, AdamConfig::new().init(), ConstantLr::new(1e-2))?;
    ///
    /// let training = SupervisedTraining::new(&directory, loader(rows.clone()), loader(rows))
    ///     .metrics((LossMetric::new(),))
    ///     .with_default_checkpointers()
    ///     .num_epochs(2);
    /// # let training = training.renderer(Box::new(burn::train::renderer::CliMetricsRenderer::new()));
    /// let result = amp.training(training).launch(learner);
    ///
    /// amp.run_result()?; // a loss scale that is exhausted, or a loss that is NaN, has ended the run
    /// assert_eq!(amp.counters().steps(), 8);
    /// let sums = result.model.linear.forward(Tensor::<2>::ones([1, 4], &Device::flex()));
    /// result.model.into_record().save(directory.join("model"))?;
    /// # let _ = sums;
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::UnsupportedDType`] if a device of the model cannot compute in this precision. [`AmpError::Border`] for parameters that
    /// are f16 themselves. [`AmpError::ForeignRecord`] if the optimizer's state was loaded and is of another model.
    /// [`AmpError::OptimizerThread`] for a [`PipelinedOptimizer`](burn_amp_pipeline::PipelinedOptimizer) whose thread has panicked.
    /// [`AmpError::InvalidValue`] for a setting that is out of its range, for a [`ScaledOptimizer`](burn_amp_core::ScaledOptimizer) that was not made with
    /// this handle, and for one with
    /// [`with_accumulation`](burn_amp_core::ScaledOptimizer::with_accumulation): Burn's learning-rate scheduler would advance with each
    /// micro-batch. For a model that is a [`Scaled`] itself, too.
    fn learner<M: LearnerModel>(
        &self,
        model: M,
        optim: impl Into<LearnerOptimizer>,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Result<Learner<Scaled<M>>, AmpError> {
        let learner = learner::learner(self.borrow(), model, optim.into(), lr_scheduler.into())?;
        // Of a run before this one, whose interrupter the next one may ask first.
        run::forget_failure(self.borrow());
        Ok(learner)
    }

    /// Checks a model whose forward pass calls the free [`autocast`](burn_amp_core::autocast), as [`MixedPrecision::check`] does, before it is
    /// trained in a `Learner`. `loss` computes the loss as the model's `TrainStep` does.
    ///
    /// # Errors
    ///
    /// As [`MixedPrecision::check`].
    fn check_in_learner<M: Module, const D: usize>(
        &self,
        model: &M,
        loss: impl FnMut(&M) -> Tensor<D>,
    ) -> Result<GradientStatus, AmpError> {
        let amp = self.borrow();
        let was_running = set_running(amp, true);
        let status = amp.check(model, loss);
        set_running(amp, was_running);
        status
    }

    /// Adds the metrics of this crate to a training of Burn's, and stops a failed run through Burn's `Interrupter`.
    ///
    /// The metrics: loss scale, skipped steps, gradient norm, share of zero gradients ([`loss_scale_metric`](Self::loss_scale_metric) and the like). There are none
    /// where gradients are not tested, as in f32, and no loss scale in bf16. The end: through the run's interrupter. Set one of
    /// your own (`with_interrupter`) before this call.
    ///
    /// `training` is any `SupervisedTraining`, configured in full or in part.
    fn training<M: LearnerModel>(&self, training: SupervisedTraining<M>) -> SupervisedTraining<M> {
        let amp = self.borrow();
        set_running(amp, true);
        run::forget_failure(amp);
        run::state(amp).interrupter = Some(training.interrupter());
        let training = match amp.is_scaled() {
            true => training.metric_train_numeric(self.loss_scale_metric()),
            false => training,
        };
        match amp.is_tested() {
            true => training
                .metric_train_numeric(self.skipped_steps_metric())
                .metric_train_numeric(self.gradient_norm_metric())
                .metric_train_numeric(self.zero_gradients_metric()),
            false => training,
        }
    }

    /// The error that stopped the run, if any. Call it after `launch`: it also makes the handle ready for use outside a `Learner`, as by `check`.
    /// Never waits for the device.
    ///
    /// More reliable than `LearningResult::error`, which Burn 0.22.1 clears at the end of a run with the dashboard.
    ///
    /// # Errors
    ///
    /// The error that has ended the run: the loss scale is exhausted, the loss is NaN, a parameter cannot be stepped, or the first step of a
    /// model called no [`autocast`](burn_amp_core::autocast) ([`AmpError::NoScope`]). It is forgotten by [`learner`](Self::learner) and
    /// [`training`](Self::training), and when a model that has not failed takes a step: a new model, or one on which
    /// [`Module::train`](burn::module::Module::train) was called.
    fn run_result(&self) -> Result<(), AmpError> {
        set_running(self.borrow(), false);
        run::state(self.borrow()).error.clone().map_or(Ok(()), Err)
    }

    /// The handle through which a run that fails is ended: that of the training given to [`training`](Self::training), or
    /// else one to be given to a run (`with_interrupter`).
    ///
    /// Burn's `LearningResult::error` then says why, as the failure of a worker (the nearest of Burn's errors);
    /// [`run_result`](Self::run_result) has the error itself.
    fn interrupter(&self) -> Interrupter {
        let mut state = run::state(self.borrow());
        state.interrupter.get_or_insert_default().clone()
    }

    /// Ends the run with an error, through the [`interrupter`](Self::interrupter): for strategies and agents that step by
    /// themselves. A `Learner` of [`learner`](Self::learner) does it on its own. The first error of a run stays.
    ///
    /// # Errors
    ///
    /// The error itself, if `interrupter` was never called, so that there is no run to end.
    fn fail_run(&self, error: AmpError) -> Result<(), AmpError> {
        run::fail(self.borrow(), error)
    }

    /// The loss scale after each step. An epoch's value is that at its end, not a mean.
    fn loss_scale_metric(&self) -> ScalerMetric {
        ScalerMetric::new(self.borrow(), Kind::LossScale, "Loss Scale")
    }

    /// The share of the epoch's steps so far that were skipped, or rejected by a hook, in percent. A single
    /// step is 0 or 100.
    fn skipped_steps_metric(&self) -> ScalerMetric {
        ScalerMetric::new(self.borrow(), Kind::SkippedSteps, "Skipped Steps")
    }

    /// The L2 norm of all unscaled gradients before clipping.
    ///
    /// An epoch's value is the mean over its steps, skipped ones left out. "N/A" with a disabled scaler that does not clip: it
    /// measures nothing.
    fn gradient_norm_metric(&self) -> ScalerMetric {
        ScalerMetric::new(self.borrow(), Kind::GradientNorm, "Gradient Norm")
    }

    /// The share of gradient values that are exactly zero, in percent.
    ///
    /// Underflow shows here: compare with the same run in f32, since ReLU and sparse inputs have zeros of their own. An epoch's
    /// value is the mean over its steps. "N/A" with a disabled scaler.
    fn zero_gradients_metric(&self) -> ScalerMetric {
        ScalerMetric::new(self.borrow(), Kind::ZeroGradients, "Zero Gradients")
    }
}

impl LearnerExt for MixedPrecision {}
