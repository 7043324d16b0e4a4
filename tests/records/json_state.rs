//! `state_dict`: PyTorch's `state_dict` as JSON.

use serde_json::{Value, json};

use crate::support::*;

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

/// f32 scales that are no short decimals, and a schedule in the middle of its life.
#[test]
fn a_round_trip_is_exact() {
    let config = GradScalerConfig {
        init_scale: 1e5 / 3.0,
        growth_factor: 1.7,
        backoff_factor: 0.3,
        growth_interval: 3,
        ..Default::default()
    };
    let mut schedule = config.schedule().unwrap();
    for step in 0..60 {
        let mut scaler = config.init().unwrap();
        scaler.set_loss_scale(schedule.scale().into()).unwrap();
        let tracker = schedule.growth_tracker();
        scaler.set_growth_tracker(tracker).unwrap();
        let mut loaded = fresh();
        loaded.load_state_dict(&scaler.state_dict()).unwrap();
        assert_eq!(loaded.state_dict(), scaler.state_dict());
        assert_eq!(loaded.loss_scale().to_bits(), scaler.loss_scale().to_bits());
        let outcome = outcome(step % 7 == 0);
        schedule = schedule.adjust(outcome);
        let adjusted = loaded.schedule().adjust(outcome).scale();
        assert_eq!(adjusted.to_bits(), schedule.scale().to_bits());
    }
}

/// Every `state_dict` that PyTorch wrote into the reference traces.
#[test]
fn the_reference_states_load() {
    let mut seen = 0;
    for (name, trace) in traces::<Value>("torch_scale_traces") {
        let expected = trace["expected"].as_array().unwrap().iter();
        let states = expected.filter_map(|expected| expected.get("state_dict"));
        for json in states.filter(|json| json.is_object()) {
            let scaler = load(json).unwrap_or_else(|e| panic!("{name}: {json}: {e}"));
            let state: Value = serde_json::from_str(&scaler.state_dict()).unwrap();
            assert_eq!(state, *json, "{name}");
            seen += 1;
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

/// Loads what must be refused, and is of this variant and names this; the state stays.
fn refused(config: GradScalerConfig, text: &str, variant: &str, named: &str) {
    let mut scaler = config.init().unwrap();
    scaler.set_loss_scale(4.0).unwrap();
    let before = scaler.bits();
    let error = scaler.load_state_dict(text).unwrap_err();
    is_error(&error, variant, [named]);
    assert_eq!(scaler.bits(), before);
}

#[test]
fn what_is_no_state_is_refused() {
    let refused = |text: &str, variant: &str, named: &str| {
        refused(GradScalerConfig::new(), text, variant, named);
    };
    // PyTorch: "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
    let empty = "ource state is empty, possibly because it was saved from a disabled instance of GradScaler";
    refused("{}", "EmptyState", empty);
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
        refused(text, "InvalidState", "");
    }
    // Each of the five left out, or null.
    for name in torch().as_object().unwrap().keys() {
        let mut without = torch();
        without.as_object_mut().unwrap().remove(name);
        let mut null = torch();
        null[name] = Value::Null;
        for json in [without, null] {
            refused(&json.to_string(), "InvalidState", &format!("`{name}`"));
        }
    }
    // Values outside their ranges, named as in the JSON.
    let bad: [(&str, &[Value]); 4] = [
        ("scale", &[json!(0.0), json!(-1.0), json!(1e300)]),
        ("growth_factor", &[json!(1.0), json!(0.5), json!(-2.0)]),
        ("backoff_factor", &[json!(0.0), json!(1.0), json!(1.5)]),
        ("growth_interval", &[json!(0)]),
    ];
    for (name, values) in bad {
        for value in values {
            let mut json = torch();
            json[name] = value.clone();
            refused(&json.to_string(), "InvalidValue", &format!("`{name}`"));
        }
    }
}

/// Bounds of this scaler, which PyTorch knows nothing of.
#[test]
fn a_scale_outside_our_bounds_is_refused() {
    let config = GradScalerConfig::new().with_max_scale(Some(65536.0));
    let mut json = torch();
    json["scale"] = json!(131072.0);
    refused(config, &json.to_string(), "", "max_scale");
    // Within them it loads, and they stay.
    let mut scaler = config.init().unwrap();
    scaler.load_state_dict(&torch().to_string()).unwrap();
    assert!(scaler.set_loss_scale(131072.0).is_err());
}

/// A later PyTorch may add names.
#[test]
fn unknown_names_are_ignored() {
    let mut json = torch();
    json["device"] = json!("cuda");
    assert_eq!(load(&json).unwrap().bits(), load(&torch()).unwrap().bits());
}

/// A static scale takes the scale and stays static.
#[test]
fn into_a_static_scale() {
    let fixed = at_scale(8.0).with_dynamic(false);
    let mut scaler = fixed.init().unwrap();
    scaler.load_state_dict(&torch().to_string()).unwrap();
    assert!(!scaler.config().dynamic);
    assert_eq!(scaler.loss_scale(), 65536.0);
}
