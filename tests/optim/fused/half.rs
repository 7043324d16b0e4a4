//! Parameters in half precision: their masters go where those of `MasterWeights` go, bit for bit.

use super::gradients;
use crate::support::*;

/// A run in which the first parameter is edited between; gradients come in f32 and in half precision by turns. In the end all parameters
/// go over to f32 and back: the state goes on.
fn run<O: ModuleOptim>(optim: &mut O, mut net: Net, dtype: FloatDType) -> Net {
    for number in 0..18 {
        let gradient = match number % 3 {
            1 => dtype,
            _ => FloatDType::F32,
        };
        match number {
            7 => {
                let edit = |weight: Tensor<2>| weight.inner().mul_scalar(1.5);
                let edit = |weight| Tensor::from_inner(edit(weight)).require_grad();
                net.hidden.weight = net.hidden.weight.map(edit);
            }
            12 => net = to_full(net),
            15 => net = to_half(net, dtype, &[]),
            _ => {}
        }
        let grads = gradients(&net, number, gradient);
        net = optim.step(0.003.into(), net, grads);
    }
    net
}

fn compare<C: Clone>(optim: impl Optimizer, fused: Fused<C>) {
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        for keep in [vec![], vec![ParamGroup::from_predicate("hidden")]] {
            let net = to_half(Net::full(&flex()), dtype, &keep);
            let mut masters = MasterWeights::new(optim.clone());
            let mut fused = fused.clone();
            let expected = run(&mut masters, net.clone(), dtype);
            let stepped = run(&mut fused, net.clone(), dtype);
            assert!(parameters(&stepped) == parameters(&expected), "{dtype:?}");
            assert!(parameters(&stepped) != parameters(&net));
            // All are in half precision: names are the same, too.
            assert_eq!(state(&fused), state(&masters));
        }
    }
}

#[test]
fn every_optimizer() {
    for flag in [false, true] {
        let config = AdamConfig::new().with_amsgrad(flag);
        let config = config.with_weight_decay(Some(WeightDecayConfig::new(0.05)));
        compare(config.build(), FusedAdam::new(config));
        let config = AdamWConfig::new().with_weight_decay(0.1);
        let config = config.with_cautious_weight_decay(flag);
        compare(config.build(), FusedAdamW::new(config));
        let momentum = flag.then(|| MomentumConfig::new().with_nesterov(true));
        let config = SgdConfig::new().with_momentum(momentum);
        compare(config.build(), FusedSgd::new(config));
    }
}
