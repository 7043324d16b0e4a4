//! The optimizer of single parameters that Burn's `ModuleOptimizer` holds: hands a step to the pass that is open, or to Burn's own optimizer where
//! there is no kernel for it.

use burn::optim::{DynOptimizer, DynState, LearningRate, Optimizer, StateSink, StateSource};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_amp_kernels::can_update;
use std::sync::Arc;

use super::pass::{self, Job};
use super::rule::{FusedConfig, Rule};
use super::state::{Slot, State, unflatten};
use burn_amp_core::internal::{AnyTensor, is_half, working_dtype};
use burn_amp_torch::internal::{Masters, WithMaster};

/// Steps one parameter, by the rule of a configuration.
///
/// The rules treat each value by itself, so all tensors are handles of rank 1, whatever the shape: a program has the code for one rank.
pub(super) struct Single<C: FusedConfig> {
    pub(super) burns: Masters<C::Optim>,
    pub(super) rule: Rule,
}

impl<C: FusedConfig> Single<C> {
    /// Has the kernels step. The slot of the state is filled in when the pass is made.
    fn step_by_kernel(
        &self,
        lr: LearningRate,
        tensor: Tensor<1>,
        grad: Tensor<1>,
        state: Option<State<C::Optim>>,
    ) -> (Tensor<1>, Option<State<C::Optim>>) {
        let (rule, device) = (&self.rule, grad.device());
        let kept = state.and_then(|state| state.into_tensors(rule, tensor.rank()));
        let WithMaster { master, state, .. } = kept.unwrap_or_default();
        // The kernel compares it with the parameter. A parameter that has become wider leaves its master behind.
        let master = is_half(tensor.dtype()).then(|| {
            let known = master.and_then(|master| master.live(&device));
            known.map_or_else(
                || tensor.clone().cast(FloatDType::F32),
                AnyTensor::into_handle,
            )
        });
        let mut tensors = vec![grad, tensor];
        tensors.extend(master);
        let mut known = state.tensors.into_iter();
        for _ in rule.names() {
            let known = known.next().and_then(|state| state.live(&device));
            tensors.push(match known {
                // A loaded one may be of a parameter that was wider.
                Some(state) => state.into_handle().cast(FloatDType::F32),
                // What a record has of a state that no step has made.
                None => tensors[tensors.len() - 1].zeros_like(),
            });
        }
        let slot = Slot::default();
        let job = Job {
            rule: rule.kernel,
            row: rule.row(lr),
            time: state.time,
            device,
            tensors,
            slot: slot.clone(),
            position: 0,
        };
        (pass::step(job), Some(State::Tensors(slot)))
    }

    /// Has Burn's optimizer step, and keep masters as `MasterWeights` does.
    fn step_by_burn(
        &self,
        lr: LearningRate,
        tensor: Tensor<1>,
        grad: Tensor<1>,
        state: Option<State<C::Optim>>,
    ) -> (Tensor<1>, Option<State<C::Optim>>) {
        let grad = AnyTensor::with_graph(grad).mul_scalar(pass::skip().into());
        let (dtype, device) = (working_dtype(tensor.dtype()), grad.device());
        let (rule, rank) = (&self.rule, tensor.rank());
        let kept = state.and_then(|state| state.into_burns::<C>(rule, rank, dtype, &device));
        let (tensor, kept) = self.burns.step(lr, tensor, grad.into_handle(), kept);
        (tensor, kept.map(|kept| State::Burns(dtype, kept.into())))
    }
}

impl<C: FusedConfig> DynOptimizer for Single<C> {
    fn step_dyn(
        &self,
        rank: usize,
        lr: LearningRate,
        tensor: BridgeTensor,
        grad: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        let [tensor, grad] = [tensor, grad].map(Tensor::<1>::from_bridge);
        let state = state.map(DynState::downcast);
        let is_known = matches!(tensor.dtype(), DType::F16 | DType::BF16 | DType::F32);
        let (tensor, state) = pass::in_pass(|| match is_known && can_update(&tensor) {
            true => self.step_by_kernel(lr, tensor, grad, state),
            false => self.step_by_burn(lr, tensor, grad, state),
        });
        let state = state.map(|state| DynState::create(state, rank));
        (tensor.into_bridge(), state)
    }

    /// The next step moves it, to the gradient's device.
    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        let state = state.downcast_ref::<State<C::Optim>>();
        state.flatten(&self.rule, prefix, out);
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        src: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        let kept = unflatten(&self.rule, rank, prefix, src)?;
        let state = State::<C::Optim>::Tensors(Arc::new(kept.into()));
        Some(DynState::create(state, rank))
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        backend::{BackendTensor, DispatchTensorKind},
        optim::{AdamConfig, AdamWConfig, SgdConfig, momentum::MomentumConfig},
        tensor::TensorData,
    };

    use super::*;
    use burn_amp_core::internal::ParamTensor;

    fn single<C: FusedConfig>(config: &C) -> Single<C> {
        let (burns, rule, _) = config.settings().unwrap();
        let burns = Masters(burns);
        Single { burns, rule }
    }

    fn addresses<O: Optimizer>(state: &State<O>) -> Vec<*const u8> {
        let State::Tensors(slot) = state else {
            panic!("not that of a kernel");
        };
        let address = |tensor: &ParamTensor| {
            let tensor = tensor.clone().live(&Device::flex()).unwrap();
            match tensor.into_handle::<1>().into_dispatch().kind {
                DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => tensor.bytes().as_ptr(),
                _ => panic!("not a float tensor on Flex"),
            }
        };
        let kept = slot.get().unwrap();
        let tensors = kept.master.iter().chain(&kept.state.tensors);
        tensors.map(address).collect()
    }

    /// A step takes no memory for masters and states, unless a clone holds them.
    #[test]
    fn states_are_overwritten_in_place() {
        let config = AdamConfig::new().with_amsgrad(true);
        let single = single(&config);
        let device = Device::flex();
        for (dtype, count) in [(DType::F32, 3), (DType::F16, 4)] {
            let grad = || Tensor::<1>::ones([100], (&device, DType::F32));
            let mut tensor = Tensor::<1>::ones([100], (&device, dtype));
            let mut state = None;
            let mut places = Vec::new();
            for _ in 0..4 {
                (tensor, state) =
                    pass::in_pass(|| single.step_by_kernel(0.1, tensor, grad(), state));
                places.push(addresses(state.as_ref().unwrap()));
            }
            assert_eq!(places[0].len(), count);
            places.dedup();
            assert_eq!(places.len(), 1, "{dtype:?}");

            let held = state.clone();
            let (_, state) = pass::in_pass(|| single.step_by_kernel(0.1, tensor, grad(), state));
            let (now, held) = (addresses(&state.unwrap()), addresses(&held.unwrap()));
            assert_eq!(held, places[0]);
            assert!(now.iter().all(|place| !held.contains(place)));
        }
    }

    fn record<C: FusedConfig>(single: &Single<C>, state: &State<C::Optim>) -> String {
        let mut sink = StateSink::default();
        state.flatten(&single.rule, "7", &mut sink);
        format!("{:?}", (sink.tensors, sink.scalars))
    }

    /// Burn's own optimizer steps where there is no kernel: on Flex to the same bits, also from the other's state.
    fn same_without_a_kernel<C: FusedConfig>(config: C) {
        let single = single(&config);
        let values = |factor: f32| {
            let values = (0..50).map(|i| (i as f32 * factor).sin());
            let values = TensorData::new(values.collect::<Vec<_>>(), [5, 10]);
            AnyTensor::with_graph(Tensor::<2>::from_data(values, &Device::flex())).into_handle()
        };
        for dtype in [FloatDType::F16, FloatDType::F32] {
            let mut fused: Tensor<1> = values(0.7).cast(dtype);
            let (mut burns, mut state, mut burns_state) = (fused.clone(), None, None);
            for step in 1..7 {
                let grad = values(step as f32);
                let of_burn = grad.clone();
                (fused, state) = pass::in_pass(|| single.step_by_kernel(0.01, fused, grad, state));
                (burns, burns_state) =
                    pass::in_pass(|| single.step_by_burn(0.01, burns, of_burn, burns_state));
                assert_eq!(fused.to_data(), burns.to_data(), "step {step}");
                let [one, other] = [&state, &burns_state].map(|state| state.as_ref().unwrap());
                assert_eq!(record(&single, one), record(&single, other), "step {step}");
                if step % 2 == 0 {
                    std::mem::swap(&mut state, &mut burns_state);
                }
            }
        }
    }

    #[test]
    fn without_a_kernel() {
        let momentum = MomentumConfig::new().with_nesterov(true);
        same_without_a_kernel(AdamConfig::new());
        same_without_a_kernel(AdamWConfig::new().with_amsgrad(true));
        same_without_a_kernel(SgdConfig::new());
        same_without_a_kernel(SgdConfig::new().with_momentum(Some(momentum)));
    }
}
