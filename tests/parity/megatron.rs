//! Megatron-LM's `DynamicGradScaler`: hysteresis that is refilled when the scale grows, and a floor.

use burn_amp_tests::prelude::*;
use serde_json::Value;

use crate::{settings, steps};

#[test]
fn parity_megatron() {
    for (name, trace) in traces::<Value>("megatron_traces") {
        let names = [
            ("init_scale", "initial_scale"),
            ("growth_factor", "growth_factor"),
            ("backoff_factor", "backoff_factor"),
            ("growth_interval", "growth_interval"),
            ("min_scale", "min_scale"),
            ("hysteresis", "hysteresis"),
        ];
        let mut scale = settings(&trace["config"], &names).schedule().unwrap();
        for (step, (overflow, expected)) in steps(&trace).enumerate() {
            let at = format!("{name}, step {step}");
            scale = scale.adjust(outcome(overflow));
            assert_eq!(f64::from(scale.scale()), expected["scale"], "{at}");
            assert_eq!(scale.growth_tracker(), expected["growth_tracker"], "{at}");
            // Megatron counts on below zero; every value up to 1 means "at the next overflow".
            let tracker = expected["hysteresis_tracker"].as_i64().unwrap();
            assert_eq!(
                i64::from(scale.hysteresis_tracker()),
                tracker.max(1),
                "{at}"
            );
        }
    }
}
