//! Megatron-LM's `DynamicGradScaler`: hysteresis that is refilled when the scale grows, and a floor.

use burn_amp_tests::{outcome, traces};
use serde::Deserialize;

use crate::settings;

#[derive(Deserialize)]
struct Trace {
    config: serde_json::Value,
    overflow: Vec<bool>,
    expected: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    scale: f32,
    growth_tracker: u32,
    hysteresis_tracker: i64,
}

#[test]
fn parity_megatron() {
    for (name, trace) in traces::<Trace>("megatron_traces") {
        let names = [
            ("init_scale", "initial_scale"),
            ("growth_factor", "growth_factor"),
            ("backoff_factor", "backoff_factor"),
            ("growth_interval", "growth_interval"),
            ("min_scale", "min_scale"),
            ("hysteresis", "hysteresis"),
        ];
        let mut scale = settings(&trace.config, &names).schedule().unwrap();
        assert_eq!(trace.overflow.len(), trace.expected.len());
        let steps = trace.overflow.iter().zip(&trace.expected);
        for (step, (overflow, expected)) in steps.enumerate() {
            let at = format!("{name}, step {step}");
            scale = scale.adjust(outcome(*overflow));
            assert_eq!(scale.scale().to_bits(), expected.scale.to_bits(), "{at}");
            assert_eq!(scale.growth_tracker(), expected.growth_tracker, "{at}");
            // Megatron counts on below zero; every value up to 1 means "at the next overflow".
            let tracker = i64::from(scale.hysteresis_tracker());
            assert_eq!(tracker, expected.hysteresis_tracker.max(1), "{at}");
        }
    }
}
