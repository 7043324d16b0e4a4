//! Ways for a step to overflow.

use super::*;

/// What overflows in a step.
#[derive(Clone, Copy, Debug)]
pub enum Poison {
    /// The last value of one gradient is replaced, as an overflow in half precision would.
    Gradient {
        /// The path of the parameter.
        path: &'static str,
        /// What is put there.
        value: f32,
    },
    /// The loss itself is infinite, and so is what backward makes of it.
    Loss,
}

/// This value in the gradient of this parameter.
pub const fn gradient(path: &'static str, value: f32) -> Poison {
    Poison::Gradient { path, value }
}

impl Poison {
    /// The loss to scale and to run backward.
    pub fn loss(self, loss: Tensor<1>) -> Tensor<1> {
        match self {
            Self::Gradient { .. } => loss,
            Self::Loss => loss.mul_scalar(f32::INFINITY),
        }
    }

    /// The gradients to step on.
    pub fn gradients(self, mut grads: GradientsParams, net: &Net) -> GradientsParams {
        if let Self::Gradient { path, value } = self {
            let (id, (_, shape, _)) = &burn_amp_tests::parameters(net)[path];
            let replace = match shape.len() {
                1 => replace::<1>,
                2 => replace::<2>,
                _ => replace::<4>,
            };
            replace(&mut grads, ParamId::from(*id), value);
        }
        grads
    }
}

fn replace<const D: usize>(grads: &mut GradientsParams, id: ParamId, value: f32) {
    let grad = grads.remove::<D>(id).unwrap();
    let last = grad.dims().map(|size| size - 1..size);
    let value = Tensor::full([1; D], value, &grad.device());
    grads.register(id, grad.slice_assign(last, value));
}
