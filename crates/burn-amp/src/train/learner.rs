use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLrScheduler,
    optim::ModuleOptimizer,
    tensor::DType,
    train::{Learner, LearnerModel},
};

use super::{Scaled, checkpoint, pipelined::Pipeline};
use crate::{
    error::AmpError, fused::Fused, master_weights::MasterWeights, mixed_precision::MixedPrecision,
    module_optim::ModuleOptim, optimizer::ScaledOptimizer, pipeline::PipelinedOptimizer,
    scaler::GradScaler, step_options::StepOptions,
};

impl MixedPrecision {
    /// A Burn `Learner` that trains a model in this precision, in place of `Learner::new(model, optim, lr_scheduler)`.
    ///
    /// `model` is a plain f32 model with Burn's `TrainStep` and `InferenceStep`, whose forward pass calls
    /// [`autocast`](crate::autocast), the free function: in its steps that is this precision. It is reparameterized
    /// here, unless it has been before. `optim` is Burn's `ModuleOptimizer`, or a [`ScaledOptimizer`] of this handle with
    /// [`with_clipping`](ScaledOptimizer::with_clipping), [`with_guard`](ScaledOptimizer::with_guard) (which sees the norm alone) and
    /// [`with_ema`](ScaledOptimizer::with_ema), whose state goes with it. Accumulation is Burn's `grads_accumulation`. For parameters that are bf16 themselves, `optim` is a
    /// [`MasterWeights`], with or without a `ScaledOptimizer` around it. `lr_scheduler` is any of Burn's. It advances on skipped
    /// steps too, unless it is a [`ScaledLrScheduler`](crate::ScaledLrScheduler). Does not wait for the device.
    ///
    /// With a [`PipelinedOptimizer`] the optimizer steps on a thread of its own, one update behind. Validation and checkpoints wait for it,
    /// and see the newest parameters. It steps by itself: a model's own `TrainStep::optimize` is not called. It takes no averages, and no
    /// training in which each device steps by itself (`ddp`).
    ///
    /// With a [`Fused`] optimizer a step is one pass for all parameters, and does not wait for the device, as in
    /// [`ScaledOptimizer::step`]. Validation and checkpoints hear of all steps. A model with a `TrainStep::optimize` that does more than Burn's
    /// is stepped as by other optimizers; see [`Scaled`].
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
    /// let learner = amp.learner(model, AdamConfig::new().init(), ConstantLr::new(1e-2));
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
    /// # Panics
    ///
    /// Where [`try_learner`](Self::try_learner) returns an error, with its message.
    pub fn learner<M: LearnerModel>(
        &self,
        model: M,
        optim: impl Into<LearnerOptimizer>,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Learner<Scaled<M>> {
        self.try_learner(model, optim, lr_scheduler)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`learner`](Self::learner), for programs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// [`AmpError::UnsupportedDType`] if a device of the model cannot compute in this precision.
    /// [`AmpError::OptimizerThread`] for a [`PipelinedOptimizer`] whose thread has panicked.
    /// [`AmpError::InvalidValue`] for a [`ScaledOptimizer`] that was not made with this handle, and for one with
    /// [`with_accumulation`](ScaledOptimizer::with_accumulation): Burn's learning-rate scheduler would advance with each
    /// micro-batch.
    pub fn try_learner<M: LearnerModel>(
        &self,
        model: M,
        optim: impl Into<LearnerOptimizer>,
        lr_scheduler: impl Into<ModuleLrScheduler>,
    ) -> Result<Learner<Scaled<M>>, AmpError> {
        for device in model.devices() {
            self.check_device(&device)?;
        }
        let LearnerOptimizer {
            optim,
            mixed,
            fused,
            factors,
            scaled,
            pipeline,
        } = optim.into();
        let optim = optim?;
        // A pipeline makes a `ScaledOptimizer` of any optimizer.
        let has_none = |scaler: &GradScaler| scaler.precision().is_none() && !scaler.is_enabled();
        let (scaler, options) = match scaled {
            Some((scaler, options)) if pipeline.is_some() && has_none(&scaler) => {
                (GradScaler::from(self), options)
            }
            Some((scaler, options)) => (*scaler, options),
            None => (GradScaler::from(self), StepOptions::default()),
        };
        if !scaler.precision().is_some_and(|amp| amp.is(self)) {
            let what = "a `ScaledOptimizer` with another scale";
            let allowed = "Burn's own, or `ScaledOptimizer::new(optim, &amp)` with the `MixedPrecision` of the learner";
            return Err(AmpError::InvalidValue {
                field: "optim",
                value: what.into(),
                allowed: allowed.into(),
            });
        }
        if let Some(window) = &options.window {
            let count = window.config().micro_batches;
            let allowed = format!(
                "left out for a Learner, which accumulates by `SupervisedTraining::grads_accumulation({count})`"
            );
            return Err(AmpError::invalid("with_accumulation", count, allowed));
        }
        if pipeline.is_some() && options.ema.is_some() {
            let allowed = "left out for a pipelined optimizer in a Learner";
            return Err(AmpError::InvalidValue {
                field: "with_ema",
                value: "set".into(),
                allowed: allowed.into(),
            });
        }
        let model = model.apply_reparameterization(self.clone());
        let mut model = Scaled::new(model, self.clone(), scaler, options, mixed);
        match pipeline {
            None if fused => model = model.with_fused(factors),
            pipeline => model.pipeline = pipeline,
        }
        let optim = checkpoint::attach(optim, self, model.state());
        Ok(Learner::new(model, optim, lr_scheduler))
    }
}

/// What [`MixedPrecision::learner`] takes: Burn's `ModuleOptimizer`, a [`Fused`] optimizer, a [`MasterWeights`] (for parameters that are bf16
/// themselves), a [`ScaledOptimizer`] around any of them, or a [`PipelinedOptimizer`].
pub struct LearnerOptimizer {
    optim: Result<ModuleOptimizer, AmpError>,
    /// Whether it combines half-precision parameters with f32 gradients.
    mixed: bool,
    /// Whether it makes one pass for all parameters.
    fused: bool,
    /// Whether it multiplies gradients in it.
    factors: bool,
    scaled: Option<(Box<GradScaler>, StepOptions)>,
    pipeline: Option<Pipeline>,
}

impl From<ModuleOptimizer> for LearnerOptimizer {
    fn from(optim: ModuleOptimizer) -> Self {
        Self {
            optim: Ok(optim),
            mixed: false,
            fused: false,
            factors: false,
            scaled: None,
            pipeline: None,
        }
    }
}

impl From<MasterWeights> for LearnerOptimizer {
    fn from(optim: MasterWeights) -> Self {
        Self {
            optim: Ok(optim.into()),
            mixed: true,
            fused: false,
            factors: false,
            scaled: None,
            pipeline: None,
        }
    }
}

impl<C> From<Fused<C>> for LearnerOptimizer {
    fn from(optim: Fused<C>) -> Self {
        Self {
            mixed: true,
            fused: true,
            factors: optim.takes_factors(),
            ..Self::from(optim.into_inner())
        }
    }
}

impl<O: ModuleOptim + Into<ModuleOptimizer>> From<ScaledOptimizer<O>> for LearnerOptimizer {
    fn from(optim: ScaledOptimizer<O>) -> Self {
        Self {
            mixed: optim.optimizer().accepts(DType::F16, DType::F32),
            fused: optim.optimizer().steps_unheard(),
            factors: optim.optimizer().takes_factors(),
            scaled: Some((Box::new(optim.scaler().clone()), optim.options.clone())),
            optim: Ok(optim.into_inner().into()),
            pipeline: None,
        }
    }
}

impl<O> From<PipelinedOptimizer<O>> for LearnerOptimizer
where
    O: ModuleOptim + Into<ModuleOptimizer> + Send + 'static,
{
    fn from(optim: PipelinedOptimizer<O>) -> Self {
        match optim.into_parts() {
            Ok((optim, host, synchronous)) => {
                let fused = optim.optimizer().steps_unheard();
                Self {
                    // Its masters take f32 gradients, whatever the optimizer takes.
                    mixed: true,
                    pipeline: Some(Pipeline::new(host, synchronous, fused)),
                    ..Self::from(optim)
                }
            }
            Err(error) => Self {
                optim: Err(error),
                mixed: false,
                fused: false,
                factors: false,
                scaled: None,
                pipeline: None,
            },
        }
    }
}

impl std::fmt::Debug for LearnerOptimizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LearnerOptimizer")
            .field("scaled", &self.scaled)
            .finish_non_exhaustive()
    }
}
