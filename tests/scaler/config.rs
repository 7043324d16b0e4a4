//! `GradScalerConfig`: defaults, refusals, and its JSON.

use burn_amp_tests::prelude::*;

fn config() -> GradScalerConfig {
    GradScalerConfig::new()
}

/// Checks that `init` names the field, the value and the range.
fn refused(config: GradScalerConfig, field: &str, value: &str, range: &str) {
    let Err(error) = config.init() else {
        panic!("{config:?} was accepted")
    };
    let message = error.to_string();
    let AmpError::InvalidValue {
        field: found,
        value: given,
        ..
    } = &error
    else {
        panic!("{message}");
    };
    assert_eq!((*found, given.as_str()), (field, value), "{message}");
    let start = format!("`{field}` is {value}, but must be ");
    assert!(message.starts_with(&start), "{message}");
    assert!(message[start.len()..].contains(range), "{message}");
    // A static scale is no excuse for settings that would fail once it is made dynamic.
    if config.dynamic {
        refused(config.with_dynamic(false), field, value, range);
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
    type Set = fn(f64) -> GradScalerConfig;
    let scales = [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let settings: [(&str, Set, &[f64], &str); 7] = [
        (
            "init_scale",
            |value| config().with_init_scale(value),
            &scales,
            "positive",
        ),
        (
            "min_scale",
            |value| config().with_min_scale(Some(value)),
            &scales,
            "positive",
        ),
        (
            "max_scale",
            |value| config().with_max_scale(Some(value)),
            &scales,
            "positive",
        ),
        (
            "growth_factor",
            |value| config().with_growth_factor(value),
            &[1.0, 0.5, f64::NAN, f64::INFINITY],
            "above 1",
        ),
        (
            "backoff_factor",
            |value| config().with_backoff_factor(value),
            &[0.0, 1.0, -0.5, f64::NAN],
            "above 0 and below 1",
        ),
        (
            "growth_interval",
            |value| config().with_growth_interval(value as u32),
            &[0.0],
            "at least 1",
        ),
        (
            "hysteresis",
            |value| config().with_hysteresis(value as u32),
            &[0.0],
            "at least 1",
        ),
    ];
    for (field, set, values, range) in settings {
        for value in values {
            refused(set(*value), field, &value.to_string(), range);
        }
    }
    // Neither infinite nor zero in f64, but in f32.
    for value in [1e39, 1e-46] {
        let error = config().with_init_scale(value).init().unwrap_err();
        assert!(error.to_string().contains("finite as an f32"), "{error}");
    }
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
    let cases = [
        (intervals(0, 5), "min_interval", "0", "at least 1"),
        (
            intervals(9, 8),
            "max_interval",
            "8",
            "at least `min_interval`, 9",
        ),
        (
            log_max(1.0, 0.9, 3.0),
            "beta1",
            "1",
            "at least 0 and below 1",
        ),
        (log_max(0.9, -0.1, 3.0), "beta2", "-0.1", "below 1"),
        (
            log_max(0.9, 0.9, -1.0),
            "overflow_std_dev",
            "-1",
            "at least 0",
        ),
        (original(f64::NAN, 16.0), "beta1", "NaN", "at least 0"),
        (original(0.9, f64::INFINITY), "log_max", "inf", "finite"),
        (near_top(1.5, 0.1, 1), "edge", "1.5", "between 0 and 1"),
        (near_top(0.5, -0.1, 1), "share", "-0.1", "between 0 and 1"),
        (near_top(0.5, 0.1, 0), "period", "0", "at least 1"),
    ];
    for (schedule, field, value, range) in cases {
        refused(config().with_schedule(schedule), field, value, range);
    }
    let steps = config().with_warmup_steps(10);
    for levels in [0, 127] {
        let config = steps.with_warmup_levels(levels);
        refused(
            config,
            "warmup_levels",
            &levels.to_string(),
            "between 1 and 126",
        );
    }
    refused(
        steps.with_warmup_scale(0.0),
        "warmup_scale",
        "0",
        "positive",
    );
    let floor = steps.with_min_scale(Some(2048.0));
    refused(floor, "warmup_scale", "1024", "`min_scale`, 2048");
    // Without a warm-up its default stands in nobody's way.
    assert!(floor.with_warmup_steps(0).init().is_ok());
}

#[test]
fn bounds_that_contradict_each_other() {
    let crossed = config()
        .with_min_scale(Some(1024.0))
        .with_max_scale(Some(512.0));
    refused(crossed, "max_scale", "512", "`min_scale`, 1024");
    let below = config().with_init_scale(8.0).with_min_scale(Some(16.0));
    refused(below, "init_scale", "8", "`min_scale` (16)");
    let above = config().with_init_scale(64.0).with_max_scale(Some(32.0));
    refused(above, "init_scale", "64", "`max_scale` (32)");
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
    let folder = std::env::temp_dir().join(format!("burn-amp-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, config) in [("defaults", config()), ("every", every)] {
        let file = folder.join(name).with_extension("json");
        config.save(&file).unwrap();
        assert_eq!(GradScalerConfig::load(&file).unwrap(), config);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// JSON has no infinity: a setting that is none is kept as a text, and refused by its name.
#[test]
fn settings_that_are_not_finite_go_through_json() {
    let file = std::env::temp_dir().join(format!("burn-amp-infinite-{}.json", std::process::id()));
    for (config, field) in [
        (
            config().with_growth_factor(f64::INFINITY),
            "`growth_factor` is inf",
        ),
        (
            config().with_init_scale(f64::NEG_INFINITY),
            "`init_scale` is -inf",
        ),
        (
            config().with_max_scale(Some(f64::INFINITY)),
            "`max_scale` is inf",
        ),
        (
            config().with_min_scale(Some(f64::NAN)),
            "`min_scale` is NaN",
        ),
        (
            config().with_warmup_scale(f64::INFINITY),
            "`warmup_scale` is inf",
        ),
        (
            config().with_schedule(log_max(0.99, f64::NAN, 3.0)),
            "`beta2` is NaN",
        ),
    ] {
        config.save(&file).unwrap();
        let loaded = GradScalerConfig::load(&file).unwrap();
        let error = loaded.init().unwrap_err().to_string();
        assert!(error.starts_with(field), "{error}");
        assert_eq!(error, config.init().unwrap_err().to_string());
    }
    std::fs::remove_file(file).unwrap();
}

/// A name that is not known is not a setting; one that is left out has its default.
#[test]
fn names_in_json_are_checked() {
    let load = |json: &str| GradScalerConfig::load_binary(json.as_bytes());
    let loaded = load(r#"{"growth_interval": 500}"#).unwrap();
    assert_eq!(loaded, config().with_growth_interval(500));
    assert!(load(r#"{"growth_intervall": 500}"#).is_err());
}
