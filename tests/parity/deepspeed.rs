//! DeepSpeed's `DynamicLossScaler`: growth, both hysteresis modes and the error at the floor.

use burn_amp_tests::prelude::*;
use serde_json::Value;

use crate::{list, settings, steps, with};

/// Where DeepSpeed raises its error, the scaler ends the run.
fn ends(scale: &LossScale, overflow: bool) -> bool {
    overflow && scale.is_at_floor() && scale.config().raise_error_at_min_scale
}

/// Ours, and theirs in both kinds of traces.
const NAMES: [(&str, &str); 5] = [
    ("init_scale", "init_scale"),
    ("growth_interval", "scale_window"),
    ("min_scale", "min_scale"),
    ("raise_error_at_min_scale", "raise_error_at_min_scale"),
    ("consecutive_hysteresis", "consecutive_hysteresis"),
];

#[test]
fn parity_deepspeed() {
    for (name, trace) in traces::<Value>("deepspeed_traces") {
        let own = [("hysteresis", "delayed_shift")];
        let config = settings(&trace["config"], &[&NAMES[..], &own].concat());
        let mut scale = config.schedule().unwrap();
        for (step, (overflow, expected)) in steps(&trace).enumerate() {
            let at = format!("{name}, step {step}");
            let ends = ends(&scale, overflow);
            assert_eq!(ends, !expected["error"].is_null(), "{at}");
            if !ends {
                scale = scale.adjust(outcome(overflow));
                assert_eq!(f64::from(scale.scale()), expected["scale"], "{at}");
                assert_eq!(scale.hysteresis_tracker(), expected["hysteresis"], "{at}");
            }
        }
    }
}

/// The scale grows after `scale_window` + 1 finite steps from the start or an overflow, and after `scale_window` from then on: the
/// growth interval is one longer until the first growth. DeepSpeed counts in f64: compared as far as the scale is an f32.
#[test]
fn parity_deepspeed_dynamic() {
    'traces: for (name, trace) in traces::<Value>("deepspeed_dynamic") {
        let name = format!("{name}, {}", trace["id"]);
        let own = [
            ("growth_factor", "scale_factor"),
            ("hysteresis", "hysteresis"),
        ];
        let config = settings(&trace["params"], &[&NAMES[..], &own].concat());
        let window = config.growth_interval;
        let Ok(mut scale) = config.with_growth_interval(window + 1).schedule() else {
            // The scale starts below the floor, or is no f32.
            let is_below = config.init_scale < config.min_scale.unwrap();
            assert!(is_below || config.init_scale > f32::MAX.into());
            continue;
        };
        let mut first_growth = None;
        for (step, overflow) in list(&trace["overflow"]).iter().enumerate() {
            let at = format!("{name}, step {step}");
            let overflow = *overflow == 1;
            let ends = ends(&scale, overflow);
            assert_eq!(ends, trace["raises"]["step"] == step, "{at}");
            if ends {
                break;
            }
            let before = scale.scale();
            scale = scale.adjust(outcome(overflow));
            if overflow {
                scale = with(scale, "/config/growth_interval", window + 1);
            } else if scale.scale() > before {
                scale = with(scale, "/config/growth_interval", window);
                first_growth.get_or_insert(step);
            }
            let expected = number(&trace["scale"][step]);
            if expected as f32 == f32::INFINITY {
                continue 'traces;
            }
            assert_eq!(f64::from(scale.scale()), expected, "{at}");
            let tracker = scale.hysteresis_tracker();
            assert_eq!(tracker, trace["hysteresis"][step], "{at}");
        }
        let first_growth = first_growth.map(|step| step as u64);
        assert_eq!(first_growth, trace["first_growth_step"].as_u64(), "{name}");
    }
}
