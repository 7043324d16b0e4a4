//! `state_dict`: PyTorch's `state_dict` as JSON.

use burn_amp_tests::prelude::*;
use burn_amp_tests::reference;
use burn_amp_tests::says;
use serde_json::{Value, json};

use crate::support::Files;

fn fresh() -> GradScaler {
    GradScalerConfig::new().init().unwrap()
}

fn load(json: &Value) -> Result<GradScaler, AmpError> {
    let mut scaler = fresh();
    scaler.load_state_dict(&json.to_string())?;
    Ok(scaler)
}

fn torch() -> Value {
    json!({
        "scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 3
    })
}

#[test]
fn pytorchs_json_loads() {
    let scaler = load(&torch()).unwrap();
    assert_eq!(scaler.loss_scale(), 65536.0);
    assert_eq!(scaler.growth_factor(), 2.0);
    assert_eq!(scaler.backoff_factor(), 0.5);
    assert_eq!(scaler.growth_interval(), 2000);
    assert_eq!(scaler.growth_tracker(), 3);
}

#[test]
fn our_json_has_pytorchs_five_names() {
    let mut scaler = fresh();
    scaler.set_growth_tracker(3).unwrap();
    let json: Value = serde_json::from_str(&scaler.state_dict()).unwrap();
    assert_eq!(json, torch());
}

/// f32 scales that are no short decimals, and a schedule in the middle of its life.
#[test]
fn a_round_trip_is_exact() {
    let mut schedule = GradScalerConfig {
        init_scale: 1e5 / 3.0,
        growth_factor: 1.7,
        backoff_factor: 0.3,
        growth_interval: 3,
        ..Default::default()
    }
    .schedule()
    .unwrap();
    for step in 0..60 {
        let mut scaler = schedule.config().init().unwrap();
        scaler.set_loss_scale(schedule.scale().into()).unwrap();
        let tracker = schedule.growth_tracker();
        scaler.set_growth_tracker(tracker).unwrap();
        let mut loaded = fresh();
        loaded.load_state_dict(&scaler.state_dict()).unwrap();
        assert_eq!(loaded.state_dict(), scaler.state_dict());
        assert_eq!(loaded.loss_scale().to_bits(), scaler.loss_scale().to_bits());
        let outcome = match step % 7 {
            0 => StepOutcome::Skipped,
            _ => StepOutcome::Stepped,
        };
        assert_eq!(
            loaded.schedule().adjust(outcome).scale().to_bits(),
            schedule.clone().adjust(outcome).scale().to_bits()
        );
        schedule = schedule.adjust(outcome);
    }
}

/// Every `state_dict` that PyTorch wrote into the reference traces.
#[test]
fn the_reference_states_load() {
    let mut seen = 0;
    for (name, file) in reference::<Value>("torch_scale_traces") {
        for trace in file["traces"].as_array().unwrap() {
            for expected in trace["expected"].as_array().unwrap() {
                let Some(json) = expected.get("state_dict").filter(|json| json.is_object()) else {
                    continue;
                };
                let scaler = load(json).unwrap_or_else(|e| panic!("{name}: {json}: {e}"));
                let state: Value = serde_json::from_str(&scaler.state_dict()).unwrap();
                assert_eq!(state, *json, "{name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "no trace has a `state_dict`");
}

#[test]
fn a_disabled_scaler_has_an_empty_state() {
    let config = GradScalerConfig::new().with_enabled(false);
    let mut disabled = config.init().unwrap();
    assert_eq!(disabled.state_dict(), "{}");
    // And takes any, as PyTorch's.
    let before = disabled.bits();
    disabled.load_state_dict("{}").unwrap();
    disabled.load_state_dict(&torch().to_string()).unwrap();
    assert_eq!(disabled.bits(), before);
}

#[test]
fn an_empty_state_is_pytorchs_error() {
    let mut scaler = fresh();
    let error = scaler.load_state_dict("{}").unwrap_err();
    assert_eq!(error, AmpError::EmptyState);
    // PyTorch: "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
    let message = error.to_string().to_lowercase();
    assert!(message.contains("source state"), "{message}");
    says(
        &message,
        ["is empty, possibly because it was saved from a disabled instance of gradscaler"],
    );
    assert_eq!(scaler.bits(), fresh().bits());
}

/// Each of the five left out, or null.
#[test]
fn a_missing_value_is_named() {
    for name in torch().as_object().unwrap().keys() {
        let mut without = torch();
        without.as_object_mut().unwrap().remove(name);
        let mut null = torch();
        null[name] = Value::Null;
        for json in [without, null] {
            let error = load(&json).unwrap_err();
            assert!(matches!(error, AmpError::InvalidState { .. }), "{error:?}");
            assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
        }
    }
}

/// Each of the five with values outside its range: named as in the JSON, and the state stays.
#[test]
fn an_invalid_value_is_named() {
    let bad: [(&str, &[f64]); 3] = [
        ("scale", &[0.0, -1.0, 1e300]),
        ("growth_factor", &[1.0, 0.5, -2.0]),
        ("backoff_factor", &[0.0, 1.0, 1.5]),
    ];
    for (name, values) in bad {
        for value in values {
            let mut json = torch();
            json[name] = json!(value);
            check_named(&json, name);
        }
    }
    let mut json = torch();
    json["growth_interval"] = json!(0);
    check_named(&json, "growth_interval");
}

fn check_named(json: &Value, name: &str) {
    let mut scaler = fresh();
    scaler.set_loss_scale(4.0).unwrap();
    let before = scaler.bits();
    let error = scaler.load_state_dict(&json.to_string()).unwrap_err();
    assert!(matches!(error, AmpError::InvalidValue { .. }), "{error:?}");
    assert!(
        error.to_string().contains(&format!("`{name}`")),
        "{name}: {error}"
    );
    assert_eq!(scaler.bits(), before);
}

/// Bounds of this scaler, which PyTorch knows nothing of.
#[test]
fn a_scale_outside_our_bounds_is_refused() {
    let config = GradScalerConfig::new().with_max_scale(Some(65536.0));
    let mut scaler = config.init().unwrap();
    let mut json = torch();
    json["scale"] = json!(131072.0);
    let error = scaler.load_state_dict(&json.to_string()).unwrap_err();
    assert!(error.to_string().contains("max_scale"), "{error}");
    assert_eq!(scaler.bits(), config.init().unwrap().bits());
    // Within them it loads, and they stay.
    scaler.load_state_dict(&torch().to_string()).unwrap();
    assert!(scaler.set_loss_scale(131072.0).is_err());
}

#[test]
fn a_text_that_is_no_state() {
    for text in [
        "",
        "{",
        "null",
        "3",
        "\"scale\"",
        "[]",
        "{\"scale\": \"big\"}",
        "{\"growth_interval\": 2.5}",
        "{\"_growth_tracker\": -1}",
    ] {
        let error = fresh().load_state_dict(text).unwrap_err();
        assert!(
            matches!(error, AmpError::InvalidState { .. }),
            "{text}: {error:?}"
        );
    }
}

/// A later PyTorch may add names.
#[test]
fn unknown_names_are_ignored() {
    let mut json = torch();
    json["device"] = json!("cuda");
    assert_eq!(
        load(&json).unwrap().state_dict(),
        load(&torch()).unwrap().state_dict()
    );
}

/// A static scale takes the scale and stays static.
#[test]
fn into_a_static_scale() {
    let mut scaler = GradScalerConfig::new()
        .with_init_scale(8.0)
        .with_dynamic(false)
        .init()
        .unwrap();
    scaler.load_state_dict(&torch().to_string()).unwrap();
    assert!(!scaler.config().dynamic);
    assert_eq!(scaler.loss_scale(), 65536.0);
}
