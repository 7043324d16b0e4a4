use burn::{
    module::ParamId,
    optim::GradientsParams,
    tensor::{DType, Tensor},
};

use super::{GradientStatus, rank::with_rank};

/// Gradients after unscaling, with what the same pass has found in them.
///
/// f32 for f16, bf16 and f32 parameters, f64 for f64 ones, unless
/// [`GradientDType::Parameter`](super::GradientDType::Parameter) was asked for; of a disabled scaler, as they
/// came. They may be read and changed (clipped, say) before
/// [`GradScaler::step`](crate::GradScaler::step); whether the step is skipped was decided when they were
/// unscaled. There is no way back to [`ScaledGradients`](super::ScaledGradients), so unscaling twice does
/// not compile:
///
/// ```compile_fail
/// # fn twice<M: burn::module::Module>(scaler: &burn_amp::GradScaler, once: burn_amp::UnscaledGradients, model: &M) {
/// let twice = scaler.unscale(once, model);
/// # }
/// ```
#[derive(Debug)]
pub struct UnscaledGradients {
    params: GradientsParams,
    entries: Vec<Entry>,
    status: GradientStatus,
}

/// What is known of one gradient beside its values.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ParamId,
    pub(crate) path: String,
    pub(crate) rank: usize,
    pub(crate) parameter: DType,
    pub(crate) gradient: DType,
}

/// A change to every gradient, whatever its rank. See [`UnscaledGradients::map`].
pub trait GradientMapper {
    /// Returns the gradient to use in place of `grad`; shape, dtype and device must stay.
    ///
    /// `path` is that of the parameter in its module, as optimizer groups see it: `"layer.weight"`.
    fn map<const D: usize>(&mut self, path: &str, id: ParamId, grad: Tensor<D>) -> Tensor<D>;
}

impl UnscaledGradients {
    pub(crate) fn new(
        params: GradientsParams,
        entries: Vec<Entry>,
        status: GradientStatus,
    ) -> Self {
        Self {
            params,
            entries,
            status,
        }
    }

    /// What the unscaling pass has found. Changes made to the gradients since are not in it.
    pub fn status(&self) -> &GradientStatus {
        &self.status
    }

    /// Whether a gradient holds an infinity or a NaN, so that the step will be skipped.
    pub fn has_overflow(&self) -> bool {
        self.status.has_overflow()
    }

    /// Burn's own container of the unscaled gradients.
    pub fn params(&self) -> &GradientsParams {
        &self.params
    }

    /// Burn's own container, to replace gradients one by one; those of a parameter that had none are not stepped on.
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        &mut self.params
    }

    /// Burn's own container, to step an optimizer by hand. The status is lost, and with it the decision to skip.
    pub fn into_params(self) -> GradientsParams {
        self.params
    }

    /// The gradient of a parameter, if it has one. A handle to the same memory; does not wait.
    ///
    /// # Panics
    ///
    /// If `D` is not the rank of the parameter, as [`GradientsParams::get`] does.
    pub fn get<const D: usize>(&self, id: ParamId) -> Option<Tensor<D>> {
        self.params.get(id)
    }

    /// The paths and ids of the parameters that have a gradient, in the module's order.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, ParamId)> {
        self.entries
            .iter()
            .map(|entry| (entry.path.as_str(), entry.id))
    }

    /// Multiplies every gradient by a number, on its device and in its dtype; does not wait.
    ///
    /// Clipping by the global norm, as `torch.nn.utils.clip_grad_norm_` does it:
    ///
    /// ```
    /// # fn clip(grads: burn_amp::UnscaledGradients) -> burn_amp::UnscaledGradients {
    /// let max_norm = 1.0;
    /// let coefficient = max_norm / (grads.status().norm() + 1e-6);
    /// grads.mul_scalar(coefficient.min(1.0))
    /// # }
    /// ```
    pub fn mul_scalar(self, factor: f64) -> Self {
        self.map(&mut MulScalar(factor))
    }

    /// Replaces every gradient by what `mapper` makes of it, in the module's order.
    pub fn map<F: GradientMapper>(mut self, mapper: &mut F) -> Self {
        for entry in &self.entries {
            with_rank!(
                entry.rank,
                D => map_entry::<D, F>(&mut self.params, entry, mapper),
                rank => log::warn!("gradient of `{}` has rank {rank}: left as it is", entry.path)
            );
        }
        self
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

fn map_entry<const D: usize, F: GradientMapper>(
    params: &mut GradientsParams,
    entry: &Entry,
    mapper: &mut F,
) {
    if let Some(grad) = params.remove::<D>(entry.id) {
        let grad = mapper.map(&entry.path, entry.id, grad);
        params.register(entry.id, grad);
    }
}

struct MulScalar(f64);

impl GradientMapper for MulScalar {
    fn map<const D: usize>(&mut self, _path: &str, _id: ParamId, grad: Tensor<D>) -> Tensor<D> {
        grad.mul_scalar(self.0)
    }
}
