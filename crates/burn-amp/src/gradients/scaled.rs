use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{GradientsParams, MultiGradientsParams},
    tensor::Tensor,
};

use super::dtype::working_dtype;

/// Gradients of a scaled loss: too large by the loss scale, possibly infinite.
///
/// Made by [`GradScaler::backward`](crate::GradScaler::backward) and [`GradScaler::scaled`](crate::GradScaler::scaled) alone:
/// a plain [`GradientsParams`] is unscaled. [`GradScaler::unscale`](crate::GradScaler::unscale) turns them into
/// [`UnscaledGradients`](super::UnscaledGradients).
#[derive(Debug)]
pub struct ScaledGradients {
    params: GradientsParams,
    scale: f32,
}

impl ScaledGradients {
    pub(crate) fn new(params: GradientsParams, scale: f32) -> Self {
        Self { params, scale }
    }

    /// The loss scale that these gradients carry.
    pub fn loss_scale(&self) -> f32 {
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
}

/// Sums the gradients that several devices computed, as
/// [`ModuleOptimizer::step_multi`](burn::optim::ModuleOptimizer::step_multi) does, but in f32 for f16 and bf16 gradients (f64
/// stays f64), so that the sum neither overflows nor rounds in half precision.
///
/// An infinity or a NaN on one device stays one in the sum: all devices take the same decision. Moves gradients between
/// devices; does not read them. Scaled gradients of one loss scale give scaled ones, for
/// [`GradScaler::scaled`](crate::GradScaler::scaled).
pub fn sum_of_devices<M: Module>(grads: MultiGradientsParams, module: &M) -> GradientsParams {
    let mut sum = Sum {
        sources: grads,
        total: GradientsParams::new(),
    };
    module.visit(&mut sum);
    sum.total
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
