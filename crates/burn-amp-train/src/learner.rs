use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLrScheduler,
    optim::ModuleOptimizer,
    tensor::DType,
    train::{Learner, LearnerModel},
};

use super::{
    Scaled, checkpoint,
    stepper::{Kind, Place},
    steps::Steps,
};
use burn_amp_core::{
    AmpError, Ema, GradScaler, MixedPrecision, ModuleOptim, ScaledOptimizer, internal::StepOptions,
};
use burn_amp_pipeline::PipelinedOptimizer;

impl MixedPrecision {
    /// A Burn `Learner` that trains a model in this precision, in place of `Learner::new(model, optim, lr_scheduler)`.
    ///
    /// `model` is a plain f32 model with Burn's `TrainStep` and `InferenceStep`, whose forward pass calls
    /// [`autocast`](crate::autocast), the free function: in its steps that is this precision. It is reparameterized
    /// here, unless it has been before. `optim` is Burn's `ModuleOptimizer`, or a [`ScaledOptimizer`] of this handle with
    /// [`with_clipping`](ScaledOptimizer::with_clipping), [`with_guard`](ScaledOptimizer::with_guard) (which sees the norm alone) and
    /// [`with_ema`](ScaledOptimizer::with_ema), whose state goes with it. Accumulation is Burn's `grads_accumulation`. For parameters that are bf16 themselves, `optim` is a
    /// [`MasterWeights`](crate::MasterWeights), with or without a `ScaledOptimizer` around it. `lr_scheduler` is any of Burn's. It advances on skipped
    /// steps too, unless it is a [`ScaledLrScheduler`](crate::ScaledLrScheduler). Does not wait for the device.
    ///
    /// With a [`PipelinedOptimizer`] the optimizer steps on a thread of its own, one update behind. Validation and checkpoints wait for it,
    /// and see the newest parameters. It steps by itself: a model's own `TrainStep::optimize` is not called. It takes no averages, and no
    /// training in which each device steps by itself (`ddp`).
    ///
    /// With a [`Fused`](crate::Fused) optimizer a step is one pass for all parameters, and does not wait for the device, as in
    /// [`ScaledOptimizer::step`]. Validation and checkpoints hear of all steps. It steps by itself too: where the model has a
    /// `TrainStep::optimize` that does more than Burn's, say so with [`ScaledOptimizer::with_own_optimize`], and it is called, as with other
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
    /// use burn_amp::{MixedPrecision, autocast};
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
    /// [`AmpError::UnsupportedDType`] if a device of the model cannot compute in this precision.
    /// [`AmpError::OptimizerThread`] for a [`PipelinedOptimizer`] whose thread has panicked.
    /// [`AmpError::InvalidValue`] for a [`ScaledOptimizer`] that was not made with this handle, and for one with
    /// [`with_accumulation`](ScaledOptimizer::with_accumulation): Burn's learning-rate scheduler would advance with each
    /// micro-batch.
    pub fn learner<M: LearnerModel>(
        &self,
        model: M,
        optim: impl Into<LearnerOptimizer>,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Result<Learner<Scaled<M>>, AmpError> {
        for device in model.devices() {
            self.check_device(&device)?;
        }
        let LearnerOptimizer(parts) = optim.into();
        let parts = parts?;
        self.enter_learner();
        let mut scaler = parts.scaler.unwrap_or_else(|| self.into());
        let is_pipelined = parts.kind.thread.is_some();
        self.check_options(&scaler, &parts.options, is_pipelined)?;
        if parts.kind.fused || is_pipelined {
            log::info!(
                "the optimizer steps the model by itself, and calls no `TrainStep::optimize` that the model may have of its own; a fused one \
                 does with `ScaledOptimizer::with_own_optimize`"
            );
        }
        let model = model.apply_reparameterization(self.clone());
        // Burn clones the model: only its forks, for workers, count as optimizers of their own.
        scaler.leave();
        scaler.show_loaded();
        let steps = Steps::new(parts.kind, scaler, parts.options);
        let model = Scaled::new(model, self.clone(), steps);
        let mut optim = checkpoint::attach(parts.optim, self);
        checkpoint::exchange(&mut optim, Some(&model.steps.shared));
        Ok(Learner::new(model, optim, lr_scheduler))
    }

    /// Refuses what no Learner of this handle can step with.
    fn check_options(
        &self,
        scaler: &GradScaler,
        options: &StepOptions,
        is_pipelined: bool,
    ) -> Result<(), AmpError> {
        if !scaler.precision().is_some_and(|amp| amp.is(self)) {
            let allowed = "Burn's own, or `ScaledOptimizer::new(optim, &amp)` with the `MixedPrecision` of the learner";
            let value = "a `ScaledOptimizer` with another scale";
            return Err(AmpError::refused("optim", value, allowed));
        }
        if let Some(window) = &options.window {
            let count = window.config().micro_batches;
            let allowed = format!(
                "left out for a Learner, which accumulates by `SupervisedTraining::grads_accumulation({count})`"
            );
            return Err(AmpError::invalid("with_accumulation", count, allowed));
        }
        match is_pipelined && options.hooks.get::<Ema>().is_some() {
            true => Err(not_pipelined("with_ema")),
            false => Ok(()),
        }
    }
}

fn not_pipelined(field: &'static str) -> AmpError {
    let allowed = "left out for a pipelined optimizer in a Learner";
    AmpError::refused(field, "set", allowed)
}

/// What [`MixedPrecision::learner`] takes: Burn's `ModuleOptimizer`, a [`Fused`](crate::Fused) optimizer, a [`MasterWeights`](crate::MasterWeights) (for parameters that are bf16
/// themselves), a [`ScaledOptimizer`] around any of them, or a [`PipelinedOptimizer`].
pub struct LearnerOptimizer(Result<Parts, AmpError>);

/// An optimizer taken apart.
struct Parts {
    optim: ModuleOptimizer,
    kind: Kind,
    /// None of an optimizer without one.
    scaler: Option<GradScaler>,
    options: StepOptions,
}

impl Parts {
    fn of<O: ModuleOptim + Into<ModuleOptimizer>>(optim: O) -> Self {
        Self {
            kind: Kind {
                mixed: optim.accepts(DType::F16, DType::F32),
                fused: optim.steps_on_device(),
                thread: None,
            },
            optim: optim.into(),
            scaler: None,
            options: StepOptions::default(),
        }
    }

    fn of_scaled<O: ModuleOptim + Into<ModuleOptimizer>>(mut optim: ScaledOptimizer<O>) -> Self {
        // Its counters are those of all its steps.
        optim.resolve();
        let scaler = Some(optim.scaler().clone());
        let (options, has_own) = (optim.options.clone(), optim.own_optimize);
        let mut parts = Self::of(optim.into_inner());
        parts.kind.fused &= !has_own;
        Self {
            scaler,
            options,
            ..parts
        }
    }

    fn of_pipelined<O>(optim: PipelinedOptimizer<O>) -> Result<Self, AmpError>
    where
        O: ModuleOptim + Into<ModuleOptimizer> + Send + 'static,
    {
        let (optim, host, synchronous) = optim.into_parts()?;
        if optim.own_optimize {
            return Err(not_pipelined("with_own_optimize"));
        }
        let mut parts = Self::of_scaled(optim);
        // A pipeline makes a `ScaledOptimizer` of any optimizer.
        let is_scaled = |scaler: &GradScaler| scaler.precision().is_some() || scaler.is_enabled();
        parts.scaler = parts.scaler.filter(is_scaled);
        // Its masters take f32 gradients, whatever the optimizer takes.
        parts.kind.mixed = true;
        parts.kind.thread = Some(Place { host, synchronous });
        Ok(parts)
    }
}

impl<O: ModuleOptim + Into<ModuleOptimizer>> From<O> for LearnerOptimizer {
    fn from(optim: O) -> Self {
        Self(Ok(Parts::of(optim)))
    }
}

impl<O: ModuleOptim + Into<ModuleOptimizer>> From<ScaledOptimizer<O>> for LearnerOptimizer {
    fn from(optim: ScaledOptimizer<O>) -> Self {
        Self(Ok(Parts::of_scaled(optim)))
    }
}

impl<O> From<PipelinedOptimizer<O>> for LearnerOptimizer
where
    O: ModuleOptim + Into<ModuleOptimizer> + Send + 'static,
{
    fn from(optim: PipelinedOptimizer<O>) -> Self {
        Self(Parts::of_pipelined(optim))
    }
}

impl std::fmt::Debug for LearnerOptimizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LearnerOptimizer").finish_non_exhaustive()
    }
}
