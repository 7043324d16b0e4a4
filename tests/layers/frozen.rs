//! Frozen parameters: in half precision too, and without gradients.

use super::support::*;

#[test]
fn frozen_parameters_are_cast_too() {
    let (device, amp) = (Device::flex().autodiff(), MixedPrecision::f16());
    let first: Linear = LinearConfig::new(6, 4).init(&device).no_grad();
    let last: Linear = LinearConfig::new(4, 3).init(&device);
    let net = amp.attach((first, last));
    let output = amp.autocast(tensor([5, 6], &device), |x| {
        assert_eq!(net.0.weight.val().dtype(), DType::F16);
        net.1.forward(net.0.forward(x))
    });
    let grads = GradientsParams::from_grads(output.square().mean().backward(), &net);
    let grads = gradients_by_path(&grads, &net);
    let paths: Vec<&str> = grads.iter().map(|(path, ..)| path.as_str()).collect();
    assert_eq!(paths, ["1.weight", "1.bias"]);
}
