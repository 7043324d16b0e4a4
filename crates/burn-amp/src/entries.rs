//! The gradients of a module, found and checked in one traversal.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ParamId},
    optim::GradientsParams,
    tensor::{DType, Device, Shape},
};
use burn_amp_kernels::{Crossing, CrossingStatus, TensorStatus, UnsupportedDType};
use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{
    any_tensor::{self, AnyTensor},
    dtype::working_dtype,
    error::AmpError,
    gradient_pass::Pass,
    gradient_status::{GradientStatus, norm},
    module_path::{Parameter, SCOPED, parameters},
    param_tensors::ParamTensors,
    running_statistics::Statistics,
};

/// What is known of one gradient beside its values.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: ParamId,
    /// The parameter's path, as optimizer groups see it.
    pub(crate) path: String,
    pub(crate) rank: usize,
    /// The dtype of the parameter.
    pub(crate) parameter: DType,
    /// The dtype of the gradient.
    pub(crate) gradient: DType,
    /// The device of the parameter.
    pub(crate) device: Device,
}

impl Entry {
    /// The gradient, if there is one: a handle.
    pub(crate) fn get(&self, grads: &GradientsParams) -> Option<AnyTensor> {
        any_tensor::gradient(grads, self.id, self.rank)
    }

    /// Takes the gradient out, so that nothing else holds its memory.
    pub(crate) fn take(&self, grads: &mut GradientsParams) -> Option<AnyTensor> {
        any_tensor::take_gradient(grads, self.id, self.rank)
    }

    /// Puts a gradient in.
    pub(crate) fn put(&self, grads: &mut GradientsParams, gradient: AnyTensor) {
        any_tensor::put_gradient(grads, self.id, gradient);
    }
}

/// What one traversal of a module looks for and checks. It does not wait for the device.
#[derive(Clone, Copy, Default)]
pub(crate) struct Traversal<'a> {
    pub(crate) grads: Option<&'a GradientsParams>,
    /// The sums of an accumulation window.
    pub(crate) sums: Option<&'a ParamTensors>,
    pub(crate) lr: Option<&'a ModuleLearningRate>,
}

impl Traversal<'_> {
    /// Visits the parameters of `module`.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if a parameter's learning rate is infinite or NaN: all parameters would be lost at once.
    /// [`AmpError::GradientShape`] if a gradient has not its parameter's shape. [`AmpError::ForeignRecord`] if a sum is of no
    /// parameter here, or has another shape or dtype than the sum of its gradients would have.
    pub(crate) fn of<M: Module>(self, module: &M) -> Result<Entries, AmpError> {
        let parameters = parameters(module);
        if let Some(lr) = self.lr {
            for parameter in &parameters {
                check_rate(lr, parameter.id, &parameter.path)?;
            }
        }
        let mut found = Entries::default();
        let (mut seen, mut known, mut misfit) = (HashSet::new(), 0, None);
        for parameter in &parameters {
            let gradient = match self.grads {
                Some(grads) => gradient_dtype(grads, parameter)?,
                None => None,
            };
            let attached = parameter.attached.as_deref();
            found.has_scopes |= attached == Some(SCOPED);
            let has_sum = self.sums.is_some_and(|sums| sums.contains(parameter.id));
            if (gradient.is_none() && !has_sum) || !seen.insert(parameter.id) {
                continue;
            }
            if let Some(sums) = self.sums.filter(|_| has_sum) {
                known += 1;
                misfit = misfit.or_else(|| misfit_of(sums, parameter));
            }
            if gradient.is_some() && attached == Some("lora") {
                let adapted = || (parameter.path.clone(), "lora".to_string());
                found.adapted.get_or_insert_with(adapted);
            }
            let dtype = parameter.value.dtype();
            let entry = Entry {
                id: parameter.id,
                path: parameter.path.clone(),
                rank: parameter.value.rank(),
                parameter: dtype,
                gradient: gradient.unwrap_or(dtype),
                device: parameter.value.device(),
            };
            found.list.push((entry, gradient.is_some()));
        }
        let total = self.sums.map_or(0, ParamTensors::len);
        refuse_foreign(misfit, known, total)?;
        found.statistics = Statistics::of(parameters);
        Ok(found)
    }
}

/// What one traversal of a module has found.
#[derive(Default)]
pub(crate) struct Entries {
    /// The parameters that have a gradient or a sum, in the module's order; one that two modules share stands here once.
    list: Vec<(Entry, bool)>,
    /// A parameter with a gradient and a low-rank adapter, and the adapter's name.
    pub(crate) adapted: Option<(String, String)>,
    /// Whether a `MixedPrecision` is attached to a parameter.
    pub(crate) has_scopes: bool,
    /// What no optimizer steps.
    statistics: Statistics,
}

impl Entries {
    /// Those of gradients alone; see [`Traversal::of`].
    pub(crate) fn of<M: Module>(grads: &GradientsParams, module: &M) -> Result<Self, AmpError> {
        let traversal = Traversal {
            grads: Some(grads),
            ..Default::default()
        };
        traversal.of(module)
    }

    pub(crate) fn take_buffers(&mut self) -> Statistics {
        std::mem::take(&mut self.statistics)
    }

    /// The parameters that have a gradient.
    pub(crate) fn gradients(&self) -> impl Iterator<Item = &Entry> {
        let gradients = self.list.iter().filter(|(_, has_gradient)| *has_gradient);
        gradients.map(|(entry, _)| entry)
    }

    /// The parameters that have a gradient.
    pub(crate) fn into_gradients(self) -> Vec<Entry> {
        let entries = self.list.into_iter();
        let gradient = |(entry, has_gradient): (Entry, bool)| has_gradient.then_some(entry);
        entries.filter_map(gradient).collect()
    }

    /// The parameters that have a gradient or a sum, for the sums of both.
    pub(crate) fn into_sums(self) -> Vec<Entry> {
        let sum = |(mut entry, _): (Entry, bool)| {
            entry.gradient = working_dtype(entry.parameter).into();
            entry
        };
        self.list.into_iter().map(sum).collect()
    }
}

/// Refuses sums of which one does not fit its parameter, or of which fewer are `known` here than there are.
fn refuse_foreign(misfit: Option<String>, known: usize, total: usize) -> Result<(), AmpError> {
    let unknown = (known < total).then(|| {
        let count = total - known;
        format!("{count} of its {total} sums are of no parameter here")
    });
    match misfit.or(unknown) {
        None => Ok(()),
        Some(reason) => {
            let reason = format!("{reason}: the window belongs to another model");
            Err(AmpError::foreign("the accumulation window", reason))
        }
    }
}

/// Why the sum for a parameter is not that of its gradients, if it is not.
fn misfit_of(sums: &ParamTensors, parameter: &Parameter) -> Option<String> {
    let (shape, dtype) = (sums.shape(parameter.id)?, sums.dtype(parameter.id)?);
    let expected = parameter.value.shape();
    let wide = DType::from(working_dtype(parameter.value.dtype()));
    let what = match shape != expected {
        true => format!("has shape {shape}, but must have {expected}"),
        false if dtype == wide => return None,
        false => format!("is {dtype:?}, but must be {wide:?}"),
    };
    Some(format!("the sum for `{}` {what}", parameter.path))
}

/// An error if a parameter's learning rate is infinite or NaN: it would take all parameters with it.
pub(crate) fn check_rate(lr: &ModuleLearningRate, id: ParamId, path: &str) -> Result<(), AmpError> {
    let rate = lr.lr_from_param(id, Some(path));
    match rate.is_finite() {
        true => Ok(()),
        false => {
            let allowed = format!("finite (it is that of `{path}`)");
            Err(AmpError::invalid("lr", rate, allowed))
        }
    }
}

/// The dtype of a parameter's gradient, if it has one; an error if the gradient has not the parameter's shape: Burn panics on
/// another rank, and broadcasts another shape.
fn gradient_dtype(
    grads: &GradientsParams,
    parameter: &Parameter,
) -> Result<Option<DType>, AmpError> {
    let expected = parameter.value.shape();
    let found = match shape_and_dtype(grads, parameter.id, parameter.value.rank()) {
        Ok(None) => return Ok(None),
        Ok(Some((shape, dtype))) if shape == expected => return Ok(Some(dtype)),
        Ok(Some((shape, _))) => Some(shape),
        // Burn does not tell the rank: the others are tried.
        Err(()) => (0..=12).find_map(|rank| {
            let found = shape_and_dtype(grads, parameter.id, rank).ok()?;
            found.map(|(shape, _)| shape)
        }),
    };
    Err(AmpError::GradientShape {
        parameter: parameter.path.clone(),
        expected: expected.to_vec(),
        found: found.map(|shape| shape.to_vec()),
    })
}

/// An error if the gradient has another rank: Burn panics then.
fn shape_and_dtype(
    grads: &GradientsParams,
    id: ParamId,
    rank: usize,
) -> Result<Option<(Shape, DType)>, ()> {
    let look = || {
        let gradient = any_tensor::gradient(grads, id, rank);
        gradient.map(|gradient| (gradient.shape(), gradient.dtype()))
    };
    catch_unwind(AssertUnwindSafe(look)).map_err(drop)
}

/// Measures gradients, one status for each entry. Waits for each device once.
pub(crate) fn measure(
    grads: &GradientsParams,
    entries: &[Entry],
) -> Result<Vec<TensorStatus>, UnsupportedDType> {
    measure_with(grads, entries, None, Vec::new()).map(|(statuses, _)| statuses)
}

/// As [`measure`], counts values from `edge` on, and reads what has crossed the border with it: on one device, in the same transfer.
pub(crate) fn measure_with(
    grads: &GradientsParams,
    entries: &[Entry],
    edge: Option<f32>,
    crossings: Vec<Crossing>,
) -> Result<(Vec<TensorStatus>, Vec<Option<CrossingStatus>>), UnsupportedDType> {
    let mut statuses = vec![TensorStatus::default(); entries.len()];
    let crossed = handles(grads, entries, edge).inspect(&mut statuses, crossings)?;
    Ok((statuses, crossed))
}

/// Handles to gradients, at the positions of their entries.
pub(crate) fn handles(grads: &GradientsParams, entries: &[Entry], edge: Option<f32>) -> Pass {
    let mut pass = Pass::counting_from(edge);
    for (position, entry) in entries.iter().enumerate() {
        if let Some(grad) = entry.get(grads) {
            pass.push(position, grad, true);
        }
    }
    pass
}

/// Multiplies gradients by a number in one pass a device, and keeps their dtypes. Does not wait.
///
/// The pass reads and writes what a multiplication of each does, in a few launches. It is taken where a norm that was measured
/// asks for it: measuring first and unscaling by both factors would read all gradients twice where the norm asks for nothing.
pub(crate) fn scale(
    grads: &mut GradientsParams,
    entries: &[&Entry],
    factor: f64,
) -> Result<(), UnsupportedDType> {
    let mut pass = Pass::default();
    for (position, entry) in entries.iter().enumerate() {
        match entry.take(grads) {
            // The pass rounds the factor to f32.
            Some(grad) if grad.dtype() == DType::F64 => entry.put(grads, grad.mul_scalar(factor)),
            Some(grad) => pass.push(position, grad, true),
            None => {}
        }
    }
    let (mut products, _) = pass.unscale(factor as f32)?;
    for (position, entry) in entries.iter().enumerate().rev() {
        if let Some(grad) = products.pop(position, entry.rank) {
            entry.put(grads, grad);
        }
    }
    Ok(())
}

/// The status of all gradients, from that of each.
pub(crate) fn summarize(entries: &[Entry], statuses: &[TensorStatus]) -> GradientStatus {
    let mut status = GradientStatus {
        gradients: entries.len(),
        ..Default::default()
    };
    for (entry, tensor) in entries.iter().zip(statuses) {
        status.elements += tensor.elements;
        status.non_finite += tensor.non_finite;
        status.zeros += tensor.zeros;
        status.above += tensor.above;
        status.max_abs = status.max_abs.max(tensor.max_abs);
        if tensor.non_finite > 0 && status.overflow.is_none() {
            status.overflow = Some(entry.path.clone());
        }
    }
    status.norm = norm(statuses.iter().map(|s| s.norm));
    status
}
