//! An optimizer that a user of Burn might write.

use burn::optim::Adam;

use super::*;

/// Adam, which maximizes.
#[derive(Clone)]
pub struct Ascent(pub Adam);

impl Optimizer for Ascent {
    type State<const D: usize> = <Adam as Optimizer>::State<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        self.0.step(lr, tensor, -grad, state)
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        Adam::to_device(state, device)
    }
}
