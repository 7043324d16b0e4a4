//! The masters go where plain f32 parameters would go, bit for bit.

use burn::{
    module::ModuleVisitor,
    module::{Module, Param},
    optim::{
        AdamConfig, AdamWConfig, ModuleOptimizer, Optimizer, RmsPropConfig, SgdConfig,
        decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    tensor::{FloatDType, Tensor},
};
use burn_amp::{MasterWeights, to_half};

use crate::{
    bits::{pack, parameters},
    support::{Net, device, f32s, gradients, master, state},
};

fn compare<O: Optimizer>(optim: O, dtype: FloatDType) {
    let mut plain = Net::new(&device());
    let mut half = to_half(plain.clone(), dtype, &[]);
    let mut plain_optim = ModuleOptimizer::from(optim.clone());
    let mut half_optim = MasterWeights::new(optim);
    let start = parameters(&plain);

    for step in 0..12 {
        let lr = 0.01 / (step + 1) as f64;
        plain = plain_optim.step(
            lr,
            plain.clone(),
            gradients(&plain, step, 0.01, FloatDType::F32),
        );
        half = half_optim.step(
            lr,
            half.clone(),
            gradients(&half, step, 0.01, FloatDType::F32),
        );

        for (path, (_, expected)) in parameters(&plain) {
            let actual = master(&half_optim, &half, &path).unwrap();
            assert_eq!(actual, expected, "step {step}: `{path}`");
            assert_ne!(start[&path].1, expected, "`{path}` stands still");
        }
        // The parameters are the masters, rounded.
        assert_eq!(
            parameters(&half),
            parameters(&to_half(plain.clone(), dtype, &[]))
        );
    }

    // Beside the masters, the state is the plain optimizer's under another name.
    let expected = pack(plain_optim.into_bytes().unwrap());
    let mut actual = state(&half_optim);
    actual.tensors.retain(|name, _| !name.ends_with(".master"));
    let renamed = |name: String| name.replace(".inner.", ".");
    let tensors = actual.tensors.into_iter().map(|(n, t)| (renamed(n), t));
    assert_eq!(
        tensors.collect::<std::collections::BTreeMap<_, _>>(),
        expected.tensors
    );
    let scalars = actual.scalars.into_iter().map(|(n, s)| (renamed(n), s));
    assert_eq!(
        scalars.collect::<std::collections::BTreeMap<_, _>>(),
        expected.scalars
    );
    assert_eq!(actual.metadata, expected.metadata);
}

#[test]
fn adam() {
    compare(AdamConfig::new().build(), FloatDType::F16);
    compare(
        AdamConfig::new().with_amsgrad(true).build(),
        FloatDType::BF16,
    );
}

/// Weight decay must see the master, not the rounded parameter.
#[test]
fn weight_decay() {
    compare(
        AdamWConfig::new().with_weight_decay(0.1).build(),
        FloatDType::F16,
    );
    let decay = Some(WeightDecayConfig::new(0.05));
    compare(
        AdamConfig::new().with_weight_decay(decay).build(),
        FloatDType::F16,
    );
}

#[test]
fn sgd() {
    let momentum = Some(MomentumConfig::new().with_nesterov(true));
    compare(
        SgdConfig::new().with_momentum(momentum).build(),
        FloatDType::F16,
    );
    compare(SgdConfig::new().build(), FloatDType::BF16);
}

#[test]
fn rms_prop() {
    compare(RmsPropConfig::new().build(), FloatDType::F16);
}

/// The digits below the parameter's last are there, and nowhere else.
#[test]
fn masters_know_more_than_parameters() {
    struct Rounded(Vec<f32>);
    impl ModuleVisitor for Rounded {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.base().to_data().iter::<f32>());
        }
    }

    let half = to_half(Net::new(&device()), FloatDType::F16, &[]);
    let mut optim = MasterWeights::new(SgdConfig::new().build());
    let grads = gradients(&half, 0, 1.0, FloatDType::F32);
    let half = optim.step(1e-5, half, grads);
    let masters: Vec<f32> = [
        "hidden.weight",
        "hidden.bias",
        "norm.gamma",
        "norm.beta",
        "head.weight",
        "head.bias",
    ]
    .iter()
    .flat_map(|path| f32s(&master(&optim, &half, path).unwrap()))
    .collect();
    let mut rounded = Rounded(Vec::new());
    half.visit(&mut rounded);
    assert_eq!(masters.len(), rounded.0.len());
    let finer = masters.iter().zip(&rounded.0).filter(|(a, b)| a != b);
    assert!(finer.count() > masters.len() / 2);
}
