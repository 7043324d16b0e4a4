//! Records of `MasterWeights`: a resumed run goes on bit for bit.

use burn_amp_tests::prelude::*;

use burn_amp_tests::{pack, parameters};

use crate::support::{Net, device, gradients, state};

/// A net whose `norm` stays in f32.
fn mixed() -> Net {
    let norm = [ParamGroup::from_predicate("norm")];
    to_half(Net::new(&device()), FloatDType::F16, &norm)
}

fn steps(optim: &mut MasterWeights, mut net: Net, from: usize) -> Net {
    for step in from..from + 5 {
        let grads = gradients(&net, step, 0.01, FloatDType::F32);
        net = optim.step(0.003, net, grads);
    }
    net
}

/// Ten steps straight, and ten with a save and a load into new objects in between.
fn resume<O: Optimizer>(optim: O) {
    let build = || MasterWeights::new(optim.clone());
    let mut straight = build();
    let middle = steps(&mut straight, mixed(), 0);
    let scaler = || GradScalerConfig::new().init().unwrap();
    let mut saved = ScaledOptimizer::new(straight.clone(), scaler());
    let bytes = saved.into_bytes().unwrap();
    let record = middle.clone().into_record();
    let expected = steps(&mut straight, middle, 5);

    let mut resumed = ScaledOptimizer::new(build(), scaler());
    resumed.from_bytes(bytes.clone()).unwrap();
    assert_eq!(pack(resumed.into_bytes().unwrap()), pack(bytes));
    // Without a scaler too.
    let mut bare = build();
    bare.load_record(saved.into_inner().to_record().unwrap())
        .unwrap();
    let mut resumed = resumed.into_inner();
    let net = steps(&mut resumed, mixed().load_record(record.clone()), 5);
    assert_eq!(parameters(&net), parameters(&expected));
    assert_eq!(state(&resumed), state(&straight));
    steps(&mut bare, mixed().load_record(record), 5);
    assert_eq!(state(&bare), state(&straight));
}

#[test]
fn every_optimizer() {
    resume(AdamConfig::new().build());
    resume(AdamConfig::new().with_amsgrad(true).build());
    let momentum = Some(MomentumConfig::new());
    resume(SgdConfig::new().with_momentum(momentum).build());
    // Here the f32 parameters have no state at all.
    resume(SgdConfig::new().build());
}

/// A plain optimizer has no place for masters: it refuses them, and nothing changes. Without masters, a state is taken: they begin with
/// the parameters.
#[test]
fn with_and_without_masters() {
    let scaler = || GradScalerConfig::new().init().unwrap();
    let mut masters = MasterWeights::new(AdamConfig::new().build());
    steps(&mut masters, mixed(), 0);
    let mut masters = ScaledOptimizer::new(masters, scaler());

    let plain = Net::new(&device());
    let mut adam = AdamConfig::new().init();
    let grads = gradients(&plain, 0, 1.0, FloatDType::F32);
    adam.step(0.01, plain.clone(), grads);
    let mut adam = ScaledOptimizer::new(adam, scaler());

    let adam_before = adam.into_bytes().unwrap();
    let error = adam.from_bytes(masters.into_bytes().unwrap()).unwrap_err();
    assert!(error.to_string().contains("does not fit"), "{error}");
    assert_eq!(pack(adam.into_bytes().unwrap()), pack(adam_before.clone()));

    masters.from_bytes(adam_before.clone()).unwrap();
    assert_eq!(pack(masters.into_bytes().unwrap()), pack(adam_before));
    let mut masters = masters.into_inner();
    let half = to_half(plain, FloatDType::F16, &[]);
    let grads = gradients(&half, 1, 1.0, FloatDType::F32);
    masters.step(0.01, half, grads);
    let stepped = state(&masters);
    let times = (stepped.scalars.iter()).filter(|(name, _)| name.ends_with("inner.momentum.time"));
    let times: Vec<_> = times.map(|(_, time)| usize::try_from(*time)).collect();
    assert_eq!(times, [Ok(2); 6]);
}
