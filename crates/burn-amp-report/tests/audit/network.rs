//! What the planted faults are planted in.

use burn::tensor::activation::relu;
use burn_amp_report::{Audit, audit, probed};
use burn_amp_tests::{prelude::*, random};

pub const WIDTH: usize = 16;

/// Three layers of one width, with something between the first and the second.
#[derive(Module, Debug)]
pub struct Network {
    pub first: Linear,
    pub second: Linear,
    pub third: Linear,
}

impl Network {
    /// Burn's initial values are drawn on the device, which other tests seed.
    pub fn new() -> Self {
        let linear = |from| Linear {
            weight: Param::from_tensor(random(from, [WIDTH, WIDTH], &flex()) * 0.2),
            bias: Some(Param::from_tensor(
                random(from + 1000, [WIDTH], &flex()) * 0.2,
            )),
        };
        Self {
            first: linear(1000),
            second: linear(3000),
            third: linear(5000),
        }
    }

    /// `[samples, 16]` to `[samples, 16]`.
    pub fn forward(&self, x: Tensor<2>, between: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
        let x = probed("first", x, |x| relu(self.first.forward(x)));
        let x = probed("between", x, between);
        let x = probed("second", x, |x| relu(self.second.forward(x)));
        probed("third", x, |x| self.third.forward(x))
    }
}

/// `[32, 16]`, of mean 0 and a deviation near 1. No random numbers of the device, which other tests draw too.
pub fn batch() -> Tensor<2> {
    random(1, [32, WIDTH], &flex()) * 1.4
}

/// Audits the network with something between its layers, on a loss of its output.
pub fn audit_with(
    amp: &MixedPrecision,
    between: impl Fn(Tensor<2>) -> Tensor<2>,
    loss: impl Fn(Tensor<2>) -> Tensor<1>,
) -> Audit {
    audit_of(amp, Network::new(), |amp, m| {
        loss(amp.autocast(batch(), |x| m.forward(x, &between)))
    })
}

/// Audits a network on a loss.
pub fn audit_of(
    amp: &MixedPrecision,
    model: Network,
    loss: impl Fn(&MixedPrecision, &Network) -> Tensor<1>,
) -> Audit {
    let model = model.apply_reparameterization(amp.clone());
    audit(&model, amp, |m| loss(amp, m)).unwrap()
}

/// f16 with a loss scale.
pub fn at(scale: f64) -> MixedPrecision {
    f16_under(at_scale(scale))
}

/// Of the healthy ones.
pub fn loss(output: Tensor<2>) -> Tensor<1> {
    (output - 0.5).square().mean()
}
