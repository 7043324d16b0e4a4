//! Burn's `Learner` in half precision (feature `train`): dashboard, metrics, checkpoints, resume, accumulation and several
//! devices stay Burn's, and so do the model's `TrainStep` and `InferenceStep`.
//!
//! ```
//! use burn::{
//!     data::{dataloader::{DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset},
//!     lr_scheduler::constant::ConstantLr, module::Module,
//!     nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}}, optim::AdamConfig,
//!     tensor::{Device, Tensor},
//!     train::{InferenceStep, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep, metric::LossMetric},
//! };
//! use burn_amp::{MixedPrecision, AmpTraining, autocast};
//!
//! #[derive(Module, Debug)]
//! struct Regressor {
//!     linear: Linear,
//! }
//!
//! impl TrainStep for Regressor {
//!     type Input = Tensor<2>;
//!     type Output = RegressionOutput;
//!
//!     fn step(&self, inputs: Tensor<2>) -> TrainOutput<RegressionOutput> {
//!         let output = InferenceStep::step(self, inputs);
//!         TrainOutput::new(self, output.loss.backward(), output)
//!     }
//! }
//!
//! impl InferenceStep for Regressor {
//!     type Input = Tensor<2>;
//!     type Output = RegressionOutput;
//!
//!     fn step(&self, inputs: Tensor<2>) -> RegressionOutput {
//!         let targets = inputs.clone().sum_dim(1);
//!         let output = autocast(inputs, |x| self.linear.forward(x)); // f16 inside, f32 outside
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
//! let model = Regressor { linear: LinearConfig::new(4, 1).init(&device) };
//! let amp = MixedPrecision::f16();
//! let learner = amp.learner(model, AdamConfig::new().init(), ConstantLr::new(1e-2));
//!
//! let result = SupervisedTraining::new(&directory, loader(rows.clone()), loader(rows))
//!     .metrics((LossMetric::new(),))
//!     .with_amp(&amp)
//!     .with_default_checkpointers()
//!     .num_epochs(2)
//! #   .renderer(Box::new(burn::train::renderer::CliMetricsRenderer::new()))
//!     .launch(learner);
//!
//! amp.monitor().check()?; // a loss scale that is exhausted, or a loss that is NaN, has ended the run
//! assert_eq!(amp.monitor().last().steps, 8);
//! let sums = result.model.linear.forward(Tensor::<2>::ones([1, 4], &Device::flex()));
//! result.model.into_record().save(directory.join("model"))?;
//! # let _ = sums;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok(())
//! # }
//! ```

mod carrier;
mod ending;
mod learner;
mod metrics;
mod module;
mod resume;
mod scaled;
mod training;

pub use learner::LearnerOptimizer;
pub use metrics::{GradientNormMetric, LossScaleMetric, SkippedStepsMetric, ZeroGradientsMetric};
pub use resume::Resume;
pub use scaled::Scaled;
pub use training::AmpTraining;
