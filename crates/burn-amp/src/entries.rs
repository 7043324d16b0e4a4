//! The gradients of a module, found and checked in one traversal.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, Param, ParamId, Reparameterization},
    optim::GradientsParams,
    tensor::{DType, Device, Shape, Tensor},
};
use burn_amp_kernels::{Crossing, CrossingStatus, TensorStatus, UnsupportedDType};
use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
};

use crate::{
    dtype::working_dtype,
    error::AmpError,
    gradient_pass::Pass,
    mixed_precision::ScopedParameter,
    module_path::{self, ModulePath},
    param_tensors::ParamTensors,
    rank::with_rank,
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
        let mut visit = Visit {
            input: self,
            seen: HashSet::new(),
            sums: 0,
            found: Entries::default(),
            rate: None,
            shape: None,
            misfit: None,
        };
        module_path::visit(module, &mut visit);
        if let Some(error) = visit.rate.or(visit.shape) {
            return Err(error);
        }
        let total = self.sums.map_or(0, ParamTensors::len);
        let unknown = total - visit.sums;
        let misfit = visit.misfit.or_else(|| {
            (unknown > 0).then(|| format!("{unknown} of its {total} sums are of no parameter here"))
        });
        match misfit {
            Some(reason) => Err(AmpError::ForeignRecord {
                origin: "the accumulation window".to_string(),
                reason: format!("{reason}: the window belongs to another model"),
            }),
            None => Ok(visit.found),
        }
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

    pub(crate) fn take_statistics(&mut self) -> Statistics {
        std::mem::take(&mut self.statistics)
    }

    /// The parameters that have a gradient.
    pub(crate) fn gradients(&self) -> impl Iterator<Item = &Entry> {
        let gradients = self.list.iter().filter(|(_, has_gradient)| *has_gradient);
        gradients.map(|(entry, _)| entry)
    }

    /// The parameters that have a gradient.
    pub(crate) fn into_gradients(self) -> Vec<Entry> {
        let gradients = self
            .list
            .into_iter()
            .filter(|(_, has_gradient)| *has_gradient);
        gradients.map(|(entry, _)| entry).collect()
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

struct Visit<'a> {
    input: Traversal<'a>,
    seen: HashSet<ParamId>,
    /// How many of the sums belong to parameters here.
    sums: usize,
    found: Entries,
    rate: Option<AmpError>,
    shape: Option<AmpError>,
    /// Why the sums are not this module's.
    misfit: Option<String>,
}

impl module_path::Visit for Visit<'_> {
    fn enter(&mut self, path: &ModulePath, name: &str, container_type: &str) {
        self.found.statistics.enter(path, name, container_type);
        self.found.has_scopes |= name == ScopedParameter::NAME;
        // Burn shows the base first, and what is attached to it right behind.
        if container_type == "Reparameterization" && name == "lora" && self.found.adapted.is_none()
        {
            let path = path.join();
            let base = self.found.list.last();
            let trained =
                base.is_some_and(|(base, has_gradient)| *has_gradient && base.path == path);
            self.found.adapted = trained.then(|| (path, name.to_string()));
        }
    }

    fn parameter<const D: usize>(&mut self, path: &ModulePath, param: &Param<Tensor<D>>) {
        self.found.statistics.parameter(path, param);
        if let Some(lr) = self.input.lr {
            let checked = check_rate(lr, param.id, &path.join());
            self.rate = self.rate.take().or(checked.err());
        }
        let grads = self.input.grads;
        let gradient = match grads.map(|grads| gradient(grads, param, path)) {
            Some(Ok(gradient)) => gradient,
            Some(Err(error)) => {
                self.shape.get_or_insert(error);
                return;
            }
            None => None,
        };
        let sums = self.input.sums;
        let sum = sums.and_then(|sums| sums.shape(param.id).zip(sums.dtype(param.id)));
        if (gradient.is_none() && sum.is_none()) || !self.seen.insert(param.id) {
            return;
        }
        let (path, parameter) = (path.join(), param.base().dtype());
        if let Some((shape, dtype)) = sum {
            self.sums += 1;
            let (expected, wide) = (param.shape(), DType::from(working_dtype(parameter)));
            let what = match *shape != expected {
                true => Some(format!("has shape {shape}, but must have {expected}")),
                false if dtype == wide => None,
                false => Some(format!("is {dtype:?}, but must be {wide:?}")),
            };
            if let Some(what) = what {
                let misfit = || format!("the sum for `{path}` {what}");
                self.misfit.get_or_insert_with(misfit);
            }
        }
        let entry = Entry {
            id: param.id,
            path,
            rank: D,
            parameter,
            gradient: gradient.unwrap_or(parameter),
            device: param.device().inner(),
        };
        self.found.list.push((entry, gradient.is_some()));
    }
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
fn gradient<const D: usize>(
    grads: &GradientsParams,
    param: &Param<Tensor<D>>,
    path: &ModulePath,
) -> Result<Option<DType>, AmpError> {
    let expected = param.shape();
    let found = match look::<D>(grads, param.id) {
        Ok(None) => return Ok(None),
        Ok(Some((shape, dtype))) if shape == expected => return Ok(Some(dtype)),
        Ok(Some((shape, _))) => Some(shape),
        // Burn does not tell the rank: the others are tried.
        Err(()) => (0..=12).find_map(|rank| {
            with_rank!(rank, R => look::<R>(grads, param.id).ok().flatten(), _rank => None)
                .map(|(shape, _)| shape)
        }),
    };
    Err(AmpError::GradientShape {
        parameter: path.join(),
        expected: expected.to_vec(),
        found: found.map(|shape| shape.to_vec()),
    })
}

/// An error if the gradient has another rank: Burn panics then.
fn look<const R: usize>(
    grads: &GradientsParams,
    id: ParamId,
) -> Result<Option<(Shape, DType)>, ()> {
    let look = || grads.get::<R>(id).map(|grad| (grad.shape(), grad.dtype()));
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
    let (pass, positions) = handles(grads, entries, edge);
    let mut statuses = vec![TensorStatus::default(); entries.len()];
    let (found, crossed) = pass.inspect_with(crossings)?;
    for (position, status) in positions.into_iter().zip(found) {
        statuses[position] = status;
    }
    Ok((statuses, crossed))
}

/// Handles to gradients, and the positions of their entries.
pub(crate) fn handles(
    grads: &GradientsParams,
    entries: &[Entry],
    edge: Option<f32>,
) -> (Pass, Vec<usize>) {
    let (mut pass, mut positions) = (Pass::counting_from(edge), Vec::new());
    for (position, entry) in entries.iter().enumerate() {
        with_rank!(entry.rank, D => {
            if let Some(grad) = grads.get::<D>(entry.id) {
                pass.push(grad, true);
                positions.push(position);
            }
        }, _rank => ());
    }
    (pass, positions)
}

/// Multiplies gradients by a number in one pass a device, and keeps their dtypes. Does not wait.
///
/// The pass reads and writes what a multiplication of each does, in a few launches. It is taken where a norm that was measured
/// asks for it: measuring first and unscaling by both factors would read all gradients twice where the norm asks for nothing.
pub(crate) fn scale<'a>(
    grads: &mut GradientsParams,
    entries: impl Iterator<Item = &'a Entry> + Clone,
    factor: f64,
) -> Result<(), UnsupportedDType> {
    let (mut pass, mut taken) = (Pass::default(), Vec::new());
    for entry in entries {
        with_rank!(entry.rank, D => {
            if let Some(grad) = grads.remove::<D>(entry.id) {
                match grad.dtype() {
                    // The pass rounds the factor to f32.
                    DType::F64 => grads.register(entry.id, grad.inner().mul_scalar(factor)),
                    _ => {
                        pass.push(grad, true);
                        taken.push(entry);
                    }
                }
            }
        }, rank => unreachable!("a gradient of rank {rank}"));
    }
    let (mut products, _) = pass.unscale(factor as f32)?;
    for (position, entry) in taken.into_iter().enumerate().rev() {
        with_rank!(entry.rank, D => {
            if let Some(grad) = products.pop::<D>(position) {
                grads.register(entry.id, grad);
            }
        }, rank => unreachable!("a gradient of rank {rank}"));
    }
    Ok(())
}
