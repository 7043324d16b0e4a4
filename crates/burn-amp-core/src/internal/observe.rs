//! What `burn-amp-report` sees of a run, and how it tries a loss in other precisions. Internal: it may change with any release.

use burn::tensor::Tensor;
use burn::{module::Module, optim::GradientsParams};
use burn_amp_kernels::{ExponentHistogram, TensorStatus};

use crate::border::MixedPrecision;
use crate::error::AmpError;
use crate::gradients::{Pass, UnscaledGradients, handles};
use crate::scale::finding::SkipCause;
use crate::values::{AnyTensor, distinct_parameters, with_rank};
pub use crate::{
    border::dry_run::DryRun,
    border::mixed_precision::{check_devices, set_observer as set},
    border::observer::{Observer, Stepped},
    border::scope::{observer_here as here, scale_here},
    check::dry_loss,
    lock::locked,
    record::write_whole,
    scale::region::Region,
    values::is_half,
};

/// The parameters with gradients that are not finite, and how many values of each are not.
pub fn overflow_counts(grads: &UnscaledGradients) -> impl Iterator<Item = (&str, u64)> {
    grads.overflow_counts()
}

/// Tells whether the loss scale moves by itself.
pub fn is_dynamic(amp: &MixedPrecision) -> bool {
    amp.is_scaled() && amp.live().config().dynamic
}

/// Counts gradients by exponent. Waits for the device.
pub fn histogram(grads: &UnscaledGradients) -> Result<ExponentHistogram, AmpError> {
    handles(grads.params(), &grads.entries, None).histogram()
}

/// Tells whether the gradient of the loss is the cause of an overflow, and no loss scale; and then whether the model's output was finite.
pub fn is_loss_the_cause(grads: &UnscaledGradients) -> Option<bool> {
    match grads.finding.cause() {
        Some(SkipCause::Loss { output_finite }) => Some(output_finite),
        _ => None,
    }
}

/// The values of a parameter, or of its gradient, in one row.
pub struct Flat {
    /// The path of the parameter.
    pub path: String,
    /// The values, without autodiff.
    pub values: Tensor<1>,
}

/// The gradients of a model's parameters, in its order; or without any the parameters themselves. What has no values is left out.
pub fn values<M: Module>(model: &M, grads: Option<&GradientsParams>) -> Vec<Flat> {
    let parameters = distinct_parameters(model).into_iter();
    let flat = parameters.filter_map(|found| {
        let values = match grads {
            Some(grads) => {
                with_rank!(found.value.rank(), D => grads.get::<D>(found.id).map(AnyTensor::new))?
            }
            None => found.value,
        };
        let (path, values) = (found.path, values.flat()?);
        Some(Flat { path, values })
    });
    flat.collect()
}

/// Measures tensors on any devices. Waits for each device once.
pub fn measure<'a>(
    tensors: impl Iterator<Item = &'a Tensor<1>>,
) -> Result<Vec<TensorStatus>, AmpError> {
    let tensors = tensors.cloned().map(AnyTensor::new);
    Ok(Pass::over(tensors.collect()).inspect(Vec::new())?.0)
}

/// Counts values on any devices by exponent. Waits for each device once.
pub fn count(tensors: impl Iterator<Item = Tensor<1>>) -> Result<ExponentHistogram, AmpError> {
    Pass::over(tensors.map(AnyTensor::new).collect()).histogram()
}
