//! `GradScalerConfig`: defaults, refusals, and its JSON.

use burn_amp_tests::prelude::*;

fn load(json: &str) -> GradScalerConfig {
    GradScalerConfig::load_binary(json.as_bytes()).unwrap_or_else(|e| panic!("{json}: {e}"))
}

/// Those of PyTorch, and of what it has not.
const DEFAULTS: &str = r#"{
    "init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
    "enabled": true, "dynamic": true, "min_scale": null, "max_scale": null, "hysteresis": 1,
    "consecutive_hysteresis": false, "max_consecutive_skips": 50, "raise_error_at_min_scale": false,
    "schedule": "GrowthInterval", "warmup_steps": 0, "warmup_scale": 1024.0, "warmup_levels": 6,
    "parameter_dtype_gradients": false
}"#;

/// None at its default.
const EVERY: &str = r#"{
    "init_scale": 1234.5, "growth_factor": 1.000000000000001, "backoff_factor": 0.1, "growth_interval": 17,
    "enabled": false, "dynamic": false, "min_scale": 0.1, "max_scale": 1e30, "hysteresis": 3,
    "consecutive_hysteresis": true, "max_consecutive_skips": null, "raise_error_at_min_scale": true,
    "schedule": {"NearTop": {"edge": 0.25, "share": 0.5, "period": 7}},
    "warmup_steps": 70, "warmup_scale": 0.3, "warmup_levels": 9, "parameter_dtype_gradients": true
}"#;

/// A scaler and a bare schedule have the settings of the config, and so has its JSON.
#[test]
fn settings_are_those_of_the_json() {
    for (config, json) in [(GradScalerConfig::new(), DEFAULTS), (load(EVERY), EVERY)] {
        let value = |json: &str| serde_json::from_str::<Value>(json).unwrap();
        let written = config.to_string();
        assert_eq!((value(&written), load(&written)), (value(json), config));
        let scaler = GradScaler::new(config).unwrap();
        assert_eq!(scaler.is_enabled(), config.enabled);
        assert_eq!(scaler.config(), config);
    }
    let scaler = GradScaler::new(GradScalerConfig::default()).unwrap();
    assert_eq!(scaler.schedule(), LossScale::default());
    assert_eq!(scaler.schedule(), load("{}").schedule().unwrap());
}

/// A name that is not known is not a setting; one that is left out has its default.
#[test]
fn names_in_json_are_checked() {
    let loaded = load(r#"{"growth_interval": 500}"#);
    assert_eq!(loaded, GradScalerConfig::new().with_growth_interval(500));
    let unknown = br#"{"growth_intervall": 500}"#;
    assert!(GradScalerConfig::load_binary(unknown).is_err());
}

/// Settings as JSON has them, values in place of the `?` there, and the message of their refusal.
const REFUSED: &str = r#"
{"growth_factor": ?} > 1 0.5 "NaN" "inf" > `growth_factor` is ?, but must be finite and above 1
{"backoff_factor": ?} > 0 1 -0.5 "NaN" > `backoff_factor` is ?, but must be above 0 and below 1
{"growth_interval": ?} > 0 > `growth_interval` is ?, but must be at least 1
{"hysteresis": ?} > 0 > `hysteresis` is ?, but must be at least 1
{"min_scale": 1024, "max_scale": ?} > 512 > `max_scale` is ?, but must be at least `min_scale`, 1024
{"init_scale": ?, "min_scale": 16} > 8 > `init_scale` is ?, but must be between `min_scale` (16) and `max_scale` (none)
{"init_scale": ?, "max_scale": 32} > 64 > `init_scale` is ?, but must be between `min_scale` (none) and `max_scale` (32)
{"warmup_steps": 10, "warmup_levels": ?} > 0 127 > `warmup_levels` is ?, but must be between 1 and 126
{"warmup_steps": 10, "warmup_scale": ?} > 0 "inf" > `warmup_scale` is ?, but must be positive and finite as an f32
{"warmup_steps": 10, "min_scale": ?} > 2048 > `warmup_scale` is 1024, but must be a normal f32 and at least `min_scale`, ?
{"schedule": {"AdaptiveInterval": {"min_interval": ?}}} > 0 > `min_interval` is ?, but must be at least 1
{"schedule": {"AdaptiveInterval": {"min_interval": 9, "max_interval": ?}}} > 8 > `max_interval` is ?, but must be at least `min_interval`, 9
{"schedule": {"LogMax": {"beta1": ?}}} > 1 > `beta1` is ?, but must be at least 0 and below 1
{"schedule": {"LogMax": {"beta2": ?}}} > -0.1 "NaN" > `beta2` is ?, but must be at least 0 and below 1
{"schedule": {"LogMax": {"overflow_std_dev": ?}}} > -1 > `overflow_std_dev` is ?, but must be finite and at least 0
{"schedule": {"NearTop": {"edge": ?}}} > 1.5 > `edge` is ?, but must be between 0 and 1
{"schedule": {"NearTop": {"share": ?}}} > -0.1 > `share` is ?, but must be between 0 and 1
{"schedule": {"NearTop": {"period": ?}}} > 0 > `period` is ?, but must be at least 1
{"init_scale": ?} > "0" "-1" "NaN" "inf" "-inf" "1e39" "1e-46" > `init_scale` is ?, but must be positive and finite as an f32
{"min_scale": ?} > "0" "-1" "NaN" "inf" "-inf" "1e39" "1e-46" > `min_scale` is ?, but must be positive and finite as an f32
{"max_scale": ?} > "0" "-1" "NaN" "inf" "-inf" "1e39" "1e-46" > `max_scale` is ?, but must be positive and finite as an f32
"#;

/// Settings are refused with this message.
fn refused(json: &str, message: &str) {
    let config = load(json);
    // A static scale is no excuse for settings that would fail once it is made dynamic. A setting that is not finite is written as text.
    let (fixed, written) = (config.with_dynamic(false), load(&config.to_string()));
    for config in [config, fixed, written] {
        let error = GradScaler::new(config).map(drop).expect_err(json);
        is_error(&error, "InvalidValue", []);
        assert_eq!(error.to_string(), message, "{json}");
    }
    // As with PyTorch's, what is not used need not be right: in a record neither, for this program and one that scales.
    let off = config.with_enabled(false);
    MixedPrecision::f16().with_scaler(off).unwrap();
    let mut disabled = GradScaler::new(off).unwrap();
    assert_eq!((disabled.is_enabled(), disabled.loss_scale()), (false, 1.0));
    disabled.load_record(disabled.to_record()).unwrap();
    let record = disabled.to_record().with_settings();
    default_scaler().load_record(record).unwrap();
}

#[test]
fn values_out_of_range() {
    for [json, values, message] in rows(REFUSED) {
        // 1e39 and 1e-46 are neither infinite nor zero in f64, but in f32.
        for value in values.split(' ') {
            let message = message.replace('?', value.trim_matches('"'));
            refused(&json.replace('?', value), &message);
        }
    }
}

#[test]
fn bounds_may_touch() {
    let one = load(r#"{"init_scale": 256, "min_scale": 256, "max_scale": 256}"#);
    assert_eq!(GradScaler::new(one).unwrap().loss_scale(), 256.0);
    let tight = GradScalerConfig::new().with_growth_factor(1.0 + 1e-9);
    assert!(GradScaler::new(tight.with_backoff_factor(1.0 - 1e-9)).is_ok());
    // Without a warm-up the default of its scale stands in nobody's way.
    assert!(GradScaler::new(load(r#"{"min_scale": 2048}"#)).is_ok());
}
