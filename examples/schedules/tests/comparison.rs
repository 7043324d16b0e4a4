//! The comparison, short.

use std::sync::{Mutex, MutexGuard};

use burn::tensor::Device;
use burn_amp::adaptive::{Guard, SkipStep};
use schedules::{
    choices::{schedules, spikes},
    program::{GptProgram, Program},
    report,
    training::{Optimizer, Settings, recoveries, train, train_with_spikes},
};

/// The seed of a device is that of the whole process: one run at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

fn gpt(settings: Settings) -> impl Program {
    GptProgram::new(settings, &Device::flex())
}

#[test]
fn every_schedule_trains_as_f32_does() {
    let _alone = alone();
    let settings = Settings { steps: 6, seed: 0 };
    let program = gpt(settings);
    let runs: Vec<_> = schedules(4)
        .into_iter()
        .map(|choice| (choice.name, train(&program, &choice, settings).unwrap()))
        .collect();
    let full = runs[0].1.final_loss();
    for (name, run) in &runs {
        assert_eq!(run.losses.len(), 6);
        assert!((run.final_loss() - full).abs() < 0.2 * full, "{name}");
    }
    let table = report::schedules("gpt", &runs);
    assert_eq!(table.lines().count(), 1 + runs.len());
    // A run that is repeated is the same.
    let again = train(&program, &schedules(4)[4], settings).unwrap();
    assert_eq!(again.losses, runs[4].1.losses);
}

#[test]
fn spikes_are_planted() {
    let _alone = alone();
    let settings = Settings { steps: 12, seed: 0 };
    let program = gpt(settings);
    let guard = Guard::SkipStep(SkipStep {
        rolling_interval_length: 4,
        sigma_factor: 20.0,
    });
    let run = |guard, spikes: &[usize]| {
        train_with_spikes(&program, Optimizer::Descent, guard, spikes, settings).unwrap()
    };
    let (clean, spiked) = (run(None, &[]), run(None, &[8]));
    let guarded = run(Some(guard), &[8]);
    // What is 100 times too large may overflow: then it is skipped before a guard sees it.
    assert_eq!(clean.guarded, 0);
    assert!(guarded.guarded == 1 || guarded.skipped[8]);
    assert_eq!(clean.losses[..=8], spiked.losses[..=8]);
    assert!(spiked.losses[9] != clean.losses[9]);
    assert_eq!(guarded.losses[..=8], clean.losses[..=8]);
}

#[test]
fn a_recovery_is_where_the_loss_stays_low() {
    let clean = [1.0; 10];
    let mut losses = clean;
    assert_eq!(recoveries(&losses, &clean, &[1, 5]), [Some(0), Some(0)]);
    losses[3] = 2.0;
    losses[9] = 9.0;
    assert_eq!(recoveries(&losses, &clean, &[1, 5]), [Some(2), None]);
    losses[9] = f32::NAN;
    assert_eq!(recoveries(&losses, &clean, &[1, 5]), [Some(2), None]);
    assert_eq!(spikes(300), [150, 175, 200, 225, 250]);
}
