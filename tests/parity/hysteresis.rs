//! DeepSpeed's `DynamicLossScaler`: growth, both hysteresis modes and the error at the floor; and Megatron-LM's `DynamicGradScaler`:
//! hysteresis that is refilled when the scale grows, and a floor.

use super::*;

/// Where DeepSpeed raises its error, the scaler ends the run.
fn ends(scale: &LossScale, overflow: bool) -> bool {
    overflow && scale.is_at_floor() && scale.config().raise_error_at_min_scale
}

/// Ours, and DeepSpeed's in both kinds of traces.
const NAMES: &str = "init_scale growth_interval=scale_window min_scale raise_error_at_min_scale \
    consecutive_hysteresis ";

const MEGATRON: &str = "init_scale=initial_scale growth_factor backoff_factor growth_interval \
    min_scale hysteresis";

#[test]
fn parity_deepspeed_and_megatron() {
    let deepspeed = [NAMES, "hysteresis=delayed_shift"].concat();
    for (prefix, names, field) in [
        ("deepspeed_traces", &*deepspeed, "hysteresis"),
        ("megatron_traces", MEGATRON, "hysteresis_tracker"),
    ] {
        for (name, trace) in traces::<Value>(prefix) {
            let mut scale = settings(&trace["config"], names).schedule().unwrap();
            let (overflows, all) = (list(&trace["overflow"]), list(&trace["expected"]));
            assert_eq!(overflows.len(), all.len());
            for (step, (overflow, expected)) in overflows.iter().zip(all).enumerate() {
                let (at, overflow) = (format!("{name}, step {step}"), *overflow == true);
                let ends = ends(&scale, overflow);
                assert_eq!(ends, !expected["error"].is_null(), "{at}");
                if ends {
                    continue;
                }
                scale = scale.adjust(outcome(overflow));
                assert_eq!(f64::from(scale.scale()), expected["scale"], "{at}");
                // Megatron counts on below zero; every value up to 1 means "at the next overflow".
                let tracker = expected[field].as_i64().unwrap().max(1);
                assert_eq!(i64::from(scale.hysteresis_tracker()), tracker, "{at}");
                let tracker = expected.get("growth_tracker");
                assert!(tracker.is_none_or(|tracker| *tracker == scale.growth_tracker()));
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
        let names = [NAMES, "growth_factor=scale_factor hysteresis"].concat();
        let config = settings(&trace["params"], &names);
        let window = config.growth_interval;
        let Ok(mut scale) = config.with_growth_interval(window + 1).schedule() else {
            // The scale starts below the floor, or is no f32.
            let is_below = config.init_scale < config.min_scale.unwrap();
            assert!(is_below || config.init_scale > f64::from(f32::MAX));
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
