//! Burn's `Learner` in half precision (feature `train`): dashboard, metrics, checkpoints, resume, accumulation and several
//! devices stay Burn's, and so do the model's `TrainStep` and `InferenceStep`.

mod checkpoint;
mod learner;
mod metric;
mod module;
mod resume;
mod run;
mod scaled;
mod stepper;
mod steps;

pub use resume::Resume;
pub use scaled::Scaled;
