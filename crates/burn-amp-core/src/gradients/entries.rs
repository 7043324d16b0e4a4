//! The gradients of a module, found and checked in one traversal.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, optim::GradientsParams};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::AmpError;
use crate::values::{AnyTensor, ParamTensors, Parameter, SCOPED, with_rank, working_dtype};

/// Burn's name for the container of what is attached to a parameter.
const ATTACHED: &str = "Reparameterization";
/// The name of Burn's low-rank adapters.
pub(crate) const LOW_RANK: &str = "lora";

/// A parameter that has a gradient.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ParamId,
    /// The parameter's path, as optimizer groups see it.
    pub(crate) path: String,
    /// The parameter's shape.
    pub(super) shape: Shape,
    /// The dtype of the parameter.
    pub(crate) parameter: DType,
    /// The dtype of the gradient.
    pub(crate) gradient: DType,
    /// The device of the parameter.
    pub(crate) device: Device,
    /// True if the gradient is there, and has no autodiff, as one that a program has made itself may have.
    pub(super) is_plain: bool,
}

impl Entry {
    /// A parameter of which no gradient is known yet.
    fn of<const D: usize>(id: ParamId, path: String, value: &Tensor<D>) -> Self {
        Self {
            id,
            path,
            shape: value.shape(),
            parameter: value.dtype(),
            gradient: value.dtype(),
            device: value.device(),
            is_plain: false,
        }
    }

    /// Says whether its gradient is f64, which passes of f32 do not multiply.
    pub(super) fn is_f64(&self) -> bool {
        self.gradient == DType::F64
    }

    /// Looks at the gradient for its dtype and its autodiff. Returns false if there is none. `D` is the parameter's rank.
    ///
    /// Refuses one that has not the parameter's shape: Burn panics on another rank, and broadcasts another shape.
    pub(super) fn check<const D: usize>(
        &mut self,
        grads: &GradientsParams,
    ) -> Result<bool, AmpError> {
        // Burn says of a gradient of another rank no more than that by its panic.
        match catch_unwind(AssertUnwindSafe(|| grads.get::<D>(self.id))) {
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

    /// Refuses the sum of an accumulation window that is not one of its gradients.
    fn check_sum(&self, sums: &ParamTensors) -> Result<(), AmpError> {
        let Some(sum) = sums.get(&self.id) else {
            return Ok(());
        };
        let (shape, dtype, expected) = (sum.shape(), sum.dtype(), &self.shape);
        let wide = DType::from(working_dtype(self.parameter));
        let what = match shape != *expected {
            true => format!("has shape {shape}, but must have {expected}"),
            false if dtype == wide => return Ok(()),
            false => format!("is {dtype:?}, but must be {wide:?}"),
        };
        Err(foreign_window(format!(
            "the sum for `{}` {what}",
            self.path
        )))
    }

    /// The error for a gradient of a dtype that cannot be combined with the parameter.
    pub(crate) fn misfit(&self, gradient_dtype: DType) -> AmpError {
        AmpError::HalfPrecisionParameter {
            parameter: self.path.clone(),
            parameter_dtype: self.parameter,
            gradient_dtype,
        }
    }

    /// The gradient, if there is one: a handle.
    pub(crate) fn get(&self, grads: &GradientsParams) -> Option<AnyTensor> {
        with_rank!(self.shape.num_dims(), D => grads.get::<D>(self.id).map(AnyTensor::with_graph))
    }

    /// Takes the gradient out, without autodiff, so that nothing else holds its memory.
    pub(crate) fn take(&self, grads: &mut GradientsParams) -> Option<AnyTensor> {
        with_rank!(self.shape.num_dims(), D => grads.remove::<D>(self.id).map(AnyTensor::new))
    }

    /// Puts a gradient in.
    pub(crate) fn put(&self, grads: &mut GradientsParams, gradient: AnyTensor) {
        put_gradient(self.id, grads, gradient);
    }

    /// Replaces the gradient, if there is one, by what `change` makes of it.
    pub(crate) fn change(
        &self,
        grads: &mut GradientsParams,
        change: impl FnOnce(AnyTensor) -> AnyTensor,
    ) {
        if let Some(grad) = self.take(grads) {
            self.put(grads, change(grad));
        }
    }
}

/// Takes the gradient of a parameter out, without autodiff; none if it has none. It traverses no module.
///
/// # Errors
///
/// [`AmpError::GradientShape`] if it has not the parameter's shape.
pub fn take_gradient(
    parameter: &Parameter,
    grads: &mut GradientsParams,
) -> Result<Option<AnyTensor>, AmpError> {
    let mut entry = Entry::of(parameter.id, parameter.path.clone(), &parameter.value);
    match with_rank!(entry.shape.num_dims(), D => entry.check::<D>(grads))? {
        true => Ok(entry.take(grads)),
        false => Ok(None),
    }
}

/// Puts the gradient of a parameter in.
pub fn put_gradient(id: ParamId, grads: &mut GradientsParams, gradient: AnyTensor) {
    with_rank!(gradient.rank(), D => grads.register::<D>(id, gradient.into_tensor()));
}

/// The parameters of gradients.
pub(crate) fn ids_of(entries: &[Entry]) -> Vec<ParamId> {
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
        Self::find(module, Some(grads), None, None)
    }

    /// Finds those parameters of a module that have gradients, or `sums` of an accumulation window. It does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if a parameter's learning rate is NaN, or infinite as an f32: all parameters would be lost at once.
    /// [`AmpError::GradientShape`] if a gradient has not its parameter's shape. [`AmpError::ForeignRecord`] if a sum is of no
    /// parameter here, or has another shape or dtype than the sum of its gradients would have.
    pub fn find<M: Module>(
        module: &M,
        grads: Option<&GradientsParams>,
        sums: Option<&ParamTensors>,
        lr: Option<&ModuleLearningRate>,
    ) -> Result<Self, AmpError> {
        let mut search = Search {
            grads,
            sums,
            lr,
            path: Vec::new(),
            seen: HashSet::new(),
            found: Self::default(),
            refused: None,
        };
        module.visit(&mut search);
        if let Some(refused) = search.refused {
            return Err(refused);
        }
        let ids = sums.into_iter().flat_map(|sums| sums.keys());
        match ids.filter(|id| !search.seen.contains(id)).count() {
            0 => Ok(search.found),
            unknown => {
                let all = sums.map_or(0, ParamTensors::len);
                let reason = format!("{unknown} of its {all} sums are of no parameter here");
                Err(foreign_window(reason))
            }
        }
    }
}

/// The traversal of a module that finds its gradients.
struct Search<'a> {
    grads: Option<&'a GradientsParams>,
    sums: Option<&'a ParamTensors>,
    lr: Option<&'a ModuleLearningRate>,
    path: Vec<String>,
    seen: HashSet<ParamId>,
    found: Entries,
    refused: Option<AmpError>,
}

impl ModuleVisitor for Search<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        // Burn shows a parameter first, and what is attached to it right behind.
        if container_type == ATTACHED {
            self.found.has_scopes |= name == SCOPED;
            let last = self.found.gradients.last().map(|entry| &entry.path);
            if let Some(path) = last
                && name == LOW_RANK
                && *path == self.path.join(".")
            {
                self.found.adapted.get_or_insert(path.clone());
            }
        }
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.refused.is_some() {
            return;
        }
        let (id, value) = (param.id, param.base());
        if !value.is_require_grad() {
            (self.found.buffers).push(Parameter::of(&self.path, param));
        }
        let mut entry = Entry::of(id, self.path.join("."), &value.inner());
        let checked = (self.lr.map_or(Ok(()), |lr| check_rate(lr, id, &entry.path)))
            .and_then(|()| self.sums.map_or(Ok(()), |sums| entry.check_sum(sums)))
            .and_then(|()| (self.grads).map_or(Ok(false), |grads| entry.check::<D>(grads)));
        let has_gradient = match checked {
            Ok(has_gradient) => has_gradient,
            Err(error) => return self.refused = Some(error),
        };
        if !self.seen.insert(id) {
            return;
        }
        if (self.sums).is_some_and(|sums| has_gradient || sums.contains_key(&id)) {
            let mut sum = entry.clone();
            sum.gradient = working_dtype(entry.parameter).into();
            self.found.sums.push(sum);
        }
        if has_gradient {
            self.found.gradients.push(entry);
        }
    }
}

/// The error for sums of an accumulation window that are not those of a module.
fn foreign_window(reason: String) -> AmpError {
    let reason = format!(
        "{reason}: the window belongs to another model; `drop_window` of the optimizer, or `clear` of the window, empties it"
    );
    AmpError::foreign("the accumulation window", reason)
}

/// Refuses a parameter's learning rate that is NaN, or infinite in f32: it would take all parameters with it.
pub(crate) fn check_rate(lr: &ModuleLearningRate, id: ParamId, path: &str) -> Result<(), AmpError> {
    let rate = lr.lr_from_param(id, Some(path));
    match (rate as f32).is_finite() {
        true => Ok(()),
        false => {
            let allowed = format!("finite as an f32 (it is that of `{path}`)");
            Err(AmpError::invalid("lr", rate, allowed))
        }
    }
}
