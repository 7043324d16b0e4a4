//! Rules of clipping that are added while steps are under way.

use burn_amp_tests::prelude::*;

use super::unheard::{Net, Run, Waited, config, event};

/// The steps under way were clipped by the rules of before.
#[test]
fn rules_may_be_added_in_a_run() {
    let adam = FusedAdam::new(AdamConfig::new()).unwrap();
    let net = Net::new(&Device::default().autodiff());
    let mut unheard = Run::of(&net, adam.clone(), config());
    let mut waited = Run::of(&net, Waited(adam.clone()), config());
    for threshold in [1.0, 0.01, 0.003] {
        let clip = GradientClip::GlobalNorm(threshold);
        unheard.optim = unheard.optim.with_clipping(clip).unwrap();
        waited.optim = waited.optim.with_clipping(clip).unwrap();
        for step in 0..20 {
            unheard.step(step, event(step)).unwrap();
            waited.step(step, event(step)).unwrap();
        }
    }
    assert_eq!(unheard.values(), waited.values());
    unheard.optim.synchronize().unwrap();
    let status = unheard.optim.scaler().last_status();
    assert_eq!(status, waited.optim.scaler().last_status());
}
