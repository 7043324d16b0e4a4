//! Records of others are refused. That those of Burn's optimizers are read, and written, is in `follows`.

use super::{adam as plain_adam, by_hand};
use crate::support::*;

fn sgd(momentum: bool) -> SgdConfig {
    SgdConfig::new().with_momentum(momentum.then(MomentumConfig::new))
}

fn adam(amsgrad: bool) -> AdamConfig {
    AdamConfig::new().with_amsgrad(amsgrad)
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

fn trained<O: ModuleOptim>(mut optim: O) -> O {
    steps(&mut optim, 0.003, Net::full(&flex()), 0..3, by_hand);
    optim
}

#[test]
fn the_state_of_other_optimizers_and_settings() {
    let sgd_state = |momentum| trained(sgd(momentum).init()).to_record();
    let adam_state = |amsgrad| trained(adam(amsgrad).init()).to_record();
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
    let head = ParamGroup::from_predicate("head");
    let groups = fused_adam(false).with_group(head, adam(true));
    refused(groups, adam_state(false), "is unknown");
    // And by Burn's, what is ours.
    let ours = trained(fused_adam(true)).to_record().unwrap();
    refused(sgd(true).init(), ours, "is unknown");
}

#[test]
fn damaged_states() {
    let whole = state(&trained(AdamConfig::new().init()));
    let changed = |change: fn(&mut Pack, String)| {
        let mut contents = whole.clone();
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
    let mut fused = plain_adam();
    fused.load_record(changed(|_, _| ())).unwrap();
    assert_eq!(state(&fused), whole);
}
