//! An optimizer as a user would write it: a sign step on decayed momentum, with a counter.

use burn::optim::{RecordState, StateSink, StateSource};
use burn_amp_tests::prelude::*;
use burn_pack::Scalar;

#[derive(Clone)]
pub struct DecayedSign {
    pub decay: f64,
}

#[derive(Clone)]
pub struct DecayedSignState<const D: usize> {
    momentum: Tensor<D>,
    steps: usize,
}

// By hand: Burn's derive names paths of its own crate.
impl<const D: usize> RecordState for DecayedSignState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_tensor(prefix, "momentum", self.momentum.to_data());
        out.push_scalar(prefix, "steps", Scalar::from(self.steps));
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let momentum = src.take_tensor(prefix, "momentum")?;
        let steps = src.take_scalar(prefix, "steps")?;
        Some(Self {
            momentum: Tensor::from_data(momentum, device),
            steps: usize::try_from(steps).ok()?,
        })
    }
}

impl Optimizer for DecayedSign {
    type State<const D: usize> = DecayedSignState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let (momentum, steps) = match state {
            Some(state) => {
                let momentum = state.momentum.mul_scalar(self.decay) + grad;
                (momentum, state.steps + 1)
            }
            None => (grad, 1),
        };
        let step = momentum.clone().sign().mul_scalar(lr / steps as f64);
        (tensor - step, Some(DecayedSignState { momentum, steps }))
    }

    fn to_device<const D: usize>(mut state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.momentum = state.momentum.to_device(device);
        state
    }
}
