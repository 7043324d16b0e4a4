//! `state_dict`: PyTorch's `state_dict` as JSON.

use crate::support::*;

fn load(json: &Value) -> Result<GradScaler, AmpError> {
    let mut scaler = default_scaler();
    scaler.load_state_dict(&json.to_string())?;
    Ok(scaler)
}

fn torch() -> Value {
    json!({
        "scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 3
    })
}

/// PyTorch's, with another value under this name.
fn torch_with(name: &str, value: Value) -> Value {
    let mut json = torch();
    json[name] = value;
    json
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
fn refused(text: &str, variant: &str, named: &str) {
    // With a bound, which PyTorch knows nothing of.
    let mut scaler = at_scale(4.0).with_max_scale(Some(65536.0)).init().unwrap();
    let before = scaler.bits();
    let error = scaler.load_state_dict(text).unwrap_err();
    is_error(&error, variant, [named]);
    assert_eq!(scaler.bits(), before);
    // Within it a state loads, and it stays.
    scaler.load_state_dict(&torch().to_string()).unwrap();
    assert!(scaler.set_loss_scale(131072.0).is_err());
}

#[test]
fn what_is_no_state_is_refused() {
    // PyTorch: "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
    let empty = "ource state is empty, possibly because it was saved from a disabled instance of GradScaler";
    refused("{}", "EmptyState", empty);
    let list = " [65536.0, 2.0, 0.5, 2000, 3]";
    let expected = "expected an object with the values of PyTorch's `state_dict`";
    for text in ["null", "3", "\"scale\"", "[]", list] {
        refused(text, "InvalidState", expected);
    }
    let broken = r#"{ | {"scale": "big"} | {"growth_interval": 2.5} | {"_growth_tracker": -1}"#;
    for text in broken.split(" | ").chain([""]) {
        refused(text, "InvalidState", "");
    }
    // Each of the five left out, or null.
    for name in torch().as_object().unwrap().keys() {
        let mut without = torch();
        without.as_object_mut().unwrap().remove(name);
        for json in [without, torch_with(name, Value::Null)] {
            refused(&json.to_string(), "InvalidState", &format!("`{name}`"));
        }
    }
    // Values outside their ranges, named as in the JSON, and a scale outside our bounds.
    let bad = json!({
        "scale": [0.0, -1.0, 1e300],
        "growth_factor": [1.0, 0.5, -2.0],
        "backoff_factor": [0.0, 1.0, 1.5],
        "growth_interval": [0]
    });
    for (name, values) in bad.as_object().unwrap() {
        for value in values.as_array().unwrap() {
            let json = torch_with(name, value.clone()).to_string();
            refused(&json, "InvalidValue", &format!("`{name}`"));
        }
    }
    let high = torch_with("scale", json!(131072.0));
    refused(&high.to_string(), "", "max_scale");
}

/// A later PyTorch may add names.
#[test]
fn unknown_names_are_ignored() {
    let json = torch_with("device", json!("cuda"));
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
