//! bf16: trains the same with a loss scale and without.

use burn_amp_tests::prelude::*;

use crate::support::{fill, parameters, tensor};

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    head: Linear,
}

/// The parameters after some steps.
fn train(amp: &MixedPrecision) -> Vec<(String, Vec<f32>, bool)> {
    let device = Device::flex().autodiff();
    let net = Net {
        hidden: LinearConfig::new(6, 8).init(&device),
        head: LinearConfig::new(8, 2).init(&device),
    };
    let mut net = fill(net).apply_reparameterization(amp.clone());
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), amp);
    for _ in 0..10 {
        let output = amp.autocast(tensor([5, 6], &device), |x| {
            net.head.forward(tanh(net.hidden.forward(x)))
        });
        let grads = GradientsParams::from_grads(output.square().mean().backward(), &net);
        net = optim.step(0.01, net, grads);
    }
    assert_eq!(optim.scaler().counters().stepped(), 10);
    parameters(&net)
}

/// A power of two only moves the exponent, of which bf16 has as many bits as f32.
#[test]
fn scaling_changes_nothing() {
    let bf16 = MixedPrecision::bf16();
    let scaled = bf16.clone().with_scaler(GradScalerConfig::new()).unwrap();
    assert_eq!([bf16.loss_scale(), scaled.loss_scale()], [1.0, 65536.0]);
    let trained = train(&scaled);
    assert_eq!(trained, train(&bf16));
    let start = fill(LinearConfig::new(6, 8).init(&Device::flex().autodiff()));
    assert!(
        trained[0].1 != parameters(&start)[0].1,
        "nothing was trained"
    );
}
