//! The one function through which all gradients go: unscale, test, measure.

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{DType, Tensor},
};
use std::collections::HashSet;

use super::{
    GradientDType, GradientStatus, UnscaledGradients,
    dtype::working_dtype,
    measure::{self, Measure, Measured},
    unscaled::Entry,
};

/// Divides the gradients of `module`'s parameters by the scale and measures the result.
///
/// The inverse is taken in f64; products are in f32 (f64 for f64 parameters), and so are the results, unless
/// `dtype` asks for the parameter's own. Waits for each device once, for one small transfer.
pub(crate) fn unscale<M: Module>(
    grads: GradientsParams,
    module: &M,
    scale: f32,
    dtype: GradientDType,
) -> UnscaledGradients {
    let inverse = 1.0 / f64::from(scale);
    let mut walk = Walk::new(grads, Mode::Unscale { inverse, dtype });
    module.visit(&mut walk);
    walk.finish()
}

/// Takes the gradients of `module`'s parameters as they are: not scaled, not measured, no wait.
pub(crate) fn pass_through<M: Module>(grads: GradientsParams, module: &M) -> UnscaledGradients {
    let mut walk = Walk::new(grads, Mode::PassThrough);
    module.visit(&mut walk);
    walk.finish()
}

/// Measures gradients as they are, in f32 (f64 for f64 gradients), and leaves them untouched.
///
/// For runs without a scaler, and for a look at scaled gradients. Gradients of parameters that are not in
/// `module` are not seen. Waits for each device once, for one small transfer.
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
    let mut inspect = Inspect {
        grads,
        seen: HashSet::new(),
        path: Path::default(),
        names: Vec::new(),
        measures: Vec::new(),
    };
    module.visit(&mut inspect);
    summarize(inspect.names, inspect.measures)
}

#[derive(Clone, Copy)]
enum Mode {
    Unscale { inverse: f64, dtype: GradientDType },
    PassThrough,
}

struct Walk {
    mode: Mode,
    source: GradientsParams,
    target: GradientsParams,
    path: Path,
    entries: Vec<Entry>,
    measures: Vec<Measure>,
}

impl Walk {
    fn new(source: GradientsParams, mode: Mode) -> Self {
        Self {
            mode,
            source,
            target: GradientsParams::new(),
            path: Path::default(),
            entries: Vec::new(),
            measures: Vec::new(),
        }
    }

    fn finish(self) -> UnscaledGradients {
        if !self.source.is_empty() {
            // As in Burn's `step`, which ignores them too.
            log::debug!(
                "{} gradients belong to no parameter of the module and are dropped",
                self.source.len()
            );
        }
        let status = match self.mode {
            Mode::Unscale { .. } => {
                let names = self.entries.iter().map(|entry| entry.path.clone());
                summarize(names.collect(), self.measures)
            }
            Mode::PassThrough => GradientStatus {
                gradients: self.entries.len(),
                ..Default::default()
            },
        };
        UnscaledGradients::new(self.target, self.entries, status)
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
        let Some(grad) = self.source.remove::<D>(param.id) else {
            return;
        };
        let parameter = param.base().dtype();
        let grad = match self.mode {
            Mode::Unscale { inverse, dtype } => {
                let grad = scale_exactly(grad.inner().cast(working_dtype(parameter)), inverse);
                let grad = grad.cast(dtype.for_parameter(parameter));
                let measured = working_dtype(grad.dtype());
                self.measures.push(Measure::of(grad.clone().cast(measured)));
                grad
            }
            Mode::PassThrough => grad,
        };
        self.entries.push(Entry {
            id: param.id,
            path: self.path.join(),
            rank: D,
            parameter,
            gradient: grad.dtype(),
        });
        self.target.register(param.id, grad);
    }
}

/// Multiplies by the inverse scale, rounded once to the tensor's dtype.
fn scale_exactly<const D: usize>(grad: Tensor<D>, inverse: f64) -> Tensor<D> {
    match grad.dtype() {
        DType::F64 => grad.mul_scalar(inverse),
        _ => grad.mul_scalar(inverse as f32),
    }
}

struct Inspect<'a> {
    grads: &'a GradientsParams,
    seen: HashSet<ParamId>,
    path: Path,
    names: Vec<String>,
    measures: Vec<Measure>,
}

impl ModuleVisitor for Inspect<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
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
        let path = self.path.join();
        let dtype = working_dtype(grad.dtype());
        self.names.push(path);
        self.measures.push(Measure::of(grad.inner().cast(dtype)));
    }
}

fn summarize(names: Vec<String>, measures: Vec<Measure>) -> GradientStatus {
    let measured = measure::read(measures);
    let mut status = GradientStatus {
        gradients: names.len(),
        ..Default::default()
    };
    for Measured {
        elements,
        non_finite,
        zeros,
        max_abs,
        ..
    } in &measured
    {
        status.elements += elements;
        status.non_finite += non_finite;
        status.zeros += zeros;
        status.max_abs = status.max_abs.max(*max_abs);
    }
    status.norm = norm(&measured, status.max_abs);
    status.overflow = names
        .into_iter()
        .zip(&measured)
        .find(|(_, measured)| measured.non_finite > 0)
        .map(|(name, _)| name);
    status
}

/// Combines the tensors' sums of squares, each relative to its own maximum, relative to the common one.
fn norm(measured: &[Measured], max_abs: f64) -> f64 {
    if max_abs == 0.0 {
        return 0.0;
    }
    let squares: f64 = measured
        .iter()
        .map(|m| (m.max_abs / max_abs).powi(2) * m.relative_squares)
        .sum();
    max_abs * squares.sqrt()
}

/// The path of the parameter being visited, as optimizers and records name it.
#[derive(Default)]
struct Path {
    segments: Vec<String>,
}

impl Path {
    fn enter(&mut self, name: &str) {
        self.segments.push(name.to_string());
    }

    fn exit(&mut self) {
        self.segments.pop();
    }

    fn join(&self) -> String {
        self.segments.join(".")
    }
}
