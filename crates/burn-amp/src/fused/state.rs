//! What is kept of a parameter, and the optimizer that Burn's `ModuleOptimizer` holds.

use burn::{
    optim::{DynOptimizer, DynState, LearningRate, StateSink, StateSource, join_path},
    tensor::{DType, Device, FloatDType, Tensor, TensorData, kind::BridgeTensor},
};
use burn_amp_kernels::can_update;
use burn_pack::Scalar;
use std::sync::{Arc, OnceLock};

use super::{
    pass::{self, Idle, Job},
    rule::Rule,
};
use crate::{
    ahead::Run,
    dtype::{is_half, widened, working_dtype},
    master_weights::{INNER, MASTER, follow, masters_asked, owned},
    rank::with_rank,
};

/// The state of a parameter of rank `D`.
#[derive(Clone)]
struct Kept<const D: usize> {
    time: Time,
    /// The f32 copy; none for a parameter that is not in half precision.
    master: Option<Value<D>>,
    /// As the rule names them; none before the first step.
    tensors: Vec<Value<D>>,
    /// Whether it stands in a record as `MasterWeights` writes it.
    wrapped: bool,
}

/// In a record, of a velocity that no step has made yet.
const FRESH: &str = "fresh";

/// How many steps were taken.
#[derive(Clone, Default)]
struct Time {
    /// Those that the device was given; some of them may have been skipped.
    given: usize,
    /// The run of the last step, and how many of it this has made.
    run: Option<(Arc<Run>, usize)>,
    /// Whether there is no state yet if all of them were.
    fresh: bool,
}

impl Time {
    /// Those that were taken, as soon as the host has heard of all.
    fn taken(&self) -> usize {
        let run = self.run.as_ref();
        let skips = run.map_or(0, |(run, steps)| run.skips(*steps));
        self.given.saturating_sub(skips)
    }

    fn is_fresh(&self) -> bool {
        self.fresh && self.taken() == 0
    }

    /// Without one step more.
    fn kept(self, fresh: bool) -> Self {
        Self {
            given: self.taken(),
            run: None,
            fresh,
        }
    }

    /// With one step more, in a run or in none.
    fn next(self, run: Option<Arc<Run>>, fresh: bool) -> Self {
        match (self.run.as_ref(), run) {
            (Some((known, steps)), Some(run)) if Arc::ptr_eq(known, &run) => Self {
                given: self.given + 1,
                run: Some((run, steps + 1)),
                ..self
            },
            (_, run) => Self {
                given: self.taken() + 1,
                run: run.map(|run| (run, 1)),
                fresh,
            },
        }
    }
}

#[derive(Clone)]
enum Value<const D: usize> {
    Live(Tensor<D>),
    /// What was loaded, until the parameter's device is known.
    Stored(TensorData),
}

impl<const D: usize> Value<D> {
    fn on(self, device: &Device) -> Tensor<D> {
        match self {
            Self::Live(tensor) if tensor.device() == *device => tensor,
            Self::Live(tensor) => tensor.to_device(device),
            Self::Stored(data) => {
                let dtype = data.dtype();
                Tensor::from_data(data, (device, dtype))
            }
        }
    }

    fn to_data(&self) -> TensorData {
        match self {
            Self::Live(tensor) => tensor.to_data(),
            Self::Stored(data) => data.clone(),
        }
    }
}

/// A place for a state, which the pass fills. Full from the end of a step to the next; a clone takes handles out of it.
#[derive(Clone)]
struct Slot<const D: usize>(Arc<OnceLock<Kept<D>>>);

const HALFWAY: &str = "an earlier step has panicked: go on from the last record";

impl<const D: usize> Slot<D> {
    fn of(kept: Kept<D>) -> Self {
        Self(Arc::new(kept.into()))
    }

    fn get(&self) -> &Kept<D> {
        self.0.get().expect(HALFWAY)
    }

    fn take(self) -> Kept<D> {
        let kept = Arc::try_unwrap(self.0).map(OnceLock::into_inner);
        let kept = kept.unwrap_or_else(|shared| shared.get().cloned());
        kept.expect(HALFWAY)
    }
}

/// Steps single parameters in the pass that is open.
pub(super) struct Fuse {
    rule: Rule,
    idle: Arc<Idle>,
}

impl Fuse {
    pub(super) fn new(rule: Rule) -> Self {
        Self {
            rule,
            idle: Arc::default(),
        }
    }

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        slot: Option<Slot<D>>,
    ) -> (Tensor<D>, Slot<D>) {
        let (device, dtype) = (grad.device(), tensor.dtype());
        let (before, master, state) = match slot.map(Slot::take) {
            Some(kept) => (kept.time, kept.master, kept.tensors),
            None => (Time::default(), None, Vec::new()),
        };
        let fresh = state.is_empty() || before.is_fresh();
        let time = match pass::is_rehearsed() {
            true => before.kept(fresh),
            false => before.next(pass::run(), fresh),
        };
        // A loaded state may be of a parameter that was narrower or wider.
        let here = |value: Value<D>| value.on(&device).cast(working_dtype(dtype));
        let state: Vec<_> = state.into_iter().map(here).collect();
        // A parameter that has become wider leaves its master behind.
        let master = master.filter(|_| is_half(dtype));
        let master = master.map(|master| master.on(&device));
        let wrapped = is_half(dtype);
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) || !can_update(&tensor) {
            let grad = match pass::skip() {
                1.0 => grad,
                factor => widened(grad, |grad| grad.mul_scalar(factor)),
            };
            let (tensor, master, state) =
                self.composed(lr, tensor, grad, time.given, master, state);
            let kept = Kept {
                time,
                master: master.map(Value::Live),
                tensors: state.into_iter().map(Value::Live).collect(),
                wrapped,
            };
            return (tensor, Slot::of(kept));
        }
        // Zeros are what a record has of a state that no step has made.
        let zeros = || Tensor::zeros(tensor.shape(), (&device, DType::F32));
        let state = match state.is_empty() {
            true => self.rule.names().iter().map(|_| zeros()).collect(),
            false => state,
        };
        let master =
            wrapped.then(|| master.unwrap_or_else(|| tensor.clone().cast(FloatDType::F32)));
        let slot = Slot(Arc::new(OnceLock::new()));
        let to_fill = slot.0.clone();
        // It has the parameter's shape and device, and takes no memory.
        let placeholder = grad.clone();
        let job = Job {
            rule: self.rule.kernel(),
            row: self.rule.row(lr, time.fresh),
            time: time.given,
            device,
            idle: self.idle.clone(),
            tensors: [grad, tensor]
                .into_iter()
                .chain(master)
                .chain(state)
                .collect(),
            keep: Box::new(move |results: Vec<Tensor<D>>| {
                let mut results = results.into_iter().map(Value::Live);
                let kept = Kept {
                    time,
                    master: wrapped.then(|| results.next()).flatten(),
                    tensors: results.collect(),
                    wrapped,
                };
                // Empty until now: nobody else has it.
                let _ = to_fill.set(kept);
            }),
        };
        (pass::step(job).unwrap_or(placeholder), slot)
    }

    /// As [`MasterWeights`](crate::MasterWeights) steps, by Burn's own operations.
    fn composed<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        time: usize,
        master: Option<Tensor<D>>,
        state: Vec<Tensor<D>>,
    ) -> (Tensor<D>, Option<Tensor<D>>, Vec<Tensor<D>>) {
        let dtype = tensor.dtype();
        if !is_half(dtype) {
            let (tensor, state) = self
                .rule
                .composed(lr, tensor, grad.cast(dtype), time, state);
            return (tensor, None, state);
        }
        let master = match master {
            Some(master) => follow(master, tensor, dtype),
            None => tensor.cast(FloatDType::F32),
        };
        let grad = grad.cast(FloatDType::F32);
        let (master, state) = self.rule.composed(lr, master, grad, time, state);
        (master.clone().cast(dtype), Some(master), state)
    }

    fn flatten<const D: usize>(&self, prefix: &str, kept: &Kept<D>, out: &mut StateSink) {
        let asked = masters_asked(prefix, |masters, id| match &kept.master {
            Some(Value::Live(master)) => masters.insert(id, master.clone()),
            Some(Value::Stored(data)) => masters.store(id, data.clone()),
            None => {}
        });
        if asked {
            return;
        }
        if let Some(master) = &kept.master {
            out.push_tensor(prefix, MASTER, owned(&master.to_data()));
        }
        let base = match kept.wrapped {
            true => join_path(prefix, INNER),
            false => prefix.to_string(),
        };
        if let Some(counter) = self.rule.counter() {
            out.push_scalar(&base, counter, Scalar::from(kept.time.taken()));
        } else if kept.time.is_fresh() {
            // Burn knows no such velocity: it would be taken for one of zero.
            out.push_scalar(&base, FRESH, Scalar::from(1u64));
        }
        for (name, value) in self.rule.names().iter().zip(&kept.tensors) {
            out.push_tensor(&base, name, owned(&value.to_data()));
        }
    }

    /// None if a tensor or the counter is missing, or cannot be of this rule: Burn's loader then leaves it, and ours refuses the record.
    fn unflatten<const D: usize>(&self, prefix: &str, src: &mut StateSource) -> Option<Kept<D>> {
        let master = src.take_tensor(prefix, MASTER);
        let inner = join_path(prefix, INNER);
        let names = self.rule.names();
        let first = (names.first()).and_then(|name| {
            let plain = src.take_tensor(prefix, name).map(|data| (data, false));
            plain.or_else(|| Some((src.take_tensor(&inner, name)?, true)))
        });
        let wrapped = first
            .as_ref()
            .map_or(master.is_some(), |(_, wrapped)| *wrapped);
        let base = if wrapped { &inner } else { prefix };
        let time = match self.rule.counter() {
            // The corrections take it as an `i32`.
            Some(counter) => i32::try_from(src.take_scalar(base, counter)?)
                .ok()?
                .try_into()
                .ok()?,
            None => 0,
        };
        let fresh = src.take_scalar(base, FRESH).is_some();
        let mut tensors: Vec<TensorData> = first.into_iter().map(|(data, _)| data).collect();
        for name in names.iter().skip(1) {
            tensors.push(src.take_tensor(base, name)?);
        }
        let fits = |data: &TensorData| {
            data.rank() == D
                && tensors
                    .iter()
                    .all(|other| other.shape() == data.shape() && other.dtype() == data.dtype())
        };
        let is_f32 = |data: &TensorData| data.dtype() == DType::F32;
        let whole = tensors.len() == names.len()
            && tensors
                .iter()
                .all(|data| fits(data) && matches!(data.dtype(), DType::F32 | DType::F64))
            && master.iter().all(|data| is_f32(data) && fits(data));
        whole.then(|| Kept {
            time: Time {
                given: time,
                run: None,
                fresh,
            },
            master: master.map(Value::Stored),
            tensors: tensors.into_iter().map(Value::Stored).collect(),
            wrapped,
        })
    }
}

impl DynOptimizer for Fuse {
    fn step_dyn(
        &self,
        rank: usize,
        lr: LearningRate,
        tensor: BridgeTensor,
        grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        with_rank!(rank, D => {
            let (tensor, grad) = (Tensor::<D>::from_bridge(tensor), Tensor::<D>::from_bridge(grad));
            let (tensor, slot) = self.step(lr, tensor, grad, state.map(DynState::downcast));
            (tensor.into_bridge(), Some(DynState::create(slot, rank)))
        }, _rank => unreachable!("a parameter of rank {rank}"))
    }

    /// The next step moves it, to the gradient's device.
    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        with_rank!(state.rank(), D => {
            self.flatten(prefix, state.downcast_ref::<Slot<D>>().get(), out)
        }, _rank => ())
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        src: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        with_rank!(rank, D => {
            let kept = self.unflatten::<D>(prefix, src)?;
            Some(DynState::create(Slot::of(kept), rank))
        }, _rank => None)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::{
        backend::{BackendTensor, DispatchTensorKind},
        optim::{AdamConfig, AdamWConfig, SgdConfig, momentum::MomentumConfig},
    };

    use super::{super::rule::FusedConfig, *};

    fn addresses(kept: &Kept<1>) -> Vec<*const u8> {
        let address = |value: &Value<1>| match value {
            Value::Live(tensor) => match tensor.clone().into_dispatch().kind {
                DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => tensor.bytes().as_ptr(),
                _ => panic!("not a float tensor on Flex"),
            },
            Value::Stored(_) => panic!("not on its device"),
        };
        kept.master
            .iter()
            .chain(&kept.tensors)
            .map(address)
            .collect()
    }

    /// A step takes no memory for masters and states, unless a clone holds them.
    #[test]
    fn states_are_overwritten_in_place() {
        let settings = AdamConfig::new().with_amsgrad(true).settings().unwrap();
        let fuse = Fuse::new(settings.rule);
        let device = Device::flex();
        for (dtype, count) in [(DType::F32, 3), (DType::F16, 4)] {
            let mut tensor = Tensor::<1>::ones([100], (&device, dtype)).into_bridge();
            let mut state = None;
            let mut places = Vec::new();
            for _ in 0..4 {
                let grad = Tensor::<1>::ones([100], (&device, DType::F32)).into_bridge();
                (tensor, state) = fuse.step_dyn(1, 0.1, tensor, grad, state);
                let state = state.as_ref().unwrap();
                places.push(addresses(state.downcast_ref::<Slot<1>>().get()));
            }
            assert_eq!(places[0].len(), count);
            places.dedup();
            assert_eq!(places.len(), 1, "{dtype:?}");

            let held = state.clone();
            let grad = Tensor::<1>::ones([100], (&device, DType::F32)).into_bridge();
            let (_, state) = fuse.step_dyn(1, 0.1, tensor, grad, state);
            let now = addresses(state.unwrap().downcast_ref::<Slot<1>>().get());
            let held = addresses(held.unwrap().downcast_ref::<Slot<1>>().get());
            assert_eq!(held, places[0]);
            assert!(now.iter().all(|place| !held.contains(place)));
        }
    }

    /// Where there is no kernel, half-precision parameters are stepped by Burn's operations: on Flex to the same bits.
    #[test]
    fn without_a_kernel() {
        let momentum = MomentumConfig::new().with_nesterov(true);
        let settings = [
            AdamConfig::new().settings(),
            AdamWConfig::new().with_amsgrad(true).settings(),
            SgdConfig::new().with_momentum(Some(momentum)).settings(),
        ];
        let device = Device::flex();
        let values = |factor: f32| {
            let values = (0..50).map(|i| (i as f32 * factor).sin());
            Tensor::<1>::from_floats(values.collect::<Vec<f32>>().as_slice(), &device)
        };
        for settings in settings {
            let fuse = Fuse::new(settings.unwrap().rule);
            let mut here = values(0.7).cast(FloatDType::F16);
            let (mut there, mut slot) = (here.clone(), None);
            let (mut master, mut state) = (None, Vec::new());
            for step in 1..5 {
                let grad = values(step as f32);
                let stepped = fuse.step(0.01, here, grad.clone(), slot);
                (here, slot) = (stepped.0, Some(stepped.1));
                let stepped = fuse.composed(0.01, there, grad, step, master, state);
                (there, master, state) = stepped;
                assert_eq!(here.to_data(), there.to_data());
                let kept = slot.as_ref().unwrap().get();
                let live = kept.master.iter().chain(&kept.tensors).map(Value::to_data);
                let expected = master.iter().chain(&state).map(Tensor::to_data);
                assert!(live.eq(expected), "step {step}");
            }
        }
    }
}
