//! The gradients of a module, found and checked in one traversal.

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Shape};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, optim::GradientsParams};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::AmpError;
use crate::values::{
    AnyTensor, ParamTensors, Parameter, SCOPED, parameters, with_rank, working_dtype,
};

/// The name of Burn's low-rank adapters.
pub const LOW_RANK: &str = "lora";

/// A parameter that has a gradient.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: ParamId,
    /// The parameter's path, as optimizer groups see it.
    pub path: String,
    /// The parameter's shape.
    pub(super) shape: Shape,
    /// The dtype of the parameter.
    pub parameter: DType,
    /// The dtype of the gradient.
    pub gradient: DType,
    /// The device of the parameter.
    pub device: Device,
    /// True if the gradient is there, and has no autodiff, as one that a program has made itself may have.
    pub(super) is_plain: bool,
}

impl Entry {
    /// Looks at the gradient for its dtype and its autodiff. Returns false if there is none.
    ///
    /// Refuses one that has not the parameter's shape: Burn panics on another rank, and broadcasts another shape.
    pub(super) fn check(&mut self, grads: &GradientsParams) -> Result<bool, AmpError> {
        // Burn says of a gradient of another rank no more than that by its panic.
        match catch_unwind(AssertUnwindSafe(|| self.get(grads))) {
            Ok(None) => {
                self.is_plain = false;
                Ok(false)
            }
            Ok(Some(gradient)) if gradient.shape() == self.shape => {
                (self.gradient, self.is_plain) = (gradient.dtype(), !gradient.is_autodiff());
                Ok(true)
            }
            found => Err(AmpError::GradientShape {
                parameter: self.path.clone(),
                expected: self.shape.to_vec(),
                found: found.ok().flatten().map(|found| found.shape().to_vec()),
            }),
        }
    }

    /// The gradient, if there is one: a handle.
    pub fn get(&self, grads: &GradientsParams) -> Option<AnyTensor> {
        with_rank!(self.shape.num_dims(), D => grads.get::<D>(self.id).map(AnyTensor::with_graph))
    }

    /// Takes the gradient out, without autodiff, so that nothing else holds its memory.
    pub fn take(&self, grads: &mut GradientsParams) -> Option<AnyTensor> {
        with_rank!(self.shape.num_dims(), D => grads.remove::<D>(self.id).map(AnyTensor::new))
    }

    /// Puts a gradient in.
    pub fn put(&self, grads: &mut GradientsParams, gradient: AnyTensor) {
        with_rank!(gradient.rank(), D => grads.register::<D>(self.id, gradient.into_tensor()));
    }

    /// Replaces the gradient, if there is one, by what `change` makes of it.
    pub fn change(&self, grads: &mut GradientsParams, change: impl FnOnce(AnyTensor) -> AnyTensor) {
        if let Some(grad) = self.take(grads) {
            self.put(grads, change(grad));
        }
    }
}

/// The parameters of gradients.
pub fn ids_of(entries: &[Entry]) -> Vec<ParamId> {
    entries.iter().map(|entry| entry.id).collect()
}

/// The gradients that one traversal of a module has found.
#[derive(Default)]
pub struct Entries {
    /// The parameters that have a gradient, in the module's order; one that two modules share stands here once.
    pub(crate) gradients: Vec<Entry>,
    /// The parameters that have a gradient or a sum, for the sums of both; none without a window.
    pub(crate) sums: Vec<Entry>,
    /// A parameter with a gradient and a low-rank adapter.
    pub(crate) adapted: Option<String>,
    /// True if a `MixedPrecision` is attached to a parameter.
    pub(crate) has_scopes: bool,
    /// Running statistics and frozen parameters, which no optimizer steps.
    pub buffers: Vec<Parameter>,
}

impl Entries {
    /// Finds gradients alone; see [`find`](Self::find).
    pub fn of<M: Module>(grads: &GradientsParams, module: &M) -> Result<Self, AmpError> {
        Self::find(parameters(module), Some(grads), None, None)
    }

    /// Finds those parameters of a module that have gradients, or `sums` of an accumulation window. It does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if a parameter's learning rate is NaN, or infinite as an f32: all parameters would be lost at once.
    /// [`AmpError::GradientShape`] if a gradient has not its parameter's shape. [`AmpError::ForeignRecord`] if a sum is of no
    /// parameter here, or has another shape or dtype than the sum of its gradients would have.
    pub fn find(
        parameters: Vec<Parameter>,
        grads: Option<&GradientsParams>,
        sums: Option<&ParamTensors>,
        lr: Option<&ModuleLearningRate>,
    ) -> Result<Self, AmpError> {
        if let Some(lr) = lr {
            (parameters.iter()).try_for_each(|one| check_rate(lr, one.id, &one.path))?;
        }
        if let Some(sums) = sums {
            check_sums(sums, &parameters)?;
        }
        let mut found = Self::default();
        let mut seen = HashSet::new();
        for parameter in parameters {
            if !parameter.is_trained {
                found.buffers.push(parameter.clone());
            }
            let (id, dtype) = (parameter.id, parameter.value.dtype());
            let attached = parameter.attached.as_deref();
            found.has_scopes |= attached == Some(SCOPED);
            let mut entry = Entry {
                id,
                path: parameter.path,
                shape: parameter.value.shape(),
                parameter: dtype,
                gradient: dtype,
                device: parameter.value.device(),
                is_plain: false,
            };
            let has_gradient = grads.map_or(Ok(false), |grads| entry.check(grads))?;
            if !seen.insert(id) {
                continue;
            }
            if sums.is_some_and(|sums| has_gradient || sums.contains_key(&id)) {
                let mut sum = entry.clone();
                sum.gradient = working_dtype(dtype).into();
                found.sums.push(sum);
            }
            if has_gradient {
                if attached == Some(LOW_RANK) {
                    found.adapted.get_or_insert_with(|| entry.path.clone());
                }
                found.gradients.push(entry);
            }
        }
        Ok(found)
    }
}

/// Refuses sums of which one does not fit its parameter, or is of none here.
fn check_sums(sums: &ParamTensors, parameters: &[Parameter]) -> Result<(), AmpError> {
    let known: HashSet<_> = parameters.iter().map(|parameter| parameter.id).collect();
    let unknown = sums.keys().filter(|id| !known.contains(id)).count();
    let misfit = (parameters.iter()).find_map(|parameter| misfit_of(sums, parameter));
    let reason = match misfit {
        Some(reason) => reason,
        None if unknown == 0 => return Ok(()),
        None => format!(
            "{unknown} of its {} sums are of no parameter here",
            sums.len()
        ),
    };
    let reason = format!(
        "{reason}: the window belongs to another model; `drop_window` of the optimizer, or `clear` of the window, empties it"
    );
    Err(AmpError::foreign("the accumulation window", reason))
}

/// Says why the sum for a parameter is not that of its gradients, if it is not.
fn misfit_of(sums: &ParamTensors, parameter: &Parameter) -> Option<String> {
    let sum = sums.get(&parameter.id)?;
    let (shape, dtype) = (sum.shape(), sum.dtype());
    let expected = parameter.value.shape();
    let wide = DType::from(working_dtype(parameter.value.dtype()));
    let what = match shape != expected {
        true => format!("has shape {shape}, but must have {expected}"),
        false if dtype == wide => return None,
        false => format!("is {dtype:?}, but must be {wide:?}"),
    };
    Some(format!("the sum for `{}` {what}", parameter.path))
}

/// Refuses a parameter's learning rate that is NaN, or infinite in f32: it would take all parameters with it.
pub fn check_rate(lr: &ModuleLearningRate, id: ParamId, path: &str) -> Result<(), AmpError> {
    let rate = lr.lr_from_param(id, Some(path));
    match (rate as f32).is_finite() {
        true => Ok(()),
        false => {
            let allowed = format!("finite as an f32 (it is that of `{path}`)");
            Err(AmpError::invalid("lr", rate, allowed))
        }
    }
}
