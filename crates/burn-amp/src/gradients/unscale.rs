//! The one function through which all gradients go: unscale, test, measure.

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId, Reparameterization},
    optim::GradientsParams,
    tensor::{DType, Tensor},
};
use burn_amp_kernels::{TensorStatus, UnsupportedDType};
use std::{collections::HashSet, sync::Once};

use super::{
    GradientStatus, UnscaledGradients,
    dtype::{optimizer_dtype, working_dtype},
    pass::Pass,
    shape::check_shapes,
    unscaled::Entry,
};
use crate::{
    error::AmpError,
    mixed_precision::{MixedPrecision, ScopedParameter},
    module_path::ModulePath,
    rank::with_rank,
};

/// Divides the gradients of `module`'s parameters by the scale and measures the result.
///
/// The inverse is taken in f64; products are in f32 (f64 for f64 parameters), and so are the results, unless
/// `in_own_dtype` asks for the parameter's. Waits for each device once, for one small transfer.
pub(crate) fn unscale<M: Module>(
    grads: GradientsParams,
    module: &M,
    scale: f64,
    in_own_dtype: bool,
) -> Result<UnscaledGradients, AmpError> {
    let inverse = (1.0 / scale) as f32;
    check_shapes(&grads, module)?;
    let mut walk = Walk::new(grads);
    module.visit(&mut walk);
    log_strangers(walk.source.len());
    let Walk {
        mut entries, pass, ..
    } = walk;

    let (mut products, mut statuses) = pass.unscale(inverse)?;
    let mut target = GradientsParams::new();
    let (mut rounded, mut positions) = (Pass::default(), Vec::new());
    for (position, entry) in entries.iter_mut().enumerate().rev() {
        let wanted = optimizer_dtype(entry.parameter, in_own_dtype);
        with_rank!(entry.rank, D => {
            if let Some(mut grad) = products.pop::<D>(position) {
                if grad.dtype() != DType::from(wanted) {
                    grad = grad.cast(wanted);
                    rounded.push(grad.clone());
                    positions.push(position);
                }
                entry.gradient = grad.dtype();
                target.register(entry.id, grad);
            }
        }, rank => log::warn!("gradient of `{}` has rank {rank}: left out", entry.path));
    }
    // What counts is what the optimizer gets: rounding can overflow, and can end in zeros.
    for (position, status) in positions.into_iter().zip(rounded.inspect()?) {
        statuses[position] = status;
    }
    let status = summarize(&entries, &statuses);
    Ok(UnscaledGradients::new(
        target,
        entries,
        status,
        Some(statuses),
    ))
}

/// Tests and measures the gradients of `module`'s parameters, which stay as they are. Waits for each device once.
///
/// `amp` is whose loss scale they teach, if it is not the scaler's own. Where its scopes cast the parameters, an adapter that
/// casts its base by hand is refused.
pub(crate) fn test<M: Module>(
    grads: GradientsParams,
    module: &M,
    amp: Option<&MixedPrecision>,
) -> Result<UnscaledGradients, AmpError> {
    check_shapes(&grads, module)?;
    let mut look = Look::new(&grads, true);
    module.visit(&mut look);
    let Look {
        entries,
        pass,
        adapted,
        scoped,
        ..
    } = look;
    match amp {
        Some(amp) if amp.is_scaled() => {
            if let Some((parameter, name)) = adapted {
                return Err(AmpError::UnfrozenBase { parameter, name });
            }
        }
        None if scoped => warn_of_another_scale(),
        _ => {}
    }
    let statuses = pass.inspect()?;
    let status = summarize(&entries, &statuses);
    Ok(UnscaledGradients::new(
        grads,
        entries,
        status,
        Some(statuses),
    ))
}

fn warn_of_another_scale() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        log::warn!(
            "this optimizer has a loss scale of its own, which the model's `MixedPrecision` does not use and which cannot help it: \
             build it with `ScaledOptimizer::new(optim, &amp)`"
        );
    });
}

/// Takes the gradients of `module`'s parameters as they are: not scaled, not measured, no wait.
pub(crate) fn pass_through<M: Module>(
    mut grads: GradientsParams,
    module: &M,
) -> Result<UnscaledGradients, AmpError> {
    check_shapes(&grads, module)?;
    let mut look = Look::new(&grads, false);
    module.visit(&mut look);
    let entries = look.entries;
    let mut target = GradientsParams::new();
    for entry in &entries {
        with_rank!(entry.rank, D => {
            if let Some(grad) = grads.remove::<D>(entry.id) {
                target.register(entry.id, grad);
            }
        }, rank => log::warn!("gradient of `{}` has rank {rank}: left out", entry.path));
    }
    let status = GradientStatus {
        gradients: entries.len(),
        ..Default::default()
    };
    Ok(UnscaledGradients::new(target, entries, status, None).untested())
}

/// Measures gradients that were taken from a module before, one status for each entry. Waits for each device once.
pub(super) fn measure(
    grads: &GradientsParams,
    entries: &[Entry],
) -> Result<Vec<TensorStatus>, UnsupportedDType> {
    let (mut pass, mut positions) = (Pass::default(), Vec::new());
    for (position, entry) in entries.iter().enumerate() {
        with_rank!(entry.rank, D => {
            if let Some(grad) = grads.get::<D>(entry.id) {
                pass.push(grad);
                positions.push(position);
            }
        }, _rank => ());
    }
    let mut statuses = vec![TensorStatus::default(); entries.len()];
    for (position, status) in positions.into_iter().zip(pass.inspect()?) {
        statuses[position] = status;
    }
    Ok(statuses)
}

/// Measures gradients as they are, in f32 (f64 for f64 gradients), and leaves them untouched.
///
/// For runs without a scaler, and for a look at scaled gradients. Gradients of parameters that are not in
/// `module` are not seen. Waits for each device once, for one small transfer.
///
/// # Panics
///
/// Where [`try_inspect`] returns an error, with its message.
///
/// ```
/// use burn::{module::Module, nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(4, 2).with_bias(false).init(&device);
/// let loss = model.forward(Tensor::<2>::zeros([8, 4], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
///
/// let status = burn_amp::inspect(&grads, &model);
/// assert!(status.is_all_zero());
/// ```
pub fn inspect<M: Module>(grads: &GradientsParams, module: &M) -> GradientStatus {
    try_inspect(grads, module).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`inspect`], for runs that want to handle a failure.
///
/// # Errors
///
/// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype, [`AmpError::GradientShape`] if a
/// gradient has not its parameter's shape.
pub fn try_inspect<M: Module>(
    grads: &GradientsParams,
    module: &M,
) -> Result<GradientStatus, AmpError> {
    let (entries, pass) = look(grads, module)?;
    Ok(summarize(&entries, &pass.inspect()?))
}

/// The gradients of `module`'s parameters, ready to be measured.
pub(crate) fn look<M: Module>(
    grads: &GradientsParams,
    module: &M,
) -> Result<(Vec<Entry>, Pass), AmpError> {
    check_shapes(grads, module)?;
    let mut look = Look::new(grads, true);
    module.visit(&mut look);
    Ok((look.entries, look.pass))
}

/// Takes the gradients out of their container.
struct Walk {
    source: GradientsParams,
    path: ModulePath,
    entries: Vec<Entry>,
    pass: Pass,
}

impl Walk {
    fn new(source: GradientsParams) -> Self {
        Self {
            source,
            path: ModulePath::default(),
            entries: Vec::new(),
            pass: Pass::default(),
        }
    }
}

impl ModuleVisitor for Walk {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A parameter shared by two modules is met twice; its gradient is gone the second time.
        let Some(mut grad) = self.source.remove::<D>(param.id) else {
            return;
        };
        let parameter = param.base().dtype();
        let working = working_dtype(parameter);
        // The kernels widen half precision themselves.
        if working_dtype(grad.dtype()) != working {
            grad = grad.cast(working);
        }
        self.entries.push(Entry {
            id: param.id,
            path: self.path.join(),
            rank: D,
            parameter,
            gradient: grad.dtype(),
        });
        self.pass.push(grad);
    }
}

/// As in Burn's `step`, which ignores them too.
pub(super) fn log_strangers(count: usize) {
    if count > 0 {
        log::debug!("{count} gradients belong to no parameter of the module and are dropped");
    }
}

/// Looks at the gradients in their container.
struct Look<'a> {
    grads: &'a GradientsParams,
    measure: bool,
    seen: HashSet<ParamId>,
    path: ModulePath,
    entries: Vec<Entry>,
    pass: Pass,
    /// A parameter with a gradient and a low-rank adapter, and the adapter's name.
    adapted: Option<(String, String)>,
    /// Whether a `MixedPrecision` is attached.
    scoped: bool,
}

impl<'a> Look<'a> {
    fn new(grads: &'a GradientsParams, measure: bool) -> Self {
        Self {
            grads,
            measure,
            seen: HashSet::new(),
            path: ModulePath::default(),
            entries: Vec::new(),
            pass: Pass::default(),
            adapted: None,
            scoped: false,
        }
    }
}

impl ModuleVisitor for Look<'_> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.scoped |= name == ScopedParameter::NAME;
        // Burn shows the base first, and what is attached to it right behind.
        if container_type == "Reparameterization" && name == "lora" && self.adapted.is_none() {
            let path = self.path.join();
            let trained = self.entries.last().is_some_and(|base| base.path == path);
            self.adapted = trained.then(|| (path, name.to_string()));
        }
        self.path.enter(name);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(grad) = self.grads.get::<D>(param.id) else {
            return;
        };
        // A parameter shared by two modules is met twice, and has one gradient.
        if !self.seen.insert(param.id) {
            return;
        }
        self.entries.push(Entry {
            id: param.id,
            path: self.path.join(),
            rank: D,
            parameter: param.base().dtype(),
            gradient: grad.dtype(),
        });
        if self.measure {
            self.pass.push(grad);
        }
    }
}

pub(super) fn summarize(entries: &[Entry], statuses: &[TensorStatus]) -> GradientStatus {
    let mut status = GradientStatus {
        gradients: entries.len(),
        ..Default::default()
    };
    for (entry, tensor) in entries.iter().zip(statuses) {
        status.elements += tensor.elements;
        status.non_finite += tensor.non_finite;
        status.zeros += tensor.zeros;
        status.max_abs = status.max_abs.max(tensor.max_abs);
        if tensor.non_finite > 0 && status.overflow.is_none() {
            status.overflow = Some(entry.path.clone());
        }
    }
    status.norm = norm(statuses.iter().map(|s| s.norm));
    status
}

/// The norm of several gradients as one vector, relative to the largest of their norms.
pub(super) fn norm(norms: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = norms.clone().fold(0.0, f64::max);
    if largest == 0.0 {
        return 0.0;
    }
    let squares: f64 = norms.map(|norm| (norm / largest).powi(2)).sum();
    largest * squares.sqrt()
}
