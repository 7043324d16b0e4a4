use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{DType, Tensor},
};

use std::collections::HashSet;

use crate::{
    error::AmpError,
    gradients::{dtype::working_dtype, shape::check_shape, unscale::log_strangers},
    module_path::ModulePath,
    param_tensors::ParamTensors,
};

/// Adds `factor` times the gradients of `module`'s parameters to the sums, in place, in f32 (f64 for f64 parameters).
pub(super) fn add<M: Module>(
    sums: &mut ParamTensors,
    grads: GradientsParams,
    module: &M,
    factor: f64,
) {
    let mut add = Add {
        sums,
        grads,
        factor,
    };
    module.visit(&mut add);
    log_strangers(add.grads.len());
}

/// Refuses sums that are not of `module`'s parameters, and gradients that cannot be added to them, before anything is
/// changed.
pub(super) fn check<M: Module>(
    sums: &ParamTensors,
    grads: Option<&GradientsParams>,
    module: &M,
) -> Result<(), AmpError> {
    let mut check = Check {
        sums,
        grads,
        path: ModulePath::default(),
        known: HashSet::new(),
        found: None,
        refused: None,
    };
    module.visit(&mut check);
    if let Some(error) = check.refused {
        return Err(error);
    }
    let unknown = sums.len() - check.known.len();
    let found = check.found.or_else(|| {
        let text = format!(
            "{unknown} of its {} sums are of no parameter here",
            sums.len()
        );
        (unknown > 0).then_some(text)
    });
    match found {
        Some(reason) => Err(AmpError::ForeignRecord {
            origin: "the accumulation window".to_string(),
            reason: format!("{reason}: the window belongs to another model"),
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
    grads: Option<&'a GradientsParams>,
    path: ModulePath,
    /// The parameters here that have a sum.
    known: HashSet<ParamId>,
    found: Option<String>,
    refused: Option<AmpError>,
}

impl ModuleVisitor for Check<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grads) = self.grads
            && let Err(error) = check_shape(grads, param, &self.path)
        {
            self.refused.get_or_insert(error);
        }
        let sum = self.sums.shape(param.id).zip(self.sums.dtype(param.id));
        let Some((shape, dtype)) = sum else {
            return;
        };
        self.known.insert(param.id);
        if self.found.is_some() {
            return;
        }
        let (of_value, value) = (param.shape(), param.base().dtype());
        let expected = DType::from(working_dtype(value));
        let path = self.path.join();
        if *shape != of_value {
            let text = format!("the sum for `{path}` has shape {shape}, but must have {of_value}");
            self.found = Some(text);
        } else if dtype != expected {
            let text = format!("the sum for `{path}` is {dtype:?}, but must be {expected:?}");
            self.found = Some(text);
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
