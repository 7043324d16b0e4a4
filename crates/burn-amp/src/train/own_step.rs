//! Whether a model has a `TrainStep::optimize` of its own, which Rust does not tell: Burn's is tried, and leaves a trace.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{
        Devices, Module, ModuleMapper, ModuleVisitor, Param, ParamGroup, Reparameterization,
        Reparameterizer,
    },
    optim::{
        DynOptimizer, DynState, GradientsParams, LearningRate, ModuleOptimizer, SgdConfig,
        StateSink, StateSource,
    },
    tensor::{DType, Device, Tensor, kind::BridgeTensor},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    module_path::{self, ModulePath},
    rank::with_rank,
};

/// Of all gradients and learning rates: what is changed is none any more, whether it is clipped, scaled or added to.
const MARK: f32 = 300.25;

/// Whether `optimize` does anything but to step a module, once, with all gradients as they are. It is called with an optimizer that leaves
/// the parameters alone. Waits for the device.
pub(super) fn is_there<M: Module>(
    model: &M,
    optimize: impl FnOnce(M, &mut ModuleOptimizer, ModuleLearningRate, GradientsParams) -> M,
) -> bool {
    let trace = Trace::default();
    let model = model.clone().apply_reparameterization(Mark(trace.clone()));
    let mut given = Given::default();
    module_path::visit(&model, &mut given);
    let idle = Idle(trace.clone());
    let mut optim = (SgdConfig::new().init()).with_group(ParamGroup::all(), idle, None);
    let steps = given.grads.len();
    let model = optimize(model, &mut optim, f64::from(MARK).into(), given.grads);
    let mut left = Given::default();
    module_path::visit(&model, &mut left);
    let seen = trace.seen();
    let is_burns = !seen.is_changed
        && (seen.stepped, seen.mapped, left.marks) == (steps, given.marks, given.marks);
    !is_burns
}

/// A gradient for each parameter, and what marks them.
#[derive(Default)]
struct Given {
    grads: GradientsParams,
    marks: usize,
}

impl module_path::Visit for Given {
    fn parameter<const D: usize>(&mut self, _path: &ModulePath, param: &Param<Tensor<D>>) {
        let value = param.base();
        if value.is_require_grad() {
            let mark = Tensor::<D>::full([1; D], MARK, (&value.device().inner(), DType::F32));
            let grad: Tensor<D> = mark.expand::<D, _>(value.shape());
            self.grads.register(param.id, grad);
        }
    }

    fn enter(&mut self, _path: &ModulePath, name: &str, _container_type: &str) {
        self.marks += usize::from(name == Mark::NAME);
    }
}

/// What was done to the parameters, and to their gradients before they were stepped.
#[derive(Clone, Debug, Default)]
struct Trace(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    mapped: usize,
    stepped: usize,
    is_changed: bool,
}

impl Trace {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves parameters alone.
struct Idle(Trace);

impl DynOptimizer for Idle {
    fn step_dyn(
        &self,
        rank: usize,
        lr: LearningRate,
        tensor: BridgeTensor,
        grad: BridgeTensor,
        _state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let is_changed = with_rank!(rank, D => {
            let changed = Tensor::<D>::from_bridge(grad).not_equal_elem(MARK);
            lr != f64::from(MARK) || changed.any().into_scalar::<bool>()
        }, _rank => true);
        let mut seen = self.0.seen();
        seen.stepped += 1;
        seen.is_changed |= is_changed;
        (tensor, None)
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, _prefix: &str, _state: &DynState, _out: &mut StateSink) {}

    fn state_unflatten(
        &self,
        _rank: usize,
        _prefix: &str,
        _src: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        None
    }
}

/// Attached to a parameter: gone where the parameter was replaced, and told where it was mapped or read.
#[derive(Clone, Debug)]
struct Mark(Trace);

impl Reparameterizer for Mark {
    type Reparam = Self;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Self>) {
        (param, Some(self.clone()))
    }
}

impl Reparameterization for Mark {
    const NAME: &'static str = "mark";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        self.0.seen().is_changed = true;
        base
    }
}

impl Module for Mark {
    fn visit<V: ModuleVisitor>(&self, _visitor: &mut V) {}

    fn map<T: ModuleMapper>(self, _mapper: &mut T) -> Self {
        self.0.seen().mapped += 1;
        self
    }

    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn fork(self, _device: &Device) -> Self {
        self
    }

    fn to_device(self, _device: &Device) -> Self {
        self
    }

    fn train(self) -> Self {
        self
    }

    fn valid(&self) -> Self {
        self.clone()
    }

    fn materialize(self) -> Self {
        self
    }
}
