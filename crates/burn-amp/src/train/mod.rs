//! Burn's `Learner` with loss scaling (feature `train`): dashboard, metrics, checkpoints, resume, accumulation and several
//! devices stay Burn's.
//!
//! Two lines differ from a plain Burn program: the model implements [`LossStep`] in place of `TrainStep`, and
//! [`ScaledOptimizer::into_learner`](crate::ScaledOptimizer::into_learner) builds the learner.
//!
//! ```
//! use burn::{
//!     data::{dataloader::{DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset},
//!     lr_scheduler::constant::ConstantLr, module::Module,
//!     nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}}, optim::AdamConfig,
//!     tensor::{Device, Tensor},
//!     train::{InferenceStep, RegressionOutput, SupervisedTraining, metric::LossMetric},
//! };
//! use burn_amp::{
//!     GradScalerConfig, LossScaleMetric, LossStep, MixedPrecision, ScaledOptimizer, SkippedStepsMetric,
//! };
//!
//! #[derive(Module, Debug)]
//! struct Regressor {
//!     linear: Linear,
//! }
//!
//! impl LossStep for Regressor {
//!     type Input = Tensor<2>;
//!     type Output = RegressionOutput;
//!
//!     fn loss_step(&self, inputs: Tensor<2>) -> (Tensor<1>, RegressionOutput) {
//!         let output = InferenceStep::step(self, inputs);
//!         (output.loss.clone(), output)
//!     }
//! }
//!
//! impl InferenceStep for Regressor {
//!     type Input = Tensor<2>;
//!     type Output = RegressionOutput;
//!
//!     fn step(&self, inputs: Tensor<2>) -> RegressionOutput {
//!         let targets = inputs.clone().sum_dim(1);
//!         let output = MixedPrecision::f16().autocast(inputs, |x| self.linear.forward(x));
//!         let loss = MseLoss::new().forward(output.clone(), targets.clone(), Reduction::Mean);
//!         RegressionOutput::new(loss, output, targets)
//!     }
//! }
//!
//! struct Rows;
//!
//! impl Batcher<[f32; 4], Tensor<2>> for Rows {
//!     fn batch(&self, rows: Vec<[f32; 4]>, device: &Device) -> Tensor<2> {
//!         let rows = rows.into_iter().map(|row| Tensor::<1>::from_data(row, device)).collect();
//!         Tensor::stack(rows, 0)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = std::env::temp_dir().join(format!("burn-amp-train-{}", std::process::id()));
//! let device = Device::flex().autodiff();
//! let rows: Vec<[f32; 4]> = (0..32).map(|i| [i as f32 / 32.0, 0.5, -0.25, 1.0]).collect();
//! let loader = |rows| DataLoaderBuilder::new(Rows).batch_size(8).build(InMemDataset::new(rows));
//!
//! let linear = LinearConfig::new(4, 1).init(&device);
//! let model = Regressor { linear }.apply_reparameterization(MixedPrecision::f16());
//! let optim = ScaledOptimizer::new(AdamConfig::new().init(), GradScalerConfig::new().init()?);
//! let monitor = optim.monitor();
//! let learner = optim.into_learner(model, ConstantLr::new(1e-2));
//!
//! let result = SupervisedTraining::new(&directory, loader(rows.clone()), loader(rows))
//!     .metrics((LossMetric::new(),))
//!     .metric_train_numeric(LossScaleMetric::new(&monitor))
//!     .metric_train_numeric(SkippedStepsMetric::new(&monitor))
//!     .with_default_checkpointers()
//!     .num_epochs(2)
//! #   .renderer(Box::new(burn::train::renderer::CliMetricsRenderer::new()))
//!     .launch(learner);
//!
//! monitor.check()?; // an exhausted loss scale has ended the run
//! assert_eq!(result.model.scaler().counters().steps(), 8);
//! let model: Regressor = result.model.into_inner();
//! # let _ = model;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok(())
//! # }
//! ```
//!
//! # What goes with the optimizer
//!
//! Clipping ([`with_clipping`](crate::ScaledOptimizer::with_clipping)) and averages of the weights
//! ([`with_ema`](crate::ScaledOptimizer::with_ema)), which are in the model's file of each checkpoint; [`Scaled::ema`] and
//! [`Scaled::finalize`] give them. Accumulation is Burn's `grads_accumulation`: an optimizer with
//! [`with_accumulation`](crate::ScaledOptimizer::with_accumulation) is refused.
//!
//! # A run that can only skip
//!
//! `AmpError::LossScaleExhausted` ends the run through Burn's error path: the dashboard closes, `LearningResult::error` is set,
//! checkpoints of earlier epochs stay. One of this crate's metrics reports it, or the run's interrupter, if that is
//! [`ScalerMonitor::interrupter`](crate::ScalerMonitor::interrupter). Without both, `optimize` panics with the message, and a
//! few steps later if there is one that the run was not given. The model can be trained again: call `train` on it, or
//! load a checkpoint into it.
//! Ask [`ScalerMonitor::check`](crate::ScalerMonitor::check) after the run: with the dashboard, Burn 0.22.1 loses
//! `LearningResult::error`.

mod averages;
mod checkpoint;
mod checkpointers;
mod ending;
mod learner;
mod loss_step;
mod metrics;
mod module;
mod recorded;
mod resumed_loader;
mod scaled;
mod state;

pub use checkpoint::check_checkpoint;
pub use checkpointers::{NamingCheckpointer, checkpointers};
pub use loss_step::LossStep;
pub use metrics::{GradientNormMetric, LossScaleMetric, SkippedStepsMetric, ZeroGradientsMetric};
pub use resumed_loader::resumed_loader;
pub use scaled::Scaled;
