use burn::{module::Module, optim::GradientsParams};
use burn_amp_kernels::ExponentHistogram;

use super::unscale::look;
use crate::error::AmpError;

/// Counts the values of all gradients of `module`'s parameters by binary exponent, in one pass.
///
/// To see how far gradients reach below the range of f16, and which loss scale lifts them: what has exponent `e`
/// has `e + log2(scale)` in a scaled gradient, and f16 holds -24 to 15. Gradients are taken as they are, in f16, bf16,
/// f32 or f64, and are left untouched. Waits for each device once, for one small transfer.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 2).with_bias(false).init(&device);
/// let input = Tensor::<2>::ones([1, 4], &device) * 1e-8;
/// let grads = GradientsParams::from_grads(model.forward(input).sum().backward(), &model);
///
/// let counts = burn_amp::histogram(&grads, &model)?;
/// assert_eq!(counts.count(-27), Some(8)); // 2^-27 <= 1e-8 < 2^-26
/// assert_eq!(counts.below_exponent(-24), 8); // all of them are zero in f16
/// assert_eq!(counts.below_exponent(-24 - 16), 0); // and none at a scale of 65536
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
///
/// # Errors
///
/// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype, [`AmpError::GradientShape`] if a gradient has
/// not its parameter's shape.
pub fn histogram<M: Module>(
    grads: &GradientsParams,
    module: &M,
) -> Result<ExponentHistogram, AmpError> {
    let (_, pass) = look(grads, module)?;
    Ok(pass.histogram()?)
}
