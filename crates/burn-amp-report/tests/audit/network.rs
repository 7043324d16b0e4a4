//! What the planted faults are planted in.

use burn::tensor::activation::relu;
use burn_amp_report::{Audit, audit, probed};
use burn_amp_tests::{fill, prelude::*, random};

/// Three layers of one width, with something between the first and the second.
#[derive(Module, Debug)]
pub struct Network {
    pub first: Linear,
    pub second: Linear,
    pub third: Linear,
}

impl Network {
    /// The same values in every run: those that Burn draws are replaced.
    pub fn new() -> Self {
        let [first, second, third] = [(); 3].map(|()| LinearConfig::new(16, 16).init(&flex()));
        let model = Self {
            first,
            second,
            third,
        };
        fill(model, 0, 0.2)
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
    random(1, [32, 16], &flex()) * 1.4
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

/// Of the healthy ones.
pub fn loss(output: Tensor<2>) -> Tensor<1> {
    (output - 0.5).square().mean()
}
