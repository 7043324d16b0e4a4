//! A run goes on from a record, with other settings or without a scale: what `iterations.rs` does not show.

use burn_amp_tests::{prelude::*, trial::*};

/// What was saved: nothing at its default, two finite steps after one overflow of three that are tolerated.
fn stored() -> GradScalerConfig {
    let config = at_scale(1024.0).with_growth_interval(7);
    let config = config.with_min_scale(Some(2.0)).with_hysteresis(3);
    let config = config.with_max_scale(Some(4096.0));
    config.with_max_consecutive_skips(Some(9))
}

fn saved() -> AmpRecord {
    let mut run = Trial::new(sgd_under(stored()));
    for values in [BAD, ONES, ONES] {
        run.step(values);
    }
    run.optim.to_record()
}

/// What is warned of when that is loaded into a scaler with these settings.
fn warned(config: GradScalerConfig) -> Vec<String> {
    let (mut scaler, record) = (GradScaler::new(config).unwrap(), saved());
    captured(Level::Warn, || scaler.load_record(record).unwrap())
}

#[test]
fn each_difference_is_named() {
    assert_eq!(warned(stored()), [""; 0]);
    // Nobody takes that from a record, and settings that nothing used are no difference.
    let messages = warned(stored().with_enabled(false));
    let difference = "are used: `enabled` is false here and true there.";
    assert!(only(&messages).ends_with(difference), "{messages:?}");
    let edited = stored().with_growth_interval(500).with_max_scale(None);
    let edited = edited.with_max_consecutive_skips(Some(10));
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

/// A run in f32 has no scale to go on from, nor one in bf16; and they take none.
#[test]
fn a_run_that_scaled_nothing_leaves_no_scale() {
    for amp in [MixedPrecision::f32(), MixedPrecision::bf16()] {
        let mut run = Trial::at_border(&amp);
        let fresh = run.optim.scaler().schedule();
        run.take(run.model.plain(ONES));
        let record = run.optim.to_record();
        let mut scaler = GradScaler::new(at_scale(1024.0)).unwrap();
        let messages = captured(Level::Warn, || scaler.load_record(record).unwrap());
        assert!(!only(&messages).contains("The loss scale is"));
        assert_eq!((scaler.loss_scale(), scaler.growth_tracker()), (1024.0, 0));
        assert_eq!(scaler.counters().steps(), 1);

        run.optim.load_record(saved()).unwrap();
        assert_eq!(run.optim.scaler().schedule(), fresh);
        assert_eq!((amp.loss_scale(), run.counters().steps()), (1.0, 3));
    }
}
