//! Every schedule at work: what a scaler lets it see, with several optimizers and with accumulation too, and what a record holds.

use super::support::*;

fn config(schedule: Schedule) -> GradScalerConfig {
    GradScalerConfig::new().with_schedule(schedule)
}

fn ours() -> [Schedule; 4] {
    [
        Schedule::GrowthInterval,
        Schedule::adaptive_interval(),
        Schedule::log_max(),
        Schedule::near_top(),
    ]
}

/// A step of another network, with gradients of `value`.
fn step(scaler: &mut GradScaler, value: f64) {
    let model = Model::new();
    let scale = f64::from(scaler.loss_scale());
    let grads = unscaled(scaler, model.gradients(|_| value * scale), &model);
    scaler.step(&mut SgdConfig::new().init(), 0.1, model, grads);
}

fn resumed(config: GradScalerConfig, scaler: &GradScaler) -> GradScaler {
    let bytes = scaler.to_record().into_bytes().unwrap();
    let mut resumed = config.init().unwrap();
    let record = AmpRecord::from_bytes(bytes).unwrap();
    resumed.load_record(record).unwrap();
    resumed
}

impl Trial {
    /// An iteration with such gradients; the next scale.
    fn show(&mut self, value: f64) -> f32 {
        let scaled = value * f64::from(self.scale());
        self.iterate_with(self.model.gradients(|_| scaled));
        self.scale()
    }
}

#[test]
fn an_overflow_backs_off_under_every_schedule() {
    for schedule in ours() {
        let mut run = Trial::new(config(schedule));
        let before = (0..30).map(|_| run.show(0.25)).last().unwrap();
        assert_eq!(run.show(f64::INFINITY), before / 2.0, "{schedule:?}");
        assert_eq!(run.show(f64::NAN), before / 4.0, "{schedule:?}");
        // And not because of what was measured: the next finite step does not go back at once.
        assert!(run.show(0.25) <= before / 4.0, "{schedule:?}");
    }
}

/// Between the edge, an eighth of the top, and twice the edge.
#[test]
fn near_top_stays_where_values_meet_the_edge() {
    let mut run = Trial::new(config(Schedule::near_top()));
    let value = 1.5 * 2f64.powi(-10);
    let scales: Vec<f32> = (0..40).map(|_| run.show(value)).collect();
    for pair in scales[20..].windows(2) {
        let largest = value * f64::from(pair[0]);
        assert!((4094.0..=16376.0).contains(&largest), "{largest}");
        assert!(pair[1] == pair[0] * 2.0 || pair[1] == pair[0] / 2.0);
    }
}

/// A gradient of an activation that overflows at a lower scale than those of the parameters: no schedule sees it before.
#[test]
fn what_the_measures_do_not_show_costs_no_more_skips_than_with_pytorchs_rule() {
    let status = GradientStatus::default()
        .with_max_abs(1e-3)
        .with_values(1000, 0);
    let skips = |schedule| {
        let config = config(schedule).with_growth_interval(100);
        let mut scale = config.schedule().unwrap();
        let mut skips = 0;
        for _ in 0..3000 {
            let outcome = match scale.scale() > 512.0 {
                true => StepOutcome::Skipped,
                false => StepOutcome::Stepped,
            };
            skips += u32::from(outcome.is_skipped());
            scale = scale.adjust((outcome, &status));
        }
        skips
    };
    let torch = skips(Schedule::GrowthInterval);
    assert!(torch > 30, "{torch}");
    for schedule in ours() {
        let found = skips(schedule);
        assert!(found <= torch, "{schedule:?}: {found}");
    }
    // It learns to try less often.
    assert!(skips(Schedule::adaptive_interval()) < torch / 2);
}

/// The largest magnitude of an iteration is that of all its optimizers, and so are its counts.
#[test]
fn an_iteration_shows_the_gradients_of_all_optimizers() {
    let share = |share| Schedule::NearTop {
        edge: 0.125,
        share,
        period: 1,
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
        let mut scaler = config(schedule).init().unwrap();
        for _ in 0..iterations {
            for value in values {
                step(&mut scaler, value);
            }
            scaler.update().unwrap();
        }
        assert_eq!(scaler.loss_scale(), scale, "{schedule:?}, {values:?}");
        assert_eq!(scaler.counters().skipped(), 0);
    }
}

#[test]
fn a_window_shows_its_mean_and_a_tested_micro_batch_itself() {
    for (tested, moves, last) in [(false, 2, 4096.0), (true, 6, 131072.0)] {
        let accumulation = AccumulationConfig::new(4).with_skip_micro_batch(tested);
        let optim = sgd_under(config(Schedule::log_max()).with_init_scale(1024.0));
        let mut optim = optim.with_accumulation(accumulation);
        let mut model = Model::new();
        let scales = [(); 8].map(|()| {
            let scaled = 0.25 * f64::from(optim.scaler().loss_scale());
            let grads = scaled_by_hand(optim.scaler(), model.gradients(|_| scaled));
            model = optim.step(1e-6, model.clone(), grads);
            optim.scaler().loss_scale()
        });
        let found = scales.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!((found, scales[7]), (moves, last), "{scales:?}");
    }
}

/// What is changed after the test says nothing of the loss scale.
#[test]
fn changed_gradients_do_not_move_the_scale() {
    let mut scaler = config(Schedule::log_max()).init().unwrap();
    let (model, mut optim) = (Model::new(), SgdConfig::new().init());
    let grads = unscaled(&scaler, model.gradients(|_| 16384.0), &model);
    let clip = GradientClip::GlobalNorm(1e9);
    let grads = grads.mul_scalar(1e6).clip(&clip).unwrap();
    assert_eq!(grads.status().max_abs(), 250000.0);
    scaler.step(&mut optim, 0.1, model, grads);
    scaler.update().unwrap();
    assert_eq!(scaler.loss_scale(), 131072.0);
}

#[test]
fn a_scale_that_is_set_by_hand_is_where_a_schedule_goes_on() {
    for schedule in ours() {
        let mut run = Trial::new(config(schedule));
        run.show(f64::INFINITY);
        run.scaler.set_loss_scale(2f64.powi(17)).unwrap();
        assert_eq!(run.scale(), 131072.0);
        assert!(run.show(1e-6) >= 131072.0, "{schedule:?}");
    }
}

#[test]
fn a_warm_up_holds_every_schedule_down() {
    for schedule in ours() {
        let config = config(schedule).with_warmup_steps(12).with_warmup_levels(3);
        let mut run = Trial::new(config.with_init_scale(65536.0));
        assert_eq!(run.scale(), 1024.0);
        let scales: Vec<f32> = (0..12).map(|_| run.show(1e-9)).collect();
        let caps = [1024.0, 2048.0, 4096.0].map(|cap| [cap; 4]).concat();
        assert_eq!(scales[..11], caps[1..], "{schedule:?}");
        assert!(scales[11] > 4096.0, "{schedule:?}");
        // An overflow in it is one of what was used.
        let mut run = Trial::new(config);
        run.show(1e-9);
        assert_eq!(run.show(f64::INFINITY), 512.0, "{schedule:?}");
    }
}

fn stored(schedule: &LossScale) -> serde_json::Value {
    serde_json::to_value(schedule).unwrap()
}

/// An iteration whose step was taken or skipped, and which was not ended, goes on with what its gradients have shown.
#[test]
fn a_record_between_step_and_update_has_what_was_seen() {
    for (schedule, value) in ours()
        .into_iter()
        .flat_map(|s| [(s, 0.01), (s, f64::INFINITY)])
    {
        let mut scaler = config(schedule).init().unwrap();
        step(&mut scaler, value);
        let mut resumed = resumed(config(schedule), &scaler);
        let outcome = Some(outcome(value.is_infinite()));
        assert_eq!(
            [scaler.update().unwrap(), resumed.update().unwrap()],
            [outcome; 2]
        );
        assert_eq!(resumed.schedule(), scaler.schedule(), "{schedule:?}");
        assert_eq!(resumed.bits(), scaler.bits());
    }
}

fn openseq2seq() -> Schedule {
    serde_json::from_str(r#"{"OpenSeq2SeqLogMax": {}}"#).unwrap()
}

/// OpenSeq2Seq's own rule makes a scale NaN or infinite: a scaler keeps the last one that it can use, in a warm-up too, and goes
/// on from a record with it.
#[test]
fn a_scaler_uses_no_scale_that_is_nan_or_infinite() {
    // A gradient of zero, and one so small that its scale is beyond f32.
    for (max, value) in [(Some(256.0), 0.0), (None, 0.0), (None, 1e-36)] {
        let config = config(openseq2seq())
            .with_init_scale(1.0)
            .with_max_scale(max);
        let config = config.with_warmup_steps(6);
        let mut run = Trial::new(config);
        run.show(0.25);
        for step in 0..12 {
            let scale = run.show(value);
            let highest = max.map_or(f32::MAX, |max| max as f32);
            assert!(scale <= highest, "{max:?}, {value}, step {step}: {scale}");
        }
        let resumed = resumed(config, &run.scaler);
        assert_eq!(stored(&resumed.schedule()), stored(&run.scaler.schedule()));
        // It moves on by what comes then.
        let stuck = run.scale();
        let moved = (0..12).map(|_| run.show(16.0)).last().unwrap();
        assert_ne!(moved, stuck, "{max:?}, {value}");
    }
}

/// What OpenSeq2Seq's rule can reach is stored as it is: NaN, infinity, and in a warm-up NaN is no cap.
#[test]
fn a_scale_that_is_nan_or_infinite_is_stored_as_what_it_is() {
    let config = config(openseq2seq()).with_init_scale(1.0);
    let warming = config.with_max_scale(Some(256.0)).with_warmup_steps(6);
    for (config, max_abs, expected) in [
        (config, 0.0, "NaN"),
        (config, 1e-38, "inf"),
        (warming, 0.0, "NaN"),
    ] {
        let status = GradientStatus::default().with_max_abs(max_abs);
        let scale = config.schedule().unwrap();
        let scale = scale.adjust((StepOutcome::Stepped, &status));
        let text = serde_json::to_string(&scale).unwrap();
        let again: LossScale = serde_json::from_str(&text).unwrap();
        for scale in [scale, again.clone()] {
            assert_eq!(scale.scale().to_string(), expected, "{scale:?}");
        }
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
    }
}

/// Under other parameters a schedule goes on with what it has learned.
#[test]
fn a_record_of_other_parameters_goes_on() {
    let mut run = Trial::new(config(Schedule::log_max()).with_init_scale(64.0));
    for _ in 0..3 {
        run.show(0.25);
    }
    let other = Schedule::LogMax {
        beta1: 0.9,
        beta2: 0.999,
        overflow_std_dev: 3.09,
    };
    let mut scaler = config(other).init().unwrap();
    scaler.load_record(run.scaler.to_record()).unwrap();
    let schedules = [scaler.schedule(), run.scaler.schedule()];
    let [after, before] = schedules.map(|schedule| stored(&schedule)["state"].clone());
    assert_eq!(after, before);
}

/// What no run can have left is refused, and names what is wrong.
#[test]
fn a_forged_state_is_refused() {
    let start = |schedule| stored(&config(schedule).with_warmup_steps(5).schedule().unwrap());
    let near_top = start(Schedule::near_top());
    let log_max = start(Schedule::log_max());
    let adaptive = start(Schedule::adaptive_interval());
    let null = serde_json::Value::Null;
    let interval = "/state/AdaptiveInterval/interval";
    for (state, path, value, part) in [
        (&near_top, "/state", "GrowthInterval".into(), "`state`"),
        (&near_top, "/state", log_max["state"].clone(), "`state`"),
        (&near_top, "/ceiling", (-1.0).into(), "`ceiling` is -1"),
        (
            &near_top,
            "/warmup_step",
            6.into(),
            "at most `warmup_steps`, 5",
        ),
        (&adaptive, interval, 0.into(), "`state`"),
        (&log_max, "/state/LogMax/mean_start", 2.0.into(), "`state`"),
        (&log_max, "/state/LogMax/more", 1.into(), "`state`"),
        (&log_max, "/scale", null, "`scale` is NaN"),
    ] {
        let mut state = state.clone();
        let (parent, name) = path.rsplit_once('/').unwrap();
        state.pointer_mut(parent).unwrap()[name] = value;
        let error = serde_json::from_value::<LossScale>(state).unwrap_err();
        says(&error, [part]);
    }
}
