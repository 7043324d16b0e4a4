//! A run goes on from a record, with other settings or into a scaler that was used: the state is the record's, the settings are
//! the program's.

use super::support::*;

/// What was saved: nothing at its default, two finite steps after one overflow of three that are tolerated.
fn stored() -> GradScalerConfig {
    at_scale(1024.0)
        .with_growth_interval(7)
        .with_min_scale(Some(2.0))
        .with_max_scale(Some(4096.0))
        .with_hysteresis(3)
        .with_max_consecutive_skips(Some(9))
}

fn step(optim: &mut ScaledOptimizer<ModuleOptimizer>, overflow: bool) -> Result<(), AmpError> {
    let (model, scale) = (Model::new(), optim.scaler().loss_scale());
    let grads = model.scaled(scale, overflow);
    Ok(optim.try_step(0.1, model, grads).map(drop)?)
}

fn trained(config: GradScalerConfig, overflows: &[bool]) -> ScaledOptimizer<ModuleOptimizer> {
    let mut optim = sgd_under(config);
    for overflow in overflows {
        step(&mut optim, *overflow).unwrap();
    }
    optim
}

fn saved() -> AmpRecord {
    trained(stored(), &[true, false, false]).to_record()
}

/// Loads into optimizers of both kinds and a scaler alone, and looks at each.
fn each(config: GradScalerConfig, record: &AmpRecord, check: impl Fn(&GradScaler)) {
    let mut optim = sgd_under(config);
    optim.load_record(record.clone()).unwrap();
    check(optim.scaler());
    let mut scaler = config.init().unwrap();
    scaler.load_record(record.clone()).unwrap();
    check(&scaler);
    let amp = MixedPrecision::f16().with_scaler(config).unwrap();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    optim.load_record(record.clone()).unwrap();
    check(optim.scaler());
    assert_eq!(amp.loss_scale(), optim.scaler().loss_scale());
}

#[test]
fn the_settings_are_the_programs() {
    let edited = GradScalerConfig::new()
        .with_growth_interval(500)
        .with_backoff_factor(0.25)
        .with_hysteresis(2)
        .with_max_consecutive_skips(Some(20));
    each(edited, &saved(), |scaler| {
        assert_eq!(scaler.config(), edited);
        let schedule = scaler.schedule();
        assert_eq!((schedule.scale(), schedule.growth_tracker()), (1024.0, 2));
        // One of the tolerated overflows is used up, as it was.
        assert_eq!(schedule.hysteresis_tracker(), 1);
        let counters = scaler.counters();
        assert_eq!((counters.steps(), counters.skipped()), (3, 1));
    });
    // The state counts as the new settings have it.
    let mut scaler = sgd_under(edited);
    scaler.load_record(saved()).unwrap();
    step(&mut scaler, true).unwrap();
    assert_eq!(scaler.scaler().loss_scale(), 256.0);
}

#[test]
fn each_difference_is_named() {
    let record = saved();
    let warned = |config: GradScalerConfig| {
        captured(Level::Warn, || {
            config.init().unwrap().load_record(record.clone()).unwrap();
        })
    };
    assert_eq!(warned(stored()), [""; 0]);
    let edited = stored()
        .with_growth_interval(500)
        .with_max_scale(None)
        .with_max_consecutive_skips(Some(10));
    let messages = warned(edited);
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
    let messages = captured(Level::Warn, || {
        each(config, &record, |scaler| {
            assert_eq!(scaler.config(), stored());
            assert_eq!(scaler.schedule(), *saved().schedule().unwrap());
        });
    });
    assert_eq!(messages, [""; 0]);
    // Through a file too. Whether there is scaling at all is the program's.
    let bytes = saved().into_bytes().unwrap();
    let mut disabled = GradScalerConfig::new().with_enabled(false).init().unwrap();
    let record = AmpRecord::from_bytes(bytes).unwrap();
    disabled.load_record(record.with_settings()).unwrap();
    assert_eq!(disabled.config(), stored().with_enabled(false));
}

/// The scale of the record is moved into the bounds of the program.
#[test]
fn the_bounds_are_the_programs() {
    let new = GradScalerConfig::new;
    let low = new().with_init_scale(256.0).with_max_scale(Some(512.0));
    for (config, expected) in [
        (new().with_max_scale(Some(65536.0)), 1024.0),
        (low, 512.0),
        (new().with_min_scale(Some(2048.0)), 2048.0),
    ] {
        each(config, &saved(), |scaler| {
            assert_eq!(scaler.loss_scale(), expected);
            assert_eq!(scaler.config(), config);
        });
    }
}

/// A static scale is a setting, and a dynamic one a state.
#[test]
fn a_static_scale_is_the_programs() {
    let new = GradScalerConfig::new;
    let fixed = |scale| new().with_init_scale(scale).with_dynamic(false);
    let record = trained(fixed(32.0), &[false]).to_record();
    // One that the program itself has set, since it was built.
    let mut moved = sgd_under(fixed(32.0));
    moved.scaler_mut().set_loss_scale(16.0).unwrap();
    for (config, record, scale) in [
        (fixed(8.0), &saved(), 8.0),
        (fixed(8.0), &record, 8.0),
        (new(), &record, 32.0),
        (fixed(32.0), &moved.to_record(), 16.0),
    ] {
        each(config, record, |scaler| {
            assert_eq!(scaler.loss_scale(), scale);
            assert_eq!(scaler.config().dynamic, config.dynamic);
        });
    }
}

/// A run that has ended for too many skips goes on where a setting was edited, for whatever reason it ended.
#[test]
fn after_exhaustion_the_configuration_is_edited() {
    // By the number of skips, or at the floor.
    for raise in [false, true] {
        let config = at_scale(16.0)
            .with_min_scale(Some(4.0))
            .with_raise_error_at_min_scale(raise)
            .with_max_consecutive_skips(Some(3));
        let mut optim = sgd_under(config);
        let error = (0..100).find_map(|_| step(&mut optim, true).err()).unwrap();
        is_error(&error, "LossScaleExhausted", []);
        assert_eq!(optim.scaler().loss_scale(), 4.0);
        let bytes = optim.into_bytes().unwrap();

        // Unedited, it ends at once.
        let mut same = sgd_under(config);
        same.from_bytes(bytes.clone()).unwrap();
        step(&mut same, true).unwrap_err();

        let unraised = config.with_raise_error_at_min_scale(false);
        let lower = config.with_min_scale(None);
        let longer = lower.with_max_consecutive_skips(Some(20));
        let raised = config.with_init_scale(128.0).with_min_scale(Some(64.0));
        let raised = raised.with_max_consecutive_skips(None);
        let mut edits = vec![(lower, 2.0), (longer, 2.0), (raised, 64.0)];
        if raise {
            edits.push((unraised, 4.0));
        }
        for (edited, next) in edits {
            let mut optim = sgd_under(edited);
            optim.from_bytes(bytes.clone()).unwrap();
            assert_eq!(optim.scaler().counters().consecutive_skips(), 0);
            if next < 4.0 || (raise && edited == unraised) {
                step(&mut optim, true).unwrap();
            }
            assert_eq!(optim.scaler().loss_scale(), next);
            step(&mut optim, false).unwrap();
            assert_eq!(optim.scaler().counters().stepped(), 1);
        }
    }
}

/// What the scaler had seen before is not told of the run that was loaded.
#[test]
fn a_used_scaler_forgets() {
    let used = || {
        let mut optim = trained(stored(), &[false, true, true, true]);
        // A loss whose gradients have not come.
        let loss = Tensor::<1>::ones([1], &Device::flex());
        drop(optim.scaler_mut().scale(loss));
        optim
    };
    let mut optim = used();
    assert!(optim.scaler().last_outcome().is_some() && optim.scaler().last_status().is_some());
    optim.load_record(saved()).unwrap();
    let mut scaler = used().scaler().clone();
    scaler.load_record(saved()).unwrap();
    // That of an optimizer without loss scaling.
    let mut plain = used();
    let bytes = SgdConfig::new().init().into_bytes().unwrap();
    plain.from_bytes(bytes).unwrap();
    for scaler in [optim.scaler(), &scaler, plain.scaler()] {
        assert_eq!(scaler.last_outcome(), None);
        assert!(scaler.last_status().is_none());
    }
    // That loss is not compared with the gradients of another run.
    let model = Model::new();
    let zeros = scaled_by_hand(optim.scaler(), model.gradients(|_| 0.0));
    let messages = captured(Level::Warn, || drop(optim.step(0.1, model, zeros)));
    assert_eq!(messages, [""; 0]);
}
