//! The pipeline against one thread that does the same, bit for bit.

use burn_amp_tests::prelude::*;

use crate::support::{both, gradients, parameters};

fn precision() -> MixedPrecision {
    let config = GradScalerConfig::new()
        .with_growth_interval(17)
        .with_init_scale(65536.0);
    MixedPrecision::f16().with_scaler(config).unwrap()
}

fn adam(amp: &MixedPrecision) -> ScaledOptimizer<ModuleOptimizer> {
    ScaledOptimizer::new(AdamConfig::new().init(), amp)
}

/// Whether an overflow is injected: some alone, some in a row.
fn overflows(step: usize) -> bool {
    step % 97 == 13 || step % 411 == 14 || step % 1013 < 3
}

#[test]
fn thousands_of_steps_with_overflows() {
    let ((amp, mut optim, mut net), (amp_here, mut simulation, mut expected)) =
        both(precision, adam);
    let mut injected = 0;
    for step in 0..3000 {
        injected += u64::from(overflows(step));
        let lr = 1e-3 / (1 + step / 1000) as f64;
        let grads = gradients(&amp, &net, step, overflows(step));
        net = optim.step(lr, net, grads);

        let grads = gradients(&amp_here, &expected, step, overflows(step));
        expected = simulation.step(lr, expected, grads);
        assert_eq!(amp.loss_scale(), amp_here.loss_scale(), "{step}");
        if step % 100 == 99 {
            assert!(parameters(&net) == parameters(&expected), "{step}");
        }
        // Now and then both sides come together, as for a validation.
        if step % 700 == 699 {
            net = optim.synchronize(net).unwrap();
            expected = simulation.synchronize(expected);
        }
    }
    net = optim.synchronize(net).unwrap();
    expected = simulation.synchronize(expected);
    assert!(parameters(&net) == parameters(&expected));
    let counters = optim.scaler(false).counters();
    assert_eq!(counters, simulation.optim().scaler().counters());
    assert!(counters.skipped() >= injected && injected > 40);
}

/// On the thread, where parameters are those of the host.
#[test]
fn a_fused_optimizer() {
    let fused = |amp: &MixedPrecision| {
        ScaledOptimizer::new(FusedAdam::new(AdamConfig::new()).unwrap(), amp)
    };
    let ((amp, mut optim, mut net), _) = both(precision, fused);
    let ((amp_here, mut burns, mut expected), _) = both(precision, adam);
    for step in 0..200 {
        let grads = gradients(&amp, &net, step, overflows(step));
        net = optim.step(1e-2, net, grads);
        let grads = gradients(&amp_here, &expected, step, overflows(step));
        expected = burns.step(1e-2, expected, grads);
    }
    net = optim.synchronize(net).unwrap();
    expected = burns.synchronize(expected).unwrap();
    assert!(parameters(&net) == parameters(&expected));
}

/// With a wait after each step nothing is stale.
#[test]
fn synchronous_steps_are_those_without_a_pipeline() {
    for by_option in [false, true] {
        let ((amp, optim, mut net), _) = both(precision, adam);
        let mut optim = optim.with_synchronous(by_option);
        let amp_here = precision();
        let mut plain = adam(&amp_here);
        let mut expected = crate::support::Net::new(&amp_here);
        for step in 0..300 {
            let grads = gradients(&amp, &net, step, overflows(step));
            net = optim.step(1e-2, net, grads);
            if !by_option {
                net = optim.synchronize(net).unwrap();
            }
            let grads = gradients(&amp_here, &expected, step, overflows(step));
            expected = plain.step(1e-2, expected, grads);
            assert_eq!(amp.loss_scale(), amp_here.loss_scale(), "{step}");
            assert!(parameters(&net) == parameters(&expected), "{step}");
        }
        let counters = optim.scaler(false).counters();
        assert_eq!(counters, plain.scaler().counters());
        assert!(counters.skipped() > 3 && counters.stepped() > 200);
    }
}
