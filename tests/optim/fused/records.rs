//! Records are Burn's, in both directions, through files and in the middle of a run; others are refused.

use burn_amp_tests::prelude::*;
use burn_pack::{Reader, Tensor, Writer};

use super::{flex, gradients};
use crate::support::{Net, parameters, state};

fn steps<O: ModuleOptim>(optim: &mut O, mut net: Net, range: std::ops::Range<usize>) -> Net {
    for number in range {
        let grads = gradients(&net, number, FloatDType::F32);
        net = optim.step(0.003.into(), net, grads);
    }
    net
}

/// Saves one optimizer and loads the file into another, each with a scaler around it.
fn handed_over<A: ModuleOptim + Clone, B: ModuleOptim>(from: &A, to: B) -> B {
    let scaler = || GradScalerConfig::new().init().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("optim.bpk");
    ScaledOptimizer::new(from.clone(), scaler())
        .save(&path)
        .unwrap();
    let mut to = ScaledOptimizer::new(to, scaler());
    to.load(&path).unwrap();
    to.into_inner()
}

/// Both go on from the other's file as they go on themselves.
fn both_ways<A, B>(fresh_a: A, fresh_b: B, start: Net)
where
    A: ModuleOptim + Clone,
    B: ModuleOptim + Clone,
{
    let (mut a, mut b) = (fresh_a.clone(), fresh_b.clone());
    let middle = steps(&mut a, start.clone(), 0..5);
    assert!(parameters(&steps(&mut b, start, 0..5)) == parameters(&middle));
    let mut from_a = handed_over(&a, fresh_b.clone());
    let mut from_b = handed_over(&b, fresh_a.clone());
    // A record that was loaded and not used yet is saved as it was.
    let mut twice = handed_over(&from_b, fresh_b);
    let end = parameters(&steps(&mut a, middle.clone(), 5..10));
    assert!(parameters(&steps(&mut b, middle.clone(), 5..10)) == end);
    assert!(parameters(&steps(&mut from_a, middle.clone(), 5..10)) == end);
    assert!(parameters(&steps(&mut from_b, middle.clone(), 5..10)) == end);
    assert!(parameters(&steps(&mut twice, middle, 5..10)) == end);
    assert_eq!(state(&from_a), state(&b));
    assert_eq!(state(&from_b), state(&a));
}

fn sgd(momentum: bool) -> SgdConfig {
    SgdConfig::new().with_momentum(momentum.then(MomentumConfig::new))
}

fn adam(amsgrad: bool) -> AdamConfig {
    AdamConfig::new().with_amsgrad(amsgrad)
}

#[test]
fn burns_optimizers() {
    let net = || Net::full(&flex());
    for flag in [false, true] {
        both_ways(sgd(flag).init(), FusedSgd::new(sgd(flag)).unwrap(), net());
        both_ways(
            adam(flag).init(),
            FusedAdam::new(adam(flag)).unwrap(),
            net(),
        );
    }
    let adam_w = AdamWConfig::new();
    both_ways(adam_w.init(), FusedAdamW::new(adam_w).unwrap(), net());
}

/// All parameters in half precision, some, or none.
#[test]
fn master_weights() {
    for keep in ["nothing", "hidden", ""] {
        let keep = [ParamGroup::from_predicate(keep)];
        let net = || to_half(Net::full(&flex()), FloatDType::F16, &keep);
        for flag in [false, true] {
            let (sgd, adam) = (sgd(flag), adam(flag));
            let masters = MasterWeights::new(sgd.build());
            both_ways_unwrapped(masters, FusedSgd::new(sgd).unwrap(), net());
            let masters = MasterWeights::new(adam.build());
            both_ways_unwrapped(masters, FusedAdam::new(adam).unwrap(), net());
        }
    }
}

/// Names of f32 parameters' states differ: Burn's here, and with `inner` there.
fn both_ways_unwrapped<C: Clone>(masters: MasterWeights, fused: Fused<C>, start: Net) {
    let (mut a, mut b) = (masters.clone(), fused.clone());
    let middle = steps(&mut a, start.clone(), 0..5);
    steps(&mut b, start, 0..5);
    let mut from_a = handed_over(&a, fused);
    let mut from_b = handed_over(&b, masters);
    assert_eq!(state(&from_a), state(&a));
    assert_eq!(state(&from_b), state(&b));
    let end = parameters(&steps(&mut a, middle.clone(), 5..10));
    assert!(parameters(&steps(&mut from_a, middle.clone(), 5..10)) == end);
    assert!(parameters(&steps(&mut from_b, middle.clone(), 5..10)) == end);
    steps(&mut b, middle, 5..10);
    assert_eq!(state(&from_a), state(&b));
    assert_eq!(state(&from_b), state(&a));
}

/// Nothing is rounded, and nothing said of `Device::default()`: unlike Burn's loader.
#[test]
fn f32_and_f64_in_one_model() {
    #[derive(Module, Debug)]
    struct Mixed {
        wide: Param<burn::tensor::Tensor<1>>,
        narrow: Param<burn::tensor::Tensor<1>>,
    }

    let values = |dtype| {
        let tensor = burn::tensor::Tensor::<1>::from_data([0.1f64, 1e-9], (&flex(), dtype));
        Param::from_tensor(tensor)
    };
    let mixed = Mixed {
        wide: values(DType::F64),
        narrow: values(DType::F32),
    };
    let step = |optim: &mut FusedAdam, mixed: &Mixed| {
        let loss = mixed.wide.val().cast(FloatDType::F32) * mixed.narrow.val();
        let grads = GradientsParams::from_grads(loss.sum().backward(), mixed);
        optim.step(0.01, mixed.clone(), grads)
    };
    let mut optim = FusedAdam::new(adam(true)).unwrap();
    let middle = step(&mut optim, &mixed);
    let mut loaded = handed_over(&optim, FusedAdam::new(adam(true)).unwrap());
    assert_eq!(state(&loaded), state(&optim));
    let expected = parameters(&step(&mut optim, &middle));
    assert!(parameters(&step(&mut loaded, &middle)) == expected);
    assert_eq!(state(&loaded), state(&optim));
}

/// Nothing has changed where a record is refused; the error says what does not fit.
fn refused<O: ModuleOptim>(mut optim: O, record: OptimizerRecord, part: &str) {
    let net = steps(&mut optim, Net::full(&flex()), 0..2);
    let before = state(&optim);
    let error = optim.load_record(record).unwrap_err();
    assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
    assert!(error.to_string().contains(part), "{error}");
    assert_eq!(state(&optim), before);
    steps(&mut optim, net, 2..3);
}

#[test]
fn the_state_of_other_optimizers_and_settings() {
    let record = |mut optim: ModuleOptimizer| {
        steps(&mut optim, Net::full(&flex()), 0..3);
        optim.to_record()
    };
    let fused_sgd = |momentum| FusedSgd::new(sgd(momentum)).unwrap();
    let fused_adam = |amsgrad| FusedAdam::new(adam(amsgrad)).unwrap();
    let sgd_state = |momentum| record(sgd(momentum).init());
    let adam_state = |amsgrad| record(adam(amsgrad).init());
    for (momentum, state, part) in [
        (false, adam_state(false), "moment_1` is unknown"),
        (true, adam_state(false), "moment_1` is unknown"),
        (false, sgd_state(true), "velocity` is unknown"),
        (true, sgd_state(false), "is unknown"),
    ] {
        refused(fused_sgd(momentum), state, part);
    }
    for (amsgrad, state, part) in [
        (false, sgd_state(true), "velocity` is unknown"),
        (false, sgd_state(false), "is unknown"),
        (true, adam_state(false), "is unknown"),
        (false, adam_state(true), "max_moment_2` is unknown"),
    ] {
        refused(fused_adam(amsgrad), state, part);
    }
    let groups = fused_adam(false);
    let groups = groups.with_group(ParamGroup::from_predicate("head"), adam(true));
    refused(groups.unwrap(), record(adam(false).init()), "is unknown");
    // And by Burn's, what is ours.
    let mut fused = fused_adam(true);
    steps(&mut fused, Net::full(&flex()), 0..3);
    refused(sgd(true).init(), fused.to_record().unwrap(), "is unknown");
}

/// A record, changed before it is loaded.
fn changed(change: impl Fn(&mut Vec<Tensor>)) -> OptimizerRecord {
    let mut optim = adam(false).init();
    steps(&mut optim, Net::full(&flex()), 0..3);
    let reader = Reader::from_bytes(optim.into_bytes().unwrap()).unwrap();
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let mut tensors = reader.into_tensors().unwrap();
    change(&mut tensors);
    let mut writer = Writer::new(tensors);
    for (name, value) in &scalars {
        writer = writer.with_scalar(name, *value);
    }
    for (name, value) in &metadata {
        writer = writer.with_metadata(name, value);
    }
    OptimizerRecord::from_bytes(writer.into_bytes().unwrap()).unwrap()
}

#[test]
fn damaged_states() {
    let fused = || FusedAdam::new(adam(false)).unwrap();
    refused(
        fused(),
        changed(|tensors| drop(tensors.remove(1))),
        "is unknown",
    );
    let other_shape = |tensor: &mut Tensor| {
        let bytes = Bytes::from_bytes_vec(vec![0; 4]);
        let shape = vec![1; tensor.shape.num_dims()];
        let (name, id) = (tensor.name.clone(), tensor.param_id);
        *tensor = Tensor::new(name, tensor.dtype, shape, id, bytes);
    };
    refused(
        fused(),
        changed(|tensors| other_shape(&mut tensors[0])),
        "is unknown",
    );
    let other_dtype = |tensor: &mut Tensor| {
        let bytes = Bytes::from_bytes_vec(tensor.to_bytes().unwrap().to_vec());
        let (name, id, shape) = (tensor.name.clone(), tensor.param_id, tensor.shape.clone());
        *tensor = Tensor::new(name, burn_pack::DType::I32, shape, id, bytes);
    };
    refused(
        fused(),
        changed(|tensors| other_dtype(&mut tensors[0])),
        "is unknown",
    );
    let mut whole = fused();
    whole.load_record(changed(|_| {})).unwrap();
    assert_eq!(state(&whole).tensors.len(), 12);
}
