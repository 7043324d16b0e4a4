//! Records of others are refused. That those of Burn's optimizers are read, and written, is in `follows`.

use super::steps;
use crate::support::*;

fn sgd(momentum: bool) -> SgdConfig {
    SgdConfig::new().with_momentum(momentum.then(MomentumConfig::new))
}

fn adam(amsgrad: bool) -> AdamConfig {
    AdamConfig::new().with_amsgrad(amsgrad)
}

/// Nothing has changed where a record is refused.
fn refused<O: ModuleOptim>(optim: O, record: OptimizerRecord) {
    let mut optim = trained(optim);
    let before = state(&optim);
    let error = optim.load_record(record).unwrap_err();
    is_error(&error, "ForeignRecord", ["is unknown"]);
    assert_eq!(state(&optim), before);
    trained(optim);
}

fn trained<O: ModuleOptim>(mut optim: O) -> O {
    steps(&mut optim, Net::new(&flex()), 0..3);
    optim
}

/// Nor is a state of the right optimizer read that lacks a tensor. Other damage is in `tests/records`.
#[test]
fn the_state_of_other_optimizers_and_settings() {
    let sgd_state = |momentum| trained(sgd(momentum).init()).to_record();
    let adam_state = |amsgrad| trained(adam(amsgrad).init()).to_record();
    for flag in [false, true] {
        refused(FusedSgd::new(sgd(flag)), adam_state(false));
        refused(FusedSgd::new(sgd(flag)), sgd_state(!flag));
        refused(FusedAdam::new(adam(false)), sgd_state(flag));
        refused(FusedAdam::new(adam(flag)), adam_state(!flag));
    }
    let mut damaged = state(&trained(adam(false).init()));
    damaged.tensors.pop_first();
    let damaged = OptimizerRecord::from_bytes(damaged.into_bytes()).unwrap();
    let fused = FusedAdam::new(adam(false));
    refused(fused.clone(), damaged);
    let head = ParamGroup::from_predicate("head");
    refused(fused.with_group(head, adam(true)), adam_state(false));
}
