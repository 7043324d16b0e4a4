//! Gradients that are not of their parameter's shape. Burn panics on another rank, and broadcasts another shape.

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{Shape, Tensor},
};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{error::AmpError, module_path::ModulePath, rank::with_rank};

/// Whether there is a gradient for this parameter; an error if it has not the parameter's shape.
pub(crate) fn check_shape<const D: usize>(
    grads: &GradientsParams,
    param: &Param<Tensor<D>>,
    path: &ModulePath,
) -> Result<bool, AmpError> {
    let expected = param.shape();
    let found = match shape_of::<D>(grads, param.id) {
        Ok(None) => return Ok(false),
        Ok(Some(shape)) if shape == expected => return Ok(true),
        Ok(Some(shape)) => Some(shape),
        // Burn does not tell the rank: the others are tried.
        Err(()) => (0..=12).find_map(|rank| {
            with_rank!(rank, R => shape_of::<R>(grads, param.id).ok().flatten(), _rank => None)
        }),
    };
    Err(AmpError::GradientShape {
        parameter: path.join(),
        expected: expected.to_vec(),
        found: found.map(|shape| shape.to_vec()),
    })
}

/// As [`check_shape`], for all parameters of a module.
pub(crate) fn check_shapes<M: Module>(grads: &GradientsParams, module: &M) -> Result<(), AmpError> {
    let mut check = Check {
        grads,
        path: ModulePath::default(),
        refused: None,
    };
    module.visit(&mut check);
    check.refused.map_or(Ok(()), Err)
}

/// An error if the gradient has another rank: Burn panics then.
fn shape_of<const R: usize>(grads: &GradientsParams, id: ParamId) -> Result<Option<Shape>, ()> {
    let shape = || grads.get::<R>(id).map(|grad| grad.shape());
    catch_unwind(AssertUnwindSafe(shape)).map_err(drop)
}

struct Check<'a> {
    grads: &'a GradientsParams,
    path: ModulePath,
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
        if let Err(error) = check_shape(self.grads, param, &self.path) {
            self.refused.get_or_insert(error);
        }
    }
}
