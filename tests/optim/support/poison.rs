//! Ways for a step to overflow.

use burn_amp_tests::prelude::*;

use super::Net;

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
            let mut replace = Replace {
                grads: &mut grads,
                path: Vec::new(),
                wanted: path,
                value,
                done: false,
            };
            net.visit(&mut replace);
            assert!(replace.done, "no parameter {path}");
        }
        grads
    }
}

struct Replace<'a> {
    grads: &'a mut GradientsParams,
    path: Vec<String>,
    wanted: &'static str,
    value: f32,
    done: bool,
}

impl ModuleVisitor for Replace<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.join(".") == self.wanted {
            let grad = self.grads.remove::<D>(param.id).unwrap();
            let last = grad.dims().map(|size| size - 1..size);
            let value = Tensor::full([1; D], self.value, &grad.device());
            let grad = grad.slice_assign(last, value);
            self.grads.register(param.id, grad);
            self.done = true;
        }
    }
}
