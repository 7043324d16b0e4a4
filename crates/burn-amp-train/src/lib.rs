//! Burn's `Learner` in half precision: dashboard, metrics, checkpoints, resume, accumulation and several
//! devices stay Burn's, and so do the model's `TrainStep` and `InferenceStep`.
//!
//! Part of [burn-amp](https://docs.rs/burn-amp), which shows it as `burn_amp::train` (feature `train`). Begin with [`LearnerExt::launch`].

mod learner;
mod learner_ext;
mod metric;
mod module;
mod resume;
mod run;
mod scaled;
mod steps;

pub use learner::LearnerOptimizer;
pub use learner_ext::LearnerExt;
pub use metric::ScalerMetric;
pub use resume::Resume;
pub use scaled::Scaled;
