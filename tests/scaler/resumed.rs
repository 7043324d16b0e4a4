//! A run goes on from a record, with other settings or into a scaler that was used: the state is the record's, the settings are
//! the program's.

use burn_amp_tests::{prelude::*, trial::*};

/// What was saved: nothing at its default, two finite steps after one overflow of three that are tolerated.
fn stored() -> GradScalerConfig {
    let config = at_scale(1024.0).with_growth_interval(7);
    let config = config.with_min_scale(Some(2.0)).with_hysteresis(3);
    let config = config.with_max_scale(Some(4096.0));
    config.with_max_consecutive_skips(Some(9))
}

/// After steps that overflow (x) or not.
fn trained(config: GradScalerConfig, steps: &str) -> Trial {
    let mut run = Trial::new(sgd_under(config));
    for step in steps.chars() {
        run.step(values_that(step == 'x'));
    }
    run
}

fn saved() -> AmpRecord {
    trained(stored(), "x..").optim.to_record()
}

/// Loaded into a scaler alone, and into optimizers of both kinds.
fn each(config: GradScalerConfig, record: &AmpRecord) -> [GradScaler; 3] {
    let amp = f16_under(config);
    let at_border = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let [own, at_border] = [sgd_under(config), at_border].map(|mut optim| {
        optim.load_record(record.clone()).unwrap();
        GradScaler::from(optim.scaler().clone())
    });
    assert_eq!(amp.loss_scale(), at_border.loss_scale());
    let mut scaler = GradScaler::new(config).unwrap();
    scaler.load_record(record.clone()).unwrap();
    [scaler, own, at_border]
}

/// What is warned of when a record is loaded into a scaler with these settings.
fn warned(config: GradScalerConfig, record: &AmpRecord) -> Vec<String> {
    let mut scaler = GradScaler::new(config).unwrap();
    let load = || scaler.load_record(record.clone()).unwrap();
    captured(Level::Warn, load)
}

#[test]
fn the_settings_are_the_programs() {
    let edited = GradScalerConfig::new().with_growth_interval(500);
    let edited = edited.with_backoff_factor(0.25).with_hysteresis(2);
    let edited = edited.with_max_consecutive_skips(Some(20));
    for scaler in each(edited, &saved()) {
        assert_eq!(scaler.config(), edited);
        let (schedule, counters) = (scaler.schedule(), scaler.counters());
        assert_eq!((schedule.scale(), schedule.growth_tracker()), (1024.0, 2));
        // One of the tolerated overflows is used up, as it was.
        assert_eq!(schedule.hysteresis_tracker(), 1);
        assert_eq!((counters.steps(), counters.skipped()), (3, 1));
    }
    let record = trained(stored(), "xx..").optim.to_record();
    for scaler in each(edited.with_hysteresis(5), &record) {
        assert_eq!(scaler.schedule().hysteresis_tracker(), 3);
    }
    // The state counts as the new settings have it.
    let mut run = trained(edited, "");
    run.optim.load_record(saved()).unwrap();
    run.step(BAD);
    assert_eq!(run.scale(), 256.0);
}

/// The scale that an overflow has backed off to is a ceiling for rules that look at gradients. It is a memory of their own rule.
#[test]
fn a_ceiling_goes_on_with_its_rule() {
    let small = norm(1e-6);
    let under = |schedule| at_scale(1024.0).with_schedule(schedule);
    let mut run = trained(under(Schedule::log_max()), "");
    run.step(BAD);
    let record = run.optim.to_record();
    (0..9).for_each(|_| run.step(small));
    for (schedule, expected) in [
        (Schedule::log_max(), run.scale()),
        (Schedule::near_top(), 512.0 * 512.0),
    ] {
        let mut resumed = trained(under(schedule), "");
        resumed.optim.load_record(record.clone()).unwrap();
        (0..9).for_each(|_| resumed.step(small));
        assert_eq!(resumed.scale(), expected);
    }
}

#[test]
fn each_difference_is_named() {
    assert_eq!(warned(stored(), &saved()), [""; 0]);
    // Nobody takes that from a record.
    let messages = warned(stored().with_enabled(false), &saved());
    let message = only(&messages);
    says(
        message,
        ["are used: `enabled` is false here and true there."],
    );
    assert!(!message.contains("with_settings"), "{message}");
    let edited = stored().with_growth_interval(500).with_max_scale(None);
    let edited = edited.with_max_consecutive_skips(Some(10));
    let messages = warned(edited, &saved());
    let message = only(&messages);
    let parts = [
        "`growth_interval` is 500 here and 7 there",
        "`max_scale` is none here and 4096.0 there",
        "`max_consecutive_skips` is 10 here and 9 there",
        "`AmpRecord::with_settings`",
    ];
    says(message, parts);
    for part in ["init_scale", "hysteresis", "min_scale", "factor"] {
        assert!(!message.contains(part), "{message} has {part}");
    }
}

#[test]
fn one_call_takes_the_settings_of_the_record() {
    let (config, record) = (GradScalerConfig::new(), saved().with_settings());
    no_warning(|| {
        for scaler in each(config, &record) {
            assert_eq!(scaler.config(), stored());
            assert_eq!(scaler.schedule(), *saved().schedule().unwrap());
        }
    });
    // Through a file too. Whether there is scaling at all is the program's.
    let mut disabled = GradScaler::new(config.with_enabled(false)).unwrap();
    let record = AmpRecord::from_bytes(saved().into_bytes().unwrap()).unwrap();
    disabled.load_record(record.with_settings()).unwrap();
    assert_eq!(disabled.config(), stored().with_enabled(false));
}

/// The scale of the record is moved into the bounds of the program. A static scale is a setting, and a dynamic one a state.
#[test]
fn bounds_and_a_static_scale_are_the_programs() {
    let new = GradScalerConfig::new;
    let low = new().with_init_scale(256.0).with_max_scale(Some(512.0));
    let fixed = |scale| at_scale(scale).with_dynamic(false);
    let of_fixed = trained(fixed(32.0), ".").optim.to_record();
    // One that the program itself has set, since it was built.
    let mut moved = sgd_under(fixed(32.0));
    moved.scaler_mut().set_loss_scale(16.0).unwrap();
    for (config, record, expected) in [
        (low, &saved(), 512.0),
        (new().with_min_scale(Some(2048.0)), &saved(), 2048.0),
        (fixed(8.0), &saved(), 8.0),
        (fixed(8.0), &of_fixed, 8.0),
        (new(), &of_fixed, 32.0),
        (fixed(32.0), &moved.to_record(), 16.0),
    ] {
        for scaler in each(config, record) {
            assert_eq!((scaler.loss_scale(), scaler.config()), (expected, config));
        }
    }
}

/// A run in f32 has no scale to go on from, nor one in bf16; and they take none.
#[test]
fn a_run_that_scaled_nothing_leaves_no_scale() {
    let record = |amp: &MixedPrecision| {
        let mut run = Trial::at_border(amp);
        run.take(run.model.plain(ONES));
        run.optim.to_record()
    };
    let [f32, bf16] = [MixedPrecision::f32(), MixedPrecision::bf16()];
    let off = GradScaler::new(at_scale(8.0).with_enabled(false)).unwrap();
    let off = ScaledOptimizer::new(SgdConfig::new().init(), off).to_record();
    for record in [record(&f32), record(&bf16), off] {
        let steps = record.counters().unwrap().steps();
        for scaler in each(at_scale(1024.0), &record) {
            assert_eq!((scaler.loss_scale(), scaler.growth_tracker()), (1024.0, 0));
            assert_eq!(scaler.counters().steps(), steps);
        }
    }
    // Settings that nothing used are no difference.
    let messages = warned(at_scale(1024.0), &record(&f32));
    let message = only(&messages);
    says(
        message,
        ["are used: `enabled` is true here and false there."],
    );
    assert!(!message.contains("The loss scale is"), "{message}");
    for amp in [f32, bf16] {
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
        let fresh = optim.scaler().schedule();
        optim.load_record(saved()).unwrap();
        assert_eq!((optim.scaler().schedule(), amp.loss_scale()), (fresh, 1.0));
        assert_eq!(optim.scaler().counters().steps(), 3);
    }
}

/// A run that has ended for too many skips goes on where a setting was edited, for whatever reason it ended: its next scale.
#[test]
fn after_exhaustion_the_configuration_is_edited() {
    // By the number of skips, or at the floor.
    for raise in [false, true] {
        let config = at_scale(16.0).with_min_scale(Some(4.0));
        let config = config.with_raise_error_at_min_scale(raise);
        let config = config.with_max_consecutive_skips(Some(3));
        let mut ended = trained(config, if raise { "xx" } else { "xxx" });
        is_error(&ended.refused(BAD), "LossScaleExhausted", []);
        assert_eq!(ended.scale(), 4.0);
        let record = ended.optim.to_record();
        let resumed = |config: GradScalerConfig| {
            let mut run = trained(config, "");
            run.optim.load_record(record.clone()).unwrap();
            run
        };
        // Unedited, it ends at once.
        resumed(config).refused(BAD);

        let unraised = config.with_raise_error_at_min_scale(false);
        let lower = config.with_min_scale(None);
        let longer = lower.with_max_consecutive_skips(Some(20));
        let raised = config.with_init_scale(128.0).with_min_scale(Some(64.0));
        let raised = raised.with_max_consecutive_skips(None);
        let mut edits = vec![(lower, "x", 2.0), (longer, "x", 2.0), (raised, "", 64.0)];
        edits.extend(raise.then_some((unraised, "x", 4.0)));
        for (edited, steps, next) in edits {
            let mut run = resumed(edited);
            assert_eq!(run.counters().consecutive_skips(), 0);
            steps.chars().for_each(|_| run.step(BAD));
            assert_eq!(run.scale(), next);
            run.step(ONES);
            assert_eq!(run.counters().stepped(), 1);
        }
    }
}

/// What the scaler had seen before is not reported of the run that was loaded.
#[test]
fn a_used_scaler_forgets() {
    let used = || {
        let run = trained(stored(), ".xxx");
        // A loss whose gradients have not come.
        let loss = Tensor::<1>::ones([1], &Device::flex());
        drop(run.optim.scaler().scale(loss));
        let scaler = run.optim.scaler();
        assert!(scaler.last_outcome().is_some() && scaler.last_status().is_some());
        run
    };
    let mut run = used();
    run.optim.load_record(saved()).unwrap();
    let mut scaler = used().optim.scaler().clone();
    scaler.load_record(saved()).unwrap();
    // That of an optimizer without loss scaling.
    let mut plain = used().optim;
    let bytes = SgdConfig::new().init().into_bytes().unwrap();
    plain.from_bytes(bytes).unwrap();
    for scaler in [run.optim.scaler(), &scaler, plain.scaler()] {
        assert_eq!((scaler.last_outcome(), scaler.last_status()), (None, None));
    }
}
