//! The gradients of a module, found and checked in one traversal.

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Shape};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, optim::GradientsParams};
use burn_amp_kernels::{EventStatus, TensorStatus, UnreadEvent, UnsupportedDType};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::gradients::status::{GradientStatus, norm};
use crate::values::{
    AnyTensor, ParamTensors, Parameter, SCOPED, any_tensor, parameters, working_dtype,
};
use crate::{error::AmpError, gradients::pass::Pass, gradients::running_statistics::Statistics};

/// The name of Burn's low-rank adapters.
pub(crate) const LOW_RANK: &str = "lora";

/// What is known of one gradient beside its values.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ParamId,
    /// The parameter's path, as optimizer groups see it.
    pub(crate) path: String,
    /// The parameter's shape.
    pub(crate) shape: Shape,
    /// The dtype of the parameter.
    pub(crate) parameter: DType,
    /// The dtype of the gradient.
    pub(crate) gradient: DType,
    /// The device of the parameter.
    pub(crate) device: Device,
    /// What was found in the gradient, where it was measured.
    pub(crate) status: TensorStatus,
}

impl Entry {
    pub(crate) fn rank(&self) -> usize {
        self.shape.num_dims()
    }

    /// Takes the dtype of a gradient that a program may have replaced. Refuses one that has not the parameter's shape.
    pub(crate) fn check(&mut self, grads: &GradientsParams) -> Result<(), AmpError> {
        let dtype = gradient_dtype(grads, self.id, &self.path, &self.shape)?;
        self.gradient = dtype.unwrap_or(self.gradient);
        Ok(())
    }

    /// The gradient, if there is one: a handle.
    pub(crate) fn get(&self, grads: &GradientsParams) -> Option<AnyTensor> {
        any_tensor::gradient(grads, self.id, self.rank())
    }

    /// Takes the gradient out, so that nothing else holds its memory.
    pub fn take(&self, grads: &mut GradientsParams) -> Option<AnyTensor> {
        any_tensor::take_gradient(grads, self.id, self.rank())
    }

    /// Puts a gradient in.
    pub fn put(&self, grads: &mut GradientsParams, gradient: AnyTensor) {
        any_tensor::put_gradient(grads, self.id, gradient);
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

/// The parameters of gradients.
pub(crate) fn ids_of(entries: &[Entry]) -> Vec<ParamId> {
    entries.iter().map(|entry| entry.id).collect()
}

/// What one traversal of a module has found.
#[derive(Default)]
pub struct Entries {
    /// The parameters that have a gradient, in the module's order; one that two modules share stands here once.
    pub(crate) gradients: Vec<Entry>,
    /// Those that have a gradient or a sum, for the sums of both; none without a window.
    pub(crate) sums: Vec<Entry>,
    /// A parameter with a gradient and a low-rank adapter.
    pub(crate) adapted: Option<String>,
    /// Whether a `MixedPrecision` is attached to a parameter.
    pub(crate) has_scopes: bool,
    /// What no optimizer steps: running statistics, and frozen parameters.
    pub buffers: Statistics,
}

impl Entries {
    /// Those of gradients alone; see [`find`](Self::find).
    pub fn of<M: Module>(grads: &GradientsParams, module: &M) -> Result<Self, AmpError> {
        Self::find(parameters(module), Some(grads), None, None)
    }

    /// Of the parameters of a module those that have gradients, or `sums` of an accumulation window. It does not wait for the device.
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
        let mut found = Self::default();
        let mut seen = HashSet::new();
        for parameter in &parameters {
            let gradient = match grads {
                Some(grads) => {
                    gradient_dtype(grads, parameter.id, &parameter.path, &parameter.shape())?
                }
                None => None,
            };
            let attached = parameter.attached.as_deref();
            found.has_scopes |= attached == Some(SCOPED);
            let has_sum = sums.is_some_and(|sums| sums.contains_key(&parameter.id));
            if (gradient.is_none() && !has_sum) || !seen.insert(parameter.id) {
                continue;
            }
            let dtype = parameter.value.dtype();
            let entry = Entry {
                id: parameter.id,
                path: parameter.path.clone(),
                shape: parameter.shape(),
                parameter: dtype,
                gradient: working_dtype(dtype).into(),
                device: parameter.value.device(),
                status: TensorStatus::default(),
            };
            if sums.is_some() {
                found.sums.push(entry.clone());
            }
            if let Some(gradient) = gradient {
                if attached == Some(LOW_RANK) {
                    (found.adapted).get_or_insert_with(|| entry.path.clone());
                }
                found.gradients.push(Entry { gradient, ..entry });
            }
        }
        if let Some(sums) = sums {
            check_sums(sums, &parameters)?;
        }
        found.buffers = Statistics::untrained(parameters);
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

/// Why the sum for a parameter is not that of its gradients, if it is not.
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

/// An error if a parameter's learning rate is NaN, or infinite in f32: it would take all parameters with it.
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

/// The dtype of a parameter's gradient, if it has one; an error if the gradient has not the parameter's shape: Burn panics on
/// another rank, and broadcasts another shape.
fn gradient_dtype(
    grads: &GradientsParams,
    id: ParamId,
    path: &str,
    expected: &Shape,
) -> Result<Option<DType>, AmpError> {
    let gradient = || any_tensor::gradient(grads, id, expected.num_dims());
    // Burn says of a gradient of another rank no more than that by its panic.
    match catch_unwind(AssertUnwindSafe(gradient)).ok() {
        Some(None) => Ok(None),
        Some(Some(gradient)) if gradient.shape() == *expected => Ok(Some(gradient.dtype())),
        found => Err(AmpError::GradientShape {
            parameter: path.to_string(),
            expected: expected.to_vec(),
            found: found.flatten().map(|gradient| gradient.shape().to_vec()),
        }),
    }
}

/// Measures gradients; counts values from `edge` on. Reads the border events with them: on one device, in the same transfer. Waits
/// for each device once.
pub(crate) fn measure(
    grads: &GradientsParams,
    entries: &mut [Entry],
    edge: Option<f32>,
    events: Vec<UnreadEvent>,
) -> Result<Vec<Option<EventStatus>>, UnsupportedDType> {
    (entries.iter_mut()).for_each(|entry| entry.status = TensorStatus::default());
    handles(grads, entries, edge).inspect(events, |at, status| entries[at].status = status)
}

/// Handles to gradients, at the positions of their entries.
pub(crate) fn handles(grads: &GradientsParams, entries: &[Entry], edge: Option<f32>) -> Pass {
    let found = entries.iter().map(|entry| entry.get(grads)).enumerate();
    Pass::of(edge, found.filter_map(|(at, grad)| Some((at, grad?))))
}

/// The status of all gradients, from that of each.
pub(crate) fn summarize(entries: &[Entry]) -> GradientStatus {
    let mut status = GradientStatus {
        gradients: entries.len(),
        ..Default::default()
    };
    for entry in entries {
        let tensor = &entry.status;
        status.elements += tensor.elements;
        status.non_finite += tensor.non_finite;
        status.zeros += tensor.zeros;
        status.above += tensor.above;
        status.max_abs = status.max_abs.max(tensor.max_abs);
        if tensor.non_finite > 0 && status.overflow.is_none() {
            status.overflow = Some(entry.path.clone());
        }
    }
    status.norm = norm(entries.iter().map(|entry| entry.status.norm));
    status
}
