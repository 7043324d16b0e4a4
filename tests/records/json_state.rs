//! `state_dict`: PyTorch's `state_dict` as JSON.

use crate::support::*;

fn load(json: &Value) -> GradScaler {
    let mut scaler = default_scaler();
    scaler.load_state_dict(&json.to_string()).unwrap();
    scaler
}

/// PyTorch's, with another value under this name.
fn torch_with(name: &str, value: Value) -> Value {
    let mut json = json!({
        "scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 3
    });
    json[name] = value;
    json
}

fn torch() -> Value {
    torch_with("_growth_tracker", json!(3))
}

/// Every `state_dict` that PyTorch wrote into the reference traces.
#[test]
fn the_reference_states_load() {
    let mut seen = 0;
    for (name, trace) in traces::<Value>("torch_scale_traces") {
        let expected = trace["expected"].as_array().unwrap().iter();
        let states = expected.map(|expected| &expected["state_dict"]);
        for json in states.filter(|json| json.is_object()) {
            let state: Value = serde_json::from_str(&load(json).state_dict()).unwrap();
            assert_eq!(state, *json, "{name}");
            seen += 1;
        }
    }
    assert!(seen > 0, "no trace has a `state_dict`");
}

/// Loads what must be refused, and is of this variant and names this; the state stays.
fn refused(text: &str, variant: &str, named: &str) {
    // With a bound, which PyTorch knows nothing of.
    let mut scaler = GradScaler::new(at_scale(4.0).with_max_scale(Some(65536.0))).unwrap();
    let before = scaler.bits();
    let error = scaler.load_state_dict(text).unwrap_err();
    is_error(&error, variant, [named]);
    assert_eq!(scaler.bits(), before);
    // Within it a state loads, and it stays.
    scaler.load_state_dict(&torch().to_string()).unwrap();
    assert!(scaler.set_loss_scale(131072.0).is_err());
}

/// What is no state, with the error's variant and what it says. `{}` is PyTorch's "The source state dict is empty, possibly because it was saved from
/// a disabled instance of GradScaler."
const NO_STATE: &str = r#"
{} > EmptyState > ource state is empty, possibly because it was saved from a disabled instance of GradScaler
null > InvalidState > expected an object with the values of PyTorch's `state_dict`
[] > InvalidState > expected an object
 [65536.0, 2.0, 0.5, 2000, 3] > InvalidState > expected an object
{ > InvalidState > not the state of a GradScaler
{"scale": "big"} > InvalidState > not the state of a GradScaler
{"_growth_tracker": -1} > InvalidState > not the state of a GradScaler
"#;

#[test]
fn what_is_no_state_is_refused() {
    for [text, variant, named] in rows(NO_STATE) {
        refused(text, variant, named);
    }
    refused("", "InvalidState", "");
    // Each of the five left out, or null.
    for name in torch().as_object().unwrap().keys() {
        let mut without = torch();
        without.as_object_mut().unwrap().remove(name);
        for json in [without, torch_with(name, Value::Null)] {
            refused(&json.to_string(), "InvalidState", &format!("`{name}`"));
        }
    }
    // Values outside their ranges, named as in the JSON, and a scale outside our bounds.
    for (name, values, named) in [
        ("scale", json!([0.0, -1.0, 1e300]), "`scale`"),
        ("growth_factor", json!([1.0, 0.5, -2.0]), "`growth_factor`"),
        ("backoff_factor", json!([0.0, 1.0, 1.5]), "`backoff_factor`"),
        ("growth_interval", json!([0]), "`growth_interval`"),
        ("scale", json!([131072.0]), "max_scale"),
    ] {
        for value in values.as_array().unwrap() {
            let json = torch_with(name, value.clone()).to_string();
            refused(&json, "InvalidValue", named);
        }
    }
}

/// A later PyTorch may add names; a static scale takes the scale and stays static; a disabled scaler has an empty state and takes any, as PyTorch's.
#[test]
fn what_else_is_loaded() {
    let json = torch_with("device", json!("cuda"));
    assert_eq!(load(&json).bits(), load(&torch()).bits());

    let mut fixed = GradScaler::new(at_scale(8.0).with_dynamic(false)).unwrap();
    fixed.load_state_dict(&torch().to_string()).unwrap();
    assert!(!fixed.config().dynamic && fixed.loss_scale() == 65536.0);

    let mut disabled = GradScaler::new(at_scale(8.0).with_enabled(false)).unwrap();
    assert_eq!(disabled.state_dict(), "{}");
    let before = disabled.bits();
    for state in ["{}", &torch().to_string()] {
        disabled.load_state_dict(state).unwrap();
        assert_eq!(disabled.bits(), before);
    }
}
