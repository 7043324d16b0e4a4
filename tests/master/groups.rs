//! Mixed models: kept f32 parameters, groups with optimizers of their own, frozen parameters, clipping.

use burn::{
    grad_clipping::GradientClipping,
    module::{Module, ParamGroup},
    optim::{AdamConfig, ModuleOptimizer, SgdConfig},
    tensor::{DType, FloatDType, Tensor},
};
use burn_amp::{GradScalerConfig, MasterWeights, ScaledOptimizer, to_half};

use crate::{
    bits::parameters,
    support::{Net, device, gradients, master, state},
};

/// `norm` stays in f32: stepped as by the plain optimizer, without a master.
#[test]
fn a_kept_part_is_stepped_in_f32() {
    let plain = Net::new(&device());
    let norm = [ParamGroup::from_predicate("norm")];
    let half = to_half(plain.clone(), FloatDType::F16, &norm);
    let mut plain_optim = AdamConfig::new().init();
    let mut half_optim = MasterWeights::new(AdamConfig::new().build());
    let grads = gradients(&plain, 0, 0.1, FloatDType::F32);
    let plain = plain_optim.step(0.01, plain, grads);
    let grads = gradients(&half, 0, 0.1, FloatDType::F32);
    let half = half_optim.step(0.01, half, grads);

    let (plain, after) = (parameters(&plain), parameters(&half));
    for (path, expected) in &plain {
        let master = master(&half_optim, &half, path);
        if path.starts_with("norm") {
            assert_eq!(after[path], *expected, "{path}");
            assert_eq!(master, None, "{path}");
        } else {
            assert_eq!(after[path].1.0, DType::F16, "{path}");
            assert_eq!(master.unwrap(), expected.1, "{path}");
        }
    }
}

/// Real training of a mixed model, through `ScaledOptimizer`.
#[test]
fn a_mixed_model_learns() {
    let device = device();
    let norm = [ParamGroup::from_predicate("norm")];
    let mut net = to_half(Net::new(&device), FloatDType::F16, &norm);
    let masters = MasterWeights::new(AdamConfig::new().build());
    let mut optim = ScaledOptimizer::new(masters, GradScalerConfig::new().init().unwrap());
    let input = Tensor::<2>::from_floats(
        [
            [0.5, -1.0, 0.25, 2.0, -0.75, 1.5],
            [1.0, 0.0, -2.0, 0.5, 0.125, -1.0],
        ],
        &device,
    );
    let mut losses = Vec::new();
    for _ in 0..30 {
        let output = net.forward(input.clone().cast(FloatDType::F16));
        let loss = output.cast(FloatDType::F32).sub_scalar(0.3).square().mean();
        losses.push(loss.clone().into_scalar::<f32>());
        let grads = optim.backward(loss, &net);
        net = optim.step(0.02, net, grads);
    }
    assert!(losses[29] < 0.1 * losses[0], "{losses:?}");
    let dtypes = |net: &Net| {
        [
            net.hidden.weight.val().dtype(),
            net.norm.gamma.val().dtype(),
        ]
    };
    assert_eq!(dtypes(&net), [DType::F16, DType::F32]);
}

/// Each group has its own optimizer, with masters, as a plain optimizer with the same groups.
#[test]
fn groups_have_masters_too() {
    let biases = || ParamGroup::from_predicate("bias");
    let clipping = || Some(GradientClipping::Value(0.05));
    let mut plain = Net::new(&device());
    let mut half = to_half(plain.clone(), FloatDType::F16, &[]);
    let mut plain_optim = ModuleOptimizer::from(AdamConfig::new().build())
        .with_grad_clipping(GradientClipping::Norm(0.3))
        .with_group(biases(), SgdConfig::new().build(), clipping());
    let mut half_optim = MasterWeights::new(AdamConfig::new().build())
        .with_grad_clipping(GradientClipping::Norm(0.3))
        .with_group(biases(), SgdConfig::new().build(), clipping());
    for step in 0..3 {
        let grads = gradients(&plain, step, 0.5, FloatDType::F32);
        plain = plain_optim.step(0.01, plain, grads);
        let grads = gradients(&half, step, 0.5, FloatDType::F32);
        half = half_optim.step(0.01, half, grads);
    }
    let expected = parameters(&plain);
    for (path, (id, values)) in &expected {
        assert_eq!(master(&half_optim, &half, path).unwrap(), *values, "{path}");
        let moments = |name: &&String| name.starts_with(&format!("{id}.inner"));
        let moments = state(&half_optim).tensors.keys().filter(moments).count();
        assert_eq!(moments, if path.contains("bias") { 0 } else { 2 }, "{path}");
    }
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
