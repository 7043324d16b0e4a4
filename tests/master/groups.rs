//! Mixed models: kept f32 parameters, and frozen ones.

use burn_amp_tests::prelude::*;

use burn_amp_tests::parameters;

use crate::support::{Net, device, master};

/// Real training of a mixed model, through `ScaledOptimizer`.
#[test]
fn a_mixed_model_learns() {
    let device = device();
    let norm = [ParamGroup::from_predicate("norm")];
    let mut net = to_half(Net::new(&device), FloatDType::F16, &norm);
    let masters = MasterWeights::new(AdamConfig::new().build());
    let mut optim = ScaledOptimizer::new(masters, GradScalerConfig::new().init().unwrap());
    let rows = [
        [0.5, -1.0, 0.25, 2.0, -0.75, 1.5],
        [1.0, 0.0, -2.0, 0.5, 0.125, -1.0],
    ];
    let input = Tensor::<2>::from_floats(rows, &device);
    let mut losses = Vec::new();
    for _ in 0..30 {
        let output = net.forward(input.clone().cast(FloatDType::F16));
        let loss = output.cast(FloatDType::F32).sub_scalar(0.3).square().mean();
        losses.push(loss.clone().into_scalar::<f32>());
        let grads = optim.backward(loss, &net);
        net = optim.step(0.02, net, grads);
    }
    assert!(losses[29] < 0.1 * losses[0], "{losses:?}");
    assert_eq!(net.hidden.weight.val().dtype(), DType::F16);
    assert_eq!(net.norm.gamma.val().dtype(), DType::F32);
}

/// Frozen parameters get no gradient: no step, no master.
#[test]
fn frozen_parameters_stay() {
    let device = device();
    let mut net = Net::new(&device);
    net.hidden = net.hidden.no_grad();
    let mut net = to_half(net, FloatDType::F16, &[]);
    let masters = MasterWeights::new(AdamConfig::new().build());
    let scaler = GradScalerConfig::new().with_init_scale(256.0);
    let mut optim = ScaledOptimizer::new(masters, scaler.init().unwrap());
    let before = parameters(&net);
    let input = Tensor::<2>::ones([2, 6], (&device, DType::F16));
    let loss = net.forward(input).cast(FloatDType::F32).square().mean();
    let grads = optim.backward(loss, &net);
    net = optim.step(0.01, net, grads);
    assert_eq!(optim.scaler().counters().stepped(), 1);
    for (path, after) in parameters(&net) {
        let frozen = path.starts_with("hidden");
        assert_eq!(after == before[&path], frozen, "{path}");
        let master = master(optim.optimizer(), &net, &path);
        assert_eq!(master.is_none(), frozen, "{path}");
    }
}
