//! Every configuration gives what Burn's optimizer gives: bit for bit on Flex, closely elsewhere.

use burn_pack::DType as Stored;
use std::collections::BTreeMap;

use super::{gradients, records::handed_over, same_steps};
use crate::support::*;

const STEPS: usize = 1000;

/// A long run beside Burn's; states are compared now and then.
fn follows<C>(mut burns: ModuleOptimizer, mut fused: Fused<C>) {
    let mut expected = Net::matrices(&flex());
    let mut net = expected.clone();
    for number in 0..STEPS {
        let lr = 0.02 / (1.0 + number as f64 / 100.0);
        let before = parameters(&net);
        let loss = net.loss(batch(number, &flex()));
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        // They are those of the other net too, which has the same values.
        let mut same = GradientsParams::new();
        for weight in [&net.hidden.weight, &net.head.weight] {
            same.register(weight.id, grads.get::<2>(weight.id).unwrap());
        }
        expected = burns.step(lr, expected, same);
        net = fused.step(lr, net, grads);
        let after = parameters(&net);
        assert!(after == parameters(&expected), "step {number}");
        let stands = before.iter().zip(&after).any(|(a, b)| a == b);
        assert!(number > 3 || !stands, "step {number} did nothing");
        if number % 100 == 0 || number + 1 == STEPS {
            assert_eq!(state(&fused), state(&burns), "step {number}");
        }
    }
}

/// With overflows between, which are skipped: where Burn's optimizer is then, by `ScaledOptimizer` too.
fn skips<C: Clone>(burns: ModuleOptimizer, fused: Fused<C>) {
    let net = Net::full(&flex());
    let expected = compare_with_plain(Plan::new(&net, burns));
    assert!(compare_with_plain(Plan::new(&net, fused)) == expected);
}

/// Each step from Burn's own state, on the device that `BURN_DEVICE` names. A device may contract operations, and rounds divisions and roots
/// in its own way: parameters and states are within 2 units in the last place of the value before or after the step, whichever is larger,
/// and 8 of what the step has changed.
fn keeps_close<C: Clone>(mut burns: ModuleOptimizer, fused: Fused<C>) {
    let mut net = Net::full(&Device::default().autodiff());
    for number in 0..6 {
        let mut fused = fused.clone();
        fused.load_record(burns.to_record()).unwrap();
        let before = snapshot(&net, &burns);
        let grads = || gradients(&net, number, FloatDType::F32);
        let stepped = ModuleOptim::step(&mut fused, 0.01.into(), net.clone(), grads());
        let expected = burns.step(0.01, net.clone(), grads());
        let (actual, expected_values) = (snapshot(&stepped, &fused), snapshot(&expected, &burns));
        assert_eq!(actual.len(), expected_values.len());
        for (name, expected) in &expected_values {
            for (index, expected) in expected.iter().enumerate() {
                let start = before.get(name).map_or(0.0, |values| values[index]);
                let actual = actual[name][index];
                let (larger, changed) = (start.abs().max(expected.abs()), (start - expected).abs());
                let limit = match Device::default() == Device::flex() {
                    true => 0.0,
                    false => f32::EPSILON * (2.0 * larger + 8.0 * changed),
                };
                let distance = (actual - expected).abs();
                let at = format!("step {number}, `{name}`: {actual} for {expected}");
                assert!(distance <= limit, "{at}");
            }
        }
        net = expected;
    }
}

/// Parameters and states as numbers, by name.
fn snapshot<O: ModuleOptim>(net: &Net, optim: &O) -> BTreeMap<String, Vec<f32>> {
    let numbers = |(dtype, bytes): (Stored, Vec<u8>)| f32s(dtype, &bytes);
    let parameters = parameters(net).into_iter().enumerate();
    let parameters = parameters.map(|(index, values)| (index.to_string(), numbers(values)));
    let states = state(optim).tensors.into_iter();
    let states = states.map(|(name, (_, (dtype, _, bytes)))| (name, numbers((dtype, bytes))));
    parameters.chain(states).collect()
}

fn sgd() -> SgdConfig {
    SgdConfig::new()
}

fn momentum(nesterov: bool) -> Option<MomentumConfig> {
    let momentum = MomentumConfig::new().with_dampening(0.3);
    Some(momentum.with_nesterov(nesterov))
}

fn decay() -> Option<WeightDecayConfig> {
    Some(WeightDecayConfig::new(0.01))
}

fn norm() -> Option<GradientClippingConfig> {
    Some(GradientClippingConfig::Norm(0.01))
}

fn value() -> Option<GradientClippingConfig> {
    Some(GradientClippingConfig::Value(0.002))
}

macro_rules! every_configuration {
    ($($name:ident: $fused:ident, $config:expr;)+) => {
        $(mod $name {
            use super::*;

            #[test]
            fn follows() {
                let config = $config;
                super::follows(config.init(), $fused::new(config));
            }

            #[test]
            fn skips() {
                let config = $config;
                super::skips(config.init(), $fused::new(config));
            }

            #[test]
            fn keeps_close() {
                let config = $config;
                super::keeps_close(config.init(), $fused::new(config));
            }
        })+
    };
}

every_configuration! {
    plain_sgd: FusedSgd, sgd();
    decayed_sgd: FusedSgd, sgd().with_weight_decay(decay());
    sgd_with_momentum: FusedSgd, sgd().with_momentum(momentum(false));
    sgd_with_all: FusedSgd, sgd().with_momentum(momentum(true)).with_weight_decay(decay()).with_gradient_clipping(norm());
    plain_adam: FusedAdam, AdamConfig::new();
    decayed_adam: FusedAdam, AdamConfig::new().with_weight_decay(decay()).with_beta_1(0.8).with_epsilon(1e-8);
    amsgrad: FusedAdam, AdamConfig::new().with_amsgrad(true).with_grad_clipping(value());
    clipped_adam: FusedAdam, AdamConfig::new().with_grad_clipping(norm());
    plain_adam_w: FusedAdamW, AdamWConfig::new().with_weight_decay(0.1);
    adam_w_without_decay: FusedAdamW, AdamWConfig::new().with_weight_decay(0.0);
    cautious_adam_w: FusedAdamW, AdamWConfig::new().with_weight_decay(0.1).with_cautious_weight_decay(true);
    cautious_adam_w_without_decay: FusedAdamW, AdamWConfig::new().with_weight_decay(0.0).with_cautious_weight_decay(true);
    adam_w_amsgrad: FusedAdamW, AdamWConfig::new().with_amsgrad(true).with_beta_2(0.9).with_grad_clipping(norm());
}

/// Of f64 parameters there is no kernel: Burn's own operations. Nothing of their state is rounded in a record, and nothing said of
/// `Device::default()`: unlike Burn's loader.
#[test]
fn f64_parameters() {
    #[derive(Module, Debug)]
    struct Wide {
        values: Param<Tensor<2>>,
        narrow: Param<Tensor<1>>,
    }

    let device = flex();
    let start = Tensor::<2>::from_data([[0.1f64, -0.2], [1e-9, 3.0]], (&device, DType::F64));
    let wide = Wide {
        values: Param::from_tensor(start),
        narrow: Param::from_tensor(Tensor::from_data([0.5f32, -1.5], &device)),
    };
    fn check<C: Clone>(mut burns: ModuleOptimizer, fresh: Fused<C>, wide: &Wide) {
        let grads = |wide: &Wide, _| {
            let product = wide.values.val().square().sum().cast(FloatDType::F32);
            let loss = product * wide.narrow.val().square().sum();
            GradientsParams::from_grads(loss.backward(), wide)
        };
        let mut fused = fresh.clone();
        let stepped = same_steps((&mut burns, &mut fused), 0.01, wide, 0..10, grads);
        let dtypes = [0, 1].map(|index| parameters(&stepped)[index].0);
        assert_eq!(dtypes, [Stored::F64, Stored::F32]);
        let mut loaded = handed_over(&fused, fresh);
        assert_eq!(state(&loaded), state(&fused));
        same_steps((&mut fused, &mut loaded), 0.01, &stepped, 10..12, grads);
    }

    let adam = AdamConfig::new().with_amsgrad(true);
    check(adam.init(), FusedAdam::new(adam), &wide);
    let adam_w = AdamWConfig::new();
    check(adam_w.init(), FusedAdamW::new(adam_w), &wide);
    for nesterov in [false, true] {
        let sgd = sgd().with_momentum(momentum(nesterov));
        let sgd = sgd.with_weight_decay(decay());
        check(sgd.init(), FusedSgd::new(sgd), &wide);
    }
}
