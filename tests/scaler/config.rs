//! `GradScalerConfig`: defaults, refusals, and its JSON.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;

fn config() -> GradScalerConfig {
    GradScalerConfig::new()
}

/// Checks that `init` refuses each of these with its message, a field, the value and the range.
fn refused<const N: usize>(configs: [GradScalerConfig; N], messages: [&str; N]) {
    for (config, message) in configs.into_iter().zip(messages) {
        // A static scale is no excuse for settings that would fail once it is made dynamic.
        for config in [config, config.with_dynamic(false)] {
            let error = config.init().map(drop).unwrap_err();
            assert!(matches!(error, AmpError::InvalidValue { .. }), "{error}");
            assert_eq!(error.to_string(), message);
        }
    }
}

#[test]
fn defaults_are_those_of_pytorch() {
    let defaults = config();
    assert_eq!(defaults.init_scale, 65536.0);
    assert_eq!(defaults.growth_factor, 2.0);
    assert_eq!(defaults.backoff_factor, 0.5);
    assert_eq!(defaults.growth_interval, 2000);
    assert!(defaults.enabled && defaults.dynamic);
    assert_eq!((defaults.min_scale, defaults.max_scale), (None, None));
    assert_eq!(defaults.hysteresis, 1);
    assert!(!defaults.consecutive_hysteresis);
    assert_eq!(defaults.max_consecutive_skips, Some(50));
    assert!(!defaults.parameter_dtype_gradients);
    assert_eq!(defaults.schedule, Schedule::GrowthInterval);
    assert_eq!(defaults.warmup_steps, 0);
    assert_eq!(defaults, GradScalerConfig::default());
}

/// A scaler and a bare schedule have the settings of the config.
#[test]
fn the_scaler_agrees_with_the_config() {
    let scaler = config().init().unwrap();
    assert!(scaler.is_enabled());
    assert_eq!(scaler.config(), config());
    assert_eq!(scaler.schedule(), LossScale::default());
    assert_eq!(scaler.schedule(), config().schedule().unwrap());
    let other = config()
        .with_enabled(false)
        .with_max_consecutive_skips(None)
        .with_parameter_dtype_gradients(true);
    let scaler = other.init().unwrap();
    assert!(!scaler.is_enabled());
    assert_eq!(scaler.config(), other);
}

#[test]
fn values_out_of_range() {
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let message =
            |field| format!("`{field}` is {value}, but must be positive and finite as an f32");
        let configs = [
            config().with_init_scale(value),
            config().with_min_scale(Some(value)),
            config().with_max_scale(Some(value)),
        ];
        let messages = ["init_scale", "min_scale", "max_scale"].map(message);
        refused(configs, messages.each_ref().map(String::as_str));
    }
    // Neither infinite nor zero in f64, but in f32.
    for value in [1e39, 1e-46] {
        let error = config().with_init_scale(value).init().unwrap_err();
        says(&error, ["finite as an f32"]);
    }
    refused(
        [
            config().with_growth_factor(1.0),
            config().with_growth_factor(0.5),
            config().with_growth_factor(f64::NAN),
            config().with_growth_factor(f64::INFINITY),
            config().with_backoff_factor(0.0),
            config().with_backoff_factor(1.0),
            config().with_backoff_factor(-0.5),
            config().with_backoff_factor(f64::NAN),
            config().with_growth_interval(0),
            config().with_hysteresis(0),
        ],
        [
            "`growth_factor` is 1, but must be finite and above 1",
            "`growth_factor` is 0.5, but must be finite and above 1",
            "`growth_factor` is NaN, but must be finite and above 1",
            "`growth_factor` is inf, but must be finite and above 1",
            "`backoff_factor` is 0, but must be above 0 and below 1",
            "`backoff_factor` is 1, but must be above 0 and below 1",
            "`backoff_factor` is -0.5, but must be above 0 and below 1",
            "`backoff_factor` is NaN, but must be above 0 and below 1",
            "`growth_interval` is 0, but must be at least 1",
            "`hysteresis` is 0, but must be at least 1",
        ],
    );
}

fn log_max(beta1: f64, beta2: f64, overflow_std_dev: f64) -> Schedule {
    Schedule::LogMax {
        beta1,
        beta2,
        overflow_std_dev,
    }
}

#[test]
fn parameters_of_schedules_out_of_range() {
    let intervals = |min_interval, max_interval| Schedule::AdaptiveInterval {
        min_interval,
        max_interval,
    };
    let original = |beta1, log_max| Schedule::OpenSeq2SeqLogMax {
        beta1,
        beta2: 0.9,
        overflow_std_dev: 3.09,
        log_max,
    };
    let near_top = |edge, share, period| Schedule::NearTop {
        edge,
        share,
        period,
    };
    let schedules = [
        intervals(0, 5),
        intervals(9, 8),
        log_max(1.0, 0.9, 3.0),
        log_max(0.9, -0.1, 3.0),
        log_max(0.9, 0.9, -1.0),
        original(f64::NAN, 16.0),
        original(0.9, f64::INFINITY),
        near_top(1.5, 0.1, 1),
        near_top(0.5, -0.1, 1),
        near_top(0.5, 0.1, 0),
    ];
    refused(
        schedules.map(|schedule| config().with_schedule(schedule)),
        [
            "`min_interval` is 0, but must be at least 1",
            "`max_interval` is 8, but must be at least `min_interval`, 9",
            "`beta1` is 1, but must be at least 0 and below 1",
            "`beta2` is -0.1, but must be at least 0 and below 1",
            "`overflow_std_dev` is -1, but must be finite and at least 0",
            "`beta1` is NaN, but must be at least 0 and below 1",
            "`log_max` is inf, but must be finite",
            "`edge` is 1.5, but must be between 0 and 1",
            "`share` is -0.1, but must be between 0 and 1",
            "`period` is 0, but must be at least 1",
        ],
    );
}

#[test]
fn a_warm_up_out_of_range() {
    let steps = config().with_warmup_steps(10);
    let floor = steps.with_min_scale(Some(2048.0));
    refused(
        [
            steps.with_warmup_levels(0),
            steps.with_warmup_levels(127),
            steps.with_warmup_scale(0.0),
            floor,
        ],
        [
            "`warmup_levels` is 0, but must be between 1 and 126",
            "`warmup_levels` is 127, but must be between 1 and 126",
            "`warmup_scale` is 0, but must be positive and finite as an f32",
            "`warmup_scale` is 1024, but must be a normal f32 and at least `min_scale`, 2048",
        ],
    );
    // Without a warm-up its default stands in nobody's way.
    assert!(floor.with_warmup_steps(0).init().is_ok());
}

#[test]
fn bounds_that_contradict_each_other() {
    refused(
        [
            config()
                .with_min_scale(Some(1024.0))
                .with_max_scale(Some(512.0)),
            config().with_init_scale(8.0).with_min_scale(Some(16.0)),
            config().with_init_scale(64.0).with_max_scale(Some(32.0)),
        ],
        [
            "`max_scale` is 512, but must be at least `min_scale`, 1024",
            "`init_scale` is 8, but must be between `min_scale` (16) and `max_scale` (none)",
            "`init_scale` is 64, but must be between `min_scale` (none) and `max_scale` (32)",
        ],
    );
}

#[test]
fn bounds_may_touch() {
    let one = config()
        .with_init_scale(256.0)
        .with_min_scale(Some(256.0))
        .with_max_scale(Some(256.0));
    assert_eq!(one.init().unwrap().loss_scale(), 256.0);
    let tight = config().with_growth_factor(1.0 + 1e-9);
    assert!(tight.with_backoff_factor(1.0 - 1e-9).init().is_ok());
}

#[test]
fn json_round_trip() {
    let every = config()
        .with_init_scale(1234.5)
        .with_growth_factor(1.0 + 1e-15)
        .with_backoff_factor(0.1)
        .with_growth_interval(17)
        .with_enabled(false)
        .with_dynamic(false)
        .with_min_scale(Some(0.1))
        .with_max_scale(Some(1e30))
        .with_hysteresis(3)
        .with_consecutive_hysteresis(true)
        .with_max_consecutive_skips(None)
        .with_schedule(Schedule::near_top())
        .with_warmup_steps(70)
        .with_warmup_scale(0.3)
        .with_warmup_levels(9)
        .with_parameter_dtype_gradients(true);
    for config in [config(), every] {
        assert_eq!(through_json(config), config);
    }
}

fn through_json(config: GradScalerConfig) -> GradScalerConfig {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.json");
    config.save(&file).unwrap();
    GradScalerConfig::load(&file).unwrap()
}

/// JSON has no infinity: a setting that is none is kept as a text, and refused by its name.
#[test]
fn settings_that_are_not_finite_go_through_json() {
    let infinite = f64::INFINITY;
    let configs = [
        config().with_growth_factor(infinite),
        config().with_init_scale(f64::NEG_INFINITY),
        config().with_max_scale(Some(infinite)),
        config().with_min_scale(Some(f64::NAN)),
        config().with_warmup_scale(infinite),
        config().with_schedule(log_max(0.99, f64::NAN, 3.0)),
    ];
    refused(
        configs.map(through_json),
        [
            "`growth_factor` is inf, but must be finite and above 1",
            "`init_scale` is -inf, but must be positive and finite as an f32",
            "`max_scale` is inf, but must be positive and finite as an f32",
            "`min_scale` is NaN, but must be positive and finite as an f32",
            "`warmup_scale` is inf, but must be positive and finite as an f32",
            "`beta2` is NaN, but must be at least 0 and below 1",
        ],
    );
}

/// A name that is not known is not a setting; one that is left out has its default.
#[test]
fn names_in_json_are_checked() {
    let load = |json: &str| GradScalerConfig::load_binary(json.as_bytes());
    let loaded = load(r#"{"growth_interval": 500}"#).unwrap();
    assert_eq!(loaded, config().with_growth_interval(500));
    assert!(load(r#"{"growth_intervall": 500}"#).is_err());
}
