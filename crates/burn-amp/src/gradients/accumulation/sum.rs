use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{Shape, Tensor},
};

use crate::{error::AmpError, gradients::dtype::working_dtype, param_tensors::ParamTensors};

/// Adds `factor` times the gradients of `module`'s parameters to the sums, in place, in f32 (f64 for f64 parameters).
pub(super) fn add<M: Module>(
    sums: &mut ParamTensors,
    grads: GradientsParams,
    module: &M,
    factor: f64,
) {
    module.visit(&mut Add {
        sums,
        grads,
        factor,
    });
}

/// Refuses gradients that cannot be added to the sums, before anything is changed.
pub(super) fn check<M: Module>(
    sums: &ParamTensors,
    grads: &GradientsParams,
    module: &M,
) -> Result<(), AmpError> {
    let mut check = Check {
        sums,
        grads,
        found: None,
    };
    module.visit(&mut check);
    match check.found {
        Some((id, sum, grad)) => Err(AmpError::ForeignRecord {
            origin: "the accumulation window".to_string(),
            reason: format!(
                "the sum for parameter {} has shape {sum}, but its gradient has {grad}: the window belongs to another \
                 model",
                id.val()
            ),
        }),
        None => Ok(()),
    }
}

struct Add<'a> {
    sums: &'a mut ParamTensors,
    grads: GradientsParams,
    factor: f64,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A parameter shared by two modules is met twice; its gradient is gone the second time.
        let Some(grad) = self.grads.remove::<D>(param.id) else {
            return;
        };
        let grad = grad.inner();
        let sum = match self.sums.take::<D>(param.id, &grad.device()) {
            Some(sum) => burn_amp_kernels::blend(sum, grad, 1.0, self.factor),
            None => {
                // The first gradient's memory becomes the sum's.
                let sum = grad.cast(working_dtype(param.base().dtype()));
                match self.factor {
                    1.0 => sum,
                    factor => sum.mul_scalar(factor),
                }
            }
        };
        self.sums.insert(param.id, sum);
    }
}

struct Check<'a> {
    sums: &'a ParamTensors,
    grads: &'a GradientsParams,
    found: Option<(ParamId, Shape, Shape)>,
}

impl ModuleVisitor for Check<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(sum) = self.sums.shape(param.id) else {
            return;
        };
        let grad = self.grads.get::<D>(param.id).map(|grad| grad.shape());
        if let Some(grad) = grad.filter(|grad| grad != sum) {
            self.found = Some((param.id, sum.clone(), grad));
        }
    }
}

/// Takes the sums of `module`'s parameters out, on the parameters' devices.
pub(super) fn take<M: Module>(sums: ParamTensors, module: &M) -> GradientsParams {
    let mut take = Take {
        sums,
        grads: GradientsParams::new(),
    };
    module.visit(&mut take);
    take.grads
}

struct Take {
    sums: ParamTensors,
    grads: GradientsParams,
}

impl ModuleVisitor for Take {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let device = param.device().inner();
        if let Some(sum) = self.sums.take::<D>(param.id, &device) {
            self.grads.register(param.id, sum);
        }
    }
}
