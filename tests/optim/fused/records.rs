//! Records are Burn's, in both directions, through files and in the middle of a run; others are refused.

use super::{by_hand, run::adam as plain_adam};
use crate::support::*;

/// Saves one optimizer and loads the file into another, each with a scaler around it.
pub fn handed_over<A: ModuleOptim + Clone, B: ModuleOptim>(from: &A, to: B) -> B {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("optim.bpk");
    let mut from = ScaledOptimizer::new(from.clone(), scaler());
    from.save(&path).unwrap();
    let mut to = ScaledOptimizer::new(to, scaler());
    to.load(&path).unwrap();
    to.into_inner()
}

/// Both go on from the other's file, and the first from its own, as they go on themselves. Of f32 parameters' states the names may differ: Burn's in ours, and with
/// `inner` in those of `MasterWeights`. A step writes the optimizer's own.
fn both_ways<A, B>(fresh_a: A, fresh_b: B, start: Net)
where
    A: ModuleOptim + Clone,
    B: ModuleOptim + Clone,
{
    let (mut a, mut b) = (fresh_a.clone(), fresh_b.clone());
    let middle = steps(&mut a, 0.003, start.clone(), 0..5, by_hand);
    assert!(parameters(&steps(&mut b, 0.003, start, 0..5, by_hand)) == parameters(&middle));
    let from_a = handed_over(&a, fresh_b.clone());
    let from_b = handed_over(&b, fresh_a.clone());
    let resumed = handed_over(&a, fresh_a);
    // A record that was loaded and not used yet is saved as it was.
    assert_eq!([state(&from_a), state(&resumed)], [state(&a), state(&a)]);
    assert_eq!(state(&from_b), state(&b));
    let twice = handed_over(&from_b, fresh_b);

    fn end<O: ModuleOptim>(mut optim: O, middle: &Net) -> (Vec<(DType, Vec<u8>)>, Pack) {
        let net = steps(&mut optim, 0.003, middle.clone(), 5..10, by_hand);
        (parameters(&net), state(&optim))
    }
    let ([a, b], middle) = ([end(a, &middle), end(b, &middle)], &middle);
    assert!(a.0 == b.0);
    assert!([end(resumed, middle), end(from_b, middle)] == [a.clone(), a]);
    assert!([end(from_a, middle), end(twice, middle)] == [b.clone(), b]);
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
        let (sgd, adam) = (sgd(flag), adam(flag));
        both_ways(sgd.init(), FusedSgd::new(sgd), net());
        both_ways(adam.init(), FusedAdam::new(adam), net());
    }
    let adam_w = AdamWConfig::new();
    both_ways(adam_w.init(), FusedAdamW::new(adam_w), net());
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
            both_ways(masters, FusedSgd::new(sgd), net());
            let masters = MasterWeights::new(adam.build());
            both_ways(masters, FusedAdam::new(adam), net());
        }
    }
}

/// Nothing has changed where a record is refused; the error says what does not fit.
fn refused<O: ModuleOptim>(mut optim: O, record: OptimizerRecord, part: &str) {
    let net = steps(&mut optim, 0.003, Net::full(&flex()), 0..2, by_hand);
    let before = state(&optim);
    let error = optim.load_record(record).unwrap_err();
    is_error(&error, "ForeignRecord", [part]);
    assert_eq!(state(&optim), before);
    steps(&mut optim, 0.003, net, 2..3, by_hand);
}

#[test]
fn the_state_of_other_optimizers_and_settings() {
    let record = |mut optim: ModuleOptimizer| {
        steps(&mut optim, 0.003, Net::full(&flex()), 0..3, by_hand);
        optim.to_record()
    };
    let sgd_state = |momentum| record(sgd(momentum).init());
    let adam_state = |amsgrad| record(adam(amsgrad).init());
    for (momentum, state, part) in [
        (false, adam_state(false), "moment_1` is unknown"),
        (true, adam_state(false), "moment_1` is unknown"),
        (false, sgd_state(true), "velocity` is unknown"),
        (true, sgd_state(false), "is unknown"),
    ] {
        refused(FusedSgd::new(sgd(momentum)), state, part);
    }
    let fused_adam = |amsgrad| FusedAdam::new(adam(amsgrad));
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
    refused(groups, record(adam(false).init()), "is unknown");
    // And by Burn's, what is ours.
    let mut fused = fused_adam(true);
    steps(&mut fused, 0.003, Net::full(&flex()), 0..3, by_hand);
    refused(sgd(true).init(), fused.to_record().unwrap(), "is unknown");
}

#[test]
fn damaged_states() {
    let mut optim = adam(false).init();
    steps(&mut optim, 0.003, Net::full(&flex()), 0..3, by_hand);
    let changed = |change: fn(&mut Pack, String)| {
        let mut contents = state(&optim);
        let first = contents.tensors.keys().next().unwrap().clone();
        change(&mut contents, first);
        OptimizerRecord::from_bytes(contents.into_bytes()).unwrap()
    };
    let changes: [fn(&mut Pack, String); 3] = [
        |contents, name| drop(contents.tensors.remove(&name)),
        |contents, name| {
            let (_, (dtype, shape, bytes)) = contents.tensors.get_mut(&name).unwrap();
            *shape = vec![1; shape.len()];
            bytes.truncate(dtype.size());
        },
        |contents, name| contents.tensors.get_mut(&name).unwrap().1.0 = DType::I32,
    ];
    for change in changes {
        refused(plain_adam(), changed(change), "is unknown");
    }
    let mut whole = plain_adam();
    whole.load_record(changed(|_, _| ())).unwrap();
    assert_eq!(state(&whole).tensors.len(), 12);
}
