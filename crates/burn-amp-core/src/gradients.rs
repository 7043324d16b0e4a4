//! Gradients: found, tested, clipped, summed.

pub(super) mod clip;
mod culprit;
pub(super) mod entries;
pub(crate) mod pass;
pub(super) mod running_statistics;
pub(crate) use crate::scale::status;
mod typed;
pub(crate) mod unscale;

pub(crate) use clip::{Factors, GradientClip};
pub use culprit::failed_step;
pub(crate) use entries::{Entries, Entry, put_gradient};
pub(crate) use pass::{Pass, handles};
pub use running_statistics::unchanged;
pub(crate) use status::GradientStatus;
pub use typed::{ScaledGradients, StepGradients, UnscaledGradients};
pub(crate) use unscale::inspect;

use burn::module::Module;
use burn::optim::{GradientsParams, MultiGradientsParams};
use burn_amp_kernels::in_own_memory;

use crate::values::{Parameter, parameters, with_rank, working_dtype};

/// Sums the gradients that several devices computed, as
/// [`ModuleOptimizer::step_multi`](burn::optim::ModuleOptimizer::step_multi) does, but in f32 for f16 and bf16 gradients (f64
/// stays f64), so that the sum neither overflows nor rounds in half precision.
///
/// An infinity or a NaN on one device stays one in the sum: all devices step or skip together. Moves gradients between
/// devices; does not read them. Scaled gradients of one loss scale give scaled ones, for
/// [`Scaler::scaled`](crate::Scaler::scaled).
///
/// # Panics
///
/// In Burn, if a gradient does not have its parameter's rank, or gradients of one parameter have several shapes.
/// [`ScaledOptimizer::step_multi`](crate::ScaledOptimizer::step_multi) makes an error of that.
pub fn sum_of_devices<M: Module>(mut grads: MultiGradientsParams, module: &M) -> GradientsParams {
    let mut total = GradientsParams::new();
    for parameter in parameters(module) {
        let id = parameter.id;
        with_rank!(parameter.value.rank(), D => {
            for (grads, _) in &mut grads.grads {
                if let Some(grad) = grads.remove::<D>(id) {
                    let wide = working_dtype(grad.dtype());
                    grads.register(id, grad.inner().cast(wide));
                }
            }
            if let Some((sum, _)) = grads.remove::<D>(id) {
                total.register(id, in_own_memory(sum));
            }
        });
    }
    total
}

/// Gradients that another thread has made, in memory of this one, so that others may read what a step makes of it: see
/// [`in_own_memory`]. Does not wait for the device.
pub fn of_this_thread<M: Module>(mut grads: GradientsParams, module: &M) -> GradientsParams {
    for parameter in parameters(module) {
        with_rank!(parameter.value.rank(), D => {
            if let Some(grad) = grads.remove::<D>(parameter.id) {
                grads.register(parameter.id, in_own_memory(grad));
            }
        });
    }
    grads
}

/// Gradients in the dtype of their parameters' masters: f16 and bf16 become f32. What has another shape than its parameter stays as it is, for the
/// step to refuse. Does not wait for the device.
pub fn widened<M: Module>(mut grads: GradientsParams, module: &M) -> GradientsParams {
    for entry in Entries::of(&grads, module).unwrap_or_default().gradients {
        let wide = working_dtype(entry.parameter);
        entry.change(&mut grads, |grad| grad.cast(wide));
    }
    grads
}

/// Values of parameters in the place of gradients, where Burn's optimizer only asks which parameters have one.
pub fn placeholders(parameters: impl IntoIterator<Item = Parameter>) -> GradientsParams {
    let mut grads = GradientsParams::new();
    for Parameter { id, value, .. } in parameters {
        put_gradient(id, &mut grads, value);
    }
    grads
}

/// Sums of gradients, each in the container of its device.
pub fn by_device<M: Module>(mut grads: GradientsParams, module: &M) -> MultiGradientsParams {
    let mut sorted = MultiGradientsParams::default();
    for entry in Entries::of(&grads, module).unwrap_or_default().gradients {
        if let Some(grad) = entry.take(&mut grads) {
            let (device, sorted) = (grad.device(), &mut sorted.grads);
            let place = sorted.iter().position(|(_, other)| *other == device);
            let place = place.unwrap_or_else(|| {
                sorted.push((GradientsParams::new(), device));
                sorted.len() - 1
            });
            entry.put(&mut sorted[place].0, grad);
        }
    }
    sorted
}
