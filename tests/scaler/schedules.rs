//! Every schedule at work, as far as `iterations.rs` does not show it: what a scaler lets it see, with several optimizers and with accumulation too,
//! and what a record holds.

use burn_amp_tests::{prelude::*, trial::*};

fn config(schedule: Schedule) -> GradScalerConfig {
    GradScalerConfig::new().with_schedule(schedule)
}

/// A gradient of an activation that overflows at a lower scale than those of the parameters: no schedule sees it before.
#[test]
fn what_the_measures_do_not_show_costs_no_more_skips_than_with_pytorchs_rule() {
    let status = GradientStatus::default().with_max_abs(1e-3);
    let status = status.with_values(1000, 0);
    let skips = |schedule| {
        let config = config(schedule).with_growth_interval(100);
        let mut scale = config.schedule().unwrap();
        let overflows = (0..3000).filter(|_| {
            let overflows = scale.scale() > 512.0;
            scale = scale.clone().adjust(evidence(overflows, Some(&status)));
            overflows
        });
        overflows.count()
    };
    let (plain, adaptive) = (Schedule::GrowthInterval, Schedule::adaptive_interval());
    let all = [plain, adaptive, Schedule::log_max(), Schedule::near_top()].map(skips);
    let [torch, adaptive, log_max, near_top] = all;
    assert!(log_max <= torch && near_top <= torch, "{all:?}");
    // It tries less often.
    assert!(torch > 30 && adaptive < torch / 2, "{all:?}");
}

/// The largest magnitude of an iteration is that of all its optimizers, and so are its counts.
#[test]
fn an_iteration_shows_the_gradients_of_all_optimizers() {
    let share = |share: f64| -> Schedule {
        serde_json::from_value(json!({"NearTop": {"share": share, "period": 1}})).unwrap()
    };
    let log_max = Schedule::log_max();
    for (schedule, values, iterations, scale) in [
        // The highest scale at which the largest magnitude is finite.
        (log_max, [8.0, 0.25], 50, 4096.0),
        (log_max, [0.25, 8.0], 50, 4096.0),
        (log_max, [1.5 * 2f64.powi(-20), 1e-9], 50, 2f32.powi(35)),
        (log_max, [1.5 * 2f64.powi(4), 1e-9], 50, 2048.0),
        // One of two optimizers is near the top.
        (share(0.45), [0.25, 1e-9], 1, 32768.0),
        (share(0.55), [0.25, 1e-9], 1, 131072.0),
    ] {
        let (mut run, mut other) = (ByHand::new(config(schedule)), SgdConfig::new().init());
        for _ in 0..iterations {
            run.step([values[0]; 10]).unwrap();
            let grads = run.unscaled([values[1]; 10]);
            run.scaler.step(&mut other, 0.1, run.model.clone(), grads);
            run.scaler.update().unwrap();
        }
        assert_eq!(run.scale(), scale, "{schedule:?}, {values:?}");
        assert_eq!(run.counters().skipped(), 0);
    }
}

#[test]
fn a_window_shows_its_mean_and_a_tested_micro_batch_itself() {
    for (tested, moves, last) in [(false, 2, 4096.0), (true, 6, 131072.0)] {
        let optim = sgd_under(config(Schedule::log_max()).with_init_scale(1024.0));
        let mut run = Trial::new(optim.with_accumulation(windows(4, tested)));
        let scales = [(); 8].map(|()| {
            run.step([0.25; 10]);
            run.scale()
        });
        let found = scales.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!((found, scales[7]), (moves, last), "{scales:?}");
    }
}

/// What is changed after the test says nothing of the loss scale.
#[test]
fn changed_gradients_do_not_move_the_scale() {
    let mut run = ByHand::new(config(Schedule::log_max()));
    let grads = run.unscaled([0.25; 10]).mul_scalar(1e6);
    let grads = grads.clip(&GradientClip::GlobalNorm(1e9)).unwrap();
    assert_eq!(grads.status().max_abs(), 250000.0);
    run.take(grads).unwrap();
    run.scaler.update().unwrap();
    assert_eq!(run.scale(), 131072.0);
}

/// An overflow leaves the ceiling where the scale stays, and not at a scale that cannot be applied.
#[test]
fn a_scale_at_the_end_of_f32_rises_again() {
    let lowest = 2f64.powi(-128);
    let config = config(Schedule::log_max()).with_init_scale(lowest);
    let config = config.with_backoff_factor(1e-10).with_growth_interval(1);
    let mut scale = config.schedule().unwrap();
    let small = GradientStatus::default().with_max_abs(1.0);
    for (overflow, expected) in [(true, lowest), (false, 2.0 * lowest), (false, 4.0 * lowest)] {
        scale = scale.adjust(evidence(overflow, Some(&small)));
        assert_eq!(f64::from(scale.scale()), expected);
    }
}

/// A schedule, a place in its stored state, what a forger puts there, and what the refusal says.
const FORGED: &str = r#"
NearTop > /state > "GrowthInterval" > `state`
NearTop > /ceiling > -1.0 > `ceiling` is -1
NearTop > /warmup_step > 6 > at most `warmup_steps`, 5
AdaptiveInterval > /interval > 0 > `interval` is 0
LogMax > /state/LogMax/mean_start > 2.0 > `state`
LogMax > /state/LogMax/more > 1 > `state`
LogMax > /scale > "NaN" > `scale` is NaN
LogMax > /scale > null > must be a number
"#;

/// What no run can have left is refused, and names what is wrong.
#[test]
fn a_forged_state_is_refused() {
    let start = |schedule: &str| {
        let schedule = serde_json::from_value(json!({schedule: {}})).unwrap();
        let config = config(schedule).with_warmup_steps(5);
        serde_json::to_value(config.schedule().unwrap()).unwrap()
    };
    let of_log_max = format!("NearTop > /state > {} > `state`", start("LogMax")["state"]);
    for [schedule, path, value, part] in rows(FORGED).chain(rows(&of_log_max)) {
        let mut state = start(schedule);
        let (parent, name) = path.rsplit_once('/').unwrap();
        state.pointer_mut(parent).unwrap()[name] = serde_json::from_str(value).unwrap();
        let error = serde_json::from_value::<LossScale>(state).unwrap_err();
        says(&error, [part]);
    }
}
