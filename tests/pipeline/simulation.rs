//! The pipeline against one thread that does the same, bit for bit.

use crate::support::*;

fn precision() -> MixedPrecision {
    f16_under(growing(17).with_init_scale(65536.0))
}

/// Whether an overflow is injected: some alone, some in a row.
fn overflows(step: usize) -> bool {
    step % 97 == 13 || step % 411 == 14 || step % 1013 < 3
}

#[test]
fn hundreds_of_steps_with_overflows() {
    steps_with_overflows(800);
}

#[test]
#[ignore = "slow"]
fn sweep_thousands_of_steps_with_overflows() {
    steps_with_overflows(3000);
}

fn steps_with_overflows(steps: usize) {
    let (mut trial, mut simulation) = both(precision, adam);
    let mut injected = 0;
    for step in 0..steps {
        injected += u64::from(overflows(step));
        trial.lr = 1e-3 / (1 + step / 300) as f64;
        trial.step(step, overflows(step));
        simulation.step(trial.lr, step, overflows(step));
        assert_eq!(trial.state().1, simulation.state().1, "{step}");
        if step % 100 == 99 {
            assert!(trial.state() == simulation.state(), "{step}");
        }
        // Now and then both sides come together, as for a validation.
        if step % 700 == 699 {
            trial.synchronize();
            simulation.synchronize();
        }
    }
    trial.synchronize();
    simulation.synchronize();
    assert!(trial.state() == simulation.state());
    let counters = trial.optim.received_scaler().counters();
    assert_eq!(counters, simulation.optim.scaler().counters());
    assert!(counters.skipped() >= injected && injected as usize > steps / 75);
}
