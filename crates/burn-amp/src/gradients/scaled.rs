use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{GradientsParams, MultiGradientsParams},
    tensor::Tensor,
};

use super::dtype::working_dtype;

/// Gradients of a scaled loss: too large by the loss scale, possibly infinite.
///
/// Made by [`GradScaler::backward`](crate::GradScaler::backward), or from the [`GradientsParams`] of a
/// backward pass that the user ran on a scaled loss. [`GradScaler::unscale`](crate::GradScaler::unscale)
/// turns them into [`UnscaledGradients`](super::UnscaledGradients).
#[derive(Debug)]
pub struct ScaledGradients {
    params: GradientsParams,
    scale: Option<f32>,
}

impl ScaledGradients {
    pub(crate) fn new(params: GradientsParams, scale: f32) -> Self {
        Self {
            params,
            scale: Some(scale),
        }
    }

    /// The loss scale that these gradients carry, if known.
    ///
    /// Gradients that came from a plain [`GradientsParams`] do not know it: they are taken to carry the
    /// scaler's scale at the time they are unscaled.
    pub fn loss_scale(&self) -> Option<f32> {
        self.scale
    }

    /// Burn's own container of the still scaled gradients.
    pub fn params(&self) -> &GradientsParams {
        &self.params
    }

    /// Burn's own container, to change scaled gradients in place.
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        &mut self.params
    }

    /// Burn's own container, the scale forgotten.
    pub fn into_params(self) -> GradientsParams {
        self.params
    }

    /// Sums the gradients that several devices computed at one loss scale, as
    /// [`ModuleOptimizer::step_multi`](burn::optim::ModuleOptimizer::step_multi) does, but in f32 for f16
    /// and bf16 gradients (f64 stays f64), so that the sum neither overflows nor rounds in half precision.
    ///
    /// An infinity or a NaN on one device stays one in the sum: all devices take the same decision.
    /// Moves gradients between devices; does not read them.
    pub fn from_multi<M: Module>(grads: MultiGradientsParams, module: &M) -> Self {
        let mut sum = Sum {
            sources: grads,
            total: GradientsParams::new(),
        };
        module.visit(&mut sum);
        sum.total.into()
    }
}

impl From<GradientsParams> for ScaledGradients {
    fn from(params: GradientsParams) -> Self {
        Self {
            params,
            scale: None,
        }
    }
}

struct Sum {
    sources: MultiGradientsParams,
    total: GradientsParams,
}

impl ModuleVisitor for Sum {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        for (grads, _) in &mut self.sources.grads {
            if let Some(grad) = grads.remove::<D>(param.id) {
                let wide = working_dtype(grad.dtype());
                grads.register(param.id, grad.cast(wide));
            }
        }
        if let Some((grad, _)) = self.sources.remove::<D>(param.id) {
            self.total.register(param.id, grad);
        }
    }
}
