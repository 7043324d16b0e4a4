//! Frozen parameters: in half precision too, and without gradients.

use burn_amp_tests::prelude::*;

use crate::support::{gradients, tensor};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    last: Linear,
}

#[test]
fn frozen_parameters_are_cast_too() {
    let (device, amp) = (Device::flex().autodiff(), MixedPrecision::f16());
    let net = Net {
        first: LinearConfig::new(6, 4).init(&device).no_grad(),
        last: LinearConfig::new(4, 3).init(&device),
    };
    let net = net.apply_reparameterization(amp.clone());
    let output = amp.autocast(tensor([5, 6], &device), |x| {
        assert_eq!(net.first.weight.val().dtype(), DType::F16);
        net.last.forward(net.first.forward(x))
    });
    let grads = GradientsParams::from_grads(output.square().mean().backward(), &net);
    let grads = gradients(&grads, &net);
    let paths: Vec<&str> = grads.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["last.weight", "last.bias"]);
}
