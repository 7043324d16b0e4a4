//! Burn metrics that show a loss scaler at work.

mod averaged;
mod follow;
mod gradient_norm;
mod loss_scale;
mod skipped_steps;
mod zero_gradients;

pub use gradient_norm::GradientNormMetric;
pub use loss_scale::LossScaleMetric;
pub use skipped_steps::SkippedStepsMetric;
pub use zero_gradients::ZeroGradientsMetric;
