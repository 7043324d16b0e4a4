//! Parameters changed behind the optimizer's back.

use burn_amp_tests::prelude::*;

use burn_amp_tests::parameters;

use crate::support::{Net, device, f32s, gradients, master, state};

/// A net after one small step, so that its masters differ from it.
fn stepped() -> (Net, MasterWeights) {
    let net = to_half(Net::new(&device()), FloatDType::F16, &[]);
    let mut optim = MasterWeights::new(SgdConfig::new().build());
    let net = step(&mut optim, net, 1e-5);
    (net, optim)
}

fn step(optim: &mut MasterWeights, net: Net, lr: f64) -> Net {
    let grads = gradients(&net, 0, 1.0, FloatDType::F32);
    optim.step(lr, net, grads)
}

fn masters(optim: &MasterWeights, net: &Net) -> Vec<f32> {
    f32s(&master(optim, net, "hidden.weight").unwrap())
}

fn edit(param: Param<Tensor<2>>, edit: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Param<Tensor<2>> {
    param.map(|tensor| Tensor::from_inner(edit(tensor.inner())).require_grad())
}

/// A step with a learning rate of 0 shows what the optimizer makes of the parameter.
#[test]
fn one_edited_value_replaces_its_master_only() {
    let (mut net, mut optim) = stepped();
    let before = masters(&optim, &net);
    net.hidden.weight = edit(net.hidden.weight, |tensor| {
        let five = Tensor::full([1, 1], 5.0, (&tensor.device(), tensor.dtype()));
        tensor.slice_assign([2..3, 1..2], five)
    });
    let net = step(&mut optim, net, 0.0);
    let mut expected = before.clone();
    expected[2 * 4 + 1] = 5.0;
    assert_ne!(before, expected);
    assert_eq!(masters(&optim, &net), expected);
}

#[test]
fn a_replaced_parameter_replaces_all() {
    let (mut net, mut optim) = stepped();
    net.hidden.weight = edit(net.hidden.weight, |tensor| tensor * 2.0 + 0.5);
    let expected: Vec<f32> = net.hidden.weight.val().to_data().iter::<f32>().collect();
    let net = step(&mut optim, net, 0.0);
    assert_eq!(masters(&optim, &net), expected);
    // And the edit is where the run goes on.
    let after: Vec<f32> = net.hidden.weight.val().to_data().iter::<f32>().collect();
    assert_eq!(after, expected);
}

#[test]
fn an_untouched_parameter_keeps_its_digits() {
    let (net, mut optim) = stepped();
    let before = masters(&optim, &net);
    let net = to_half(to_full(net.clone()), FloatDType::F16, &[]);
    let net = step(&mut optim, net, 0.0);
    assert_eq!(masters(&optim, &net), before);
}

/// A load of older weights is an edit; the inner state stays, as with any optimizer.
#[test]
fn loaded_weights_are_followed() {
    let device = device();
    let mut optim = MasterWeights::new(AdamConfig::new().build());
    let old = to_half(Net::new(&device), FloatDType::F16, &[]);
    let new = step(&mut optim, old.clone(), 0.1);
    assert_ne!(parameters(&new), parameters(&old));
    let inner = |optim: &MasterWeights| {
        let mut tensors = state(optim).tensors;
        tensors.retain(|name, _| name.contains("moment_1"));
        tensors
    };
    let moments = inner(&optim);
    let loaded = new.load_record(old.clone().into_record());
    let grads = gradients(&loaded, 0, 0.0, FloatDType::F32);
    let stepped = optim.step(0.0, loaded, grads);
    assert_eq!(parameters(&stepped), parameters(&old));
    assert_eq!(inner(&optim).len(), moments.len());
    assert_ne!(inner(&optim), moments, "moments decay, they are not reset");
    let zero = |values: &burn_amp_tests::Values| f32s(values).iter().all(|v| *v == 0.0);
    assert!(inner(&optim).values().all(|(_, values)| !zero(values)));
}
