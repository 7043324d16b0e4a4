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
    // A parameter keeps what is attached to it.
    let model = model.clone().materialize();
    let model = model.apply_reparameterization(Mark(trace.clone()));
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

#[cfg(test)]
mod tests {
    use burn::{
        grad_clipping::GradientClippingConfig,
        module::{Module, ModuleMapper, Param},
        nn::{Linear, LinearConfig},
        optim::{GradientsParams, ModuleOptimizer},
        tensor::{Device, Tensor},
    };

    use super::is_there;
    use crate::MixedPrecision;

    fn linear() -> Linear {
        let linear = LinearConfig::new(4, 2).init(&Device::flex().autodiff());
        linear.apply_reparameterization(MixedPrecision::f16())
    }

    #[test]
    fn burns_is_none_of_its_own() {
        let burns = |linear: Linear, optim: &mut _, lr, grads| {
            ModuleOptimizer::step(optim, lr, linear, grads)
        };
        assert!(!is_there(&linear(), burns));
        // Frozen or not, used twice or not.
        assert!(!is_there(&linear().no_grad(), burns));
        let tied = [linear(), linear()];
        let twice = vec![tied[0].clone(), tied[1].clone(), tied[0].clone()];
        assert!(!is_there(&twice, |model, optim, lr, grads| {
            optim.step(lr, model, grads)
        }));
    }

    /// Halves what is passed to it.
    struct Halve;

    impl ModuleMapper for Halve {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor * 0.5)
        }
    }

    fn clamped(mut linear: Linear) -> Linear {
        linear.weight = linear.weight.map(|weight| weight.clamp(-1e9, 1e9));
        linear
    }

    #[test]
    fn what_is_done_before_or_after_a_step_is_seen() {
        let model = linear();
        assert!(is_there(&model, |linear, optim, lr, grads| {
            clamped(optim.step(lr, linear, grads))
        }));
        assert!(is_there(&model, |linear, optim, lr, grads| {
            optim.step(lr, clamped(linear), grads)
        }));
        assert!(is_there(&model, |linear, optim, lr, grads| {
            optim.step(lr, linear, grads).map(&mut Halve)
        }));
        assert!(is_there(&model, |linear, optim, lr, grads| {
            let linear = optim.step(lr, linear, grads);
            assert!(linear.weight.val().sum().into_scalar::<f32>().is_finite());
            linear
        }));
        assert!(is_there(&model, |linear, optim, lr, grads| {
            optim.step(lr.base() * 0.5, linear, grads)
        }));
        assert!(is_there(&model, |linear, _, _, _| linear));
        assert!(is_there(&model, |linear, optim, lr, mut grads| {
            grads.remove::<1>(linear.bias.as_ref().unwrap().id);
            optim.step(lr, linear, grads)
        }));
        assert!(is_there(&model, |linear, optim, lr, mut grads| {
            let clip = GradientClippingConfig::Norm(100.0).init();
            let grad = grads.remove::<2>(linear.weight.id).unwrap();
            grads.register(linear.weight.id, clip.clip_gradient(grad));
            optim.step(lr, linear, grads)
        }));
        assert!(is_there(&model, |linear, optim, lr, mut grads| {
            let id = linear.weight.id;
            let mut first = GradientsParams::new();
            first.register(id, grads.remove::<2>(id).unwrap());
            let linear = optim.step(lr.clone(), linear, first);
            optim.step(lr, linear, grads)
        }));
    }
}
