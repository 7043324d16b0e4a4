//! DeepSpeed's `DynamicLossScaler`: growth, both hysteresis modes and the error at the floor.

use burn_amp::{GradScalerConfig, LossScale, StepOutcome};
use burn_amp_tests::reference;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct File {
    traces: Vec<Trace>,
}

#[derive(Deserialize)]
struct Trace {
    config: Config,
    overflow: Vec<bool>,
    expected: Vec<Expected>,
}

#[derive(Deserialize)]
struct Config {
    init_scale: f64,
    scale_window: u32,
    min_scale: f64,
    delayed_shift: u32,
    consecutive_hysteresis: bool,
    raise_error_at_min_scale: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Expected {
    State { scale: f32, hysteresis: u32 },
    Error { error: String },
}

#[test]
fn parity_deepspeed() {
    let mut errors = 0;
    for (name, file) in reference::<File>("deepspeed_traces") {
        for (index, trace) in file.traces.iter().enumerate() {
            let config = &trace.config;
            let mut scale = GradScalerConfig {
                init_scale: config.init_scale,
                growth_interval: config.scale_window,
                min_scale: Some(config.min_scale),
                raise_error_at_min_scale: config.raise_error_at_min_scale,
                hysteresis: config.delayed_shift,
                consecutive_hysteresis: config.consecutive_hysteresis,
                ..Default::default()
            }
            .schedule()
            .unwrap();
            assert_eq!(trace.overflow.len(), trace.expected.len());
            for (step, (overflow, expected)) in
                trace.overflow.iter().zip(&trace.expected).enumerate()
            {
                let at = format!("{name}, trace {index}, step {step}");
                // The scaler ends the run where DeepSpeed raises its error, and nowhere else.
                let ends = *overflow && scale.is_at_floor() && config.raise_error_at_min_scale;
                match expected {
                    Expected::State {
                        scale: expected,
                        hysteresis,
                    } => {
                        assert!(!ends, "{at}: no error expected");
                        scale = scale.adjust(match overflow {
                            true => StepOutcome::Skipped,
                            false => StepOutcome::Stepped,
                        });
                        assert_eq!(scale.scale().to_bits(), expected.to_bits(), "{at}");
                        assert_eq!(scale.hysteresis_tracker(), *hysteresis, "{at}");
                    }
                    Expected::Error { error } => {
                        assert!(ends, "{at}: {error}");
                        errors += 1;
                    }
                }
            }
        }
    }
    assert!(errors > 0, "no trace reaches the error at the floor");
}

#[derive(Deserialize)]
struct Dynamic {
    traces: Vec<DynamicTrace>,
}

#[derive(Deserialize)]
struct DynamicTrace {
    id: String,
    params: Params,
    overflow: Vec<u8>,
    raises: Option<Raises>,
    /// After each step; text where it is infinite.
    scale: Vec<Value>,
    hysteresis: Vec<u32>,
}

#[derive(Deserialize)]
struct Params {
    init_scale: Value,
    scale_window: u32,
    scale_factor: f64,
    min_scale: f64,
    hysteresis: u32,
    consecutive_hysteresis: bool,
    raise_error_at_min_scale: bool,
}

#[derive(Deserialize)]
struct Raises {
    step: usize,
}

fn with_growth_interval(scale: LossScale, interval: u32) -> LossScale {
    let mut state = serde_json::to_value(scale).unwrap();
    state["config"]["growth_interval"] = interval.into();
    serde_json::from_value(state).unwrap()
}

/// The scale grows after `scale_window` + 1 clean steps from the start or an overflow, and after `scale_window` from then on: the
/// growth interval is one longer until the first growth. DeepSpeed counts in f64: compared as far as the scale is an f32.
#[test]
fn parity_deepspeed_dynamic() {
    let (mut growths, mut errors, mut refused) = (0, 0, 0);
    for (name, file) in reference::<Dynamic>("deepspeed_dynamic") {
        for trace in &file.traces {
            let params = &trace.params;
            let config = GradScalerConfig {
                init_scale: params.init_scale.as_f64().unwrap_or(f64::INFINITY),
                growth_factor: params.scale_factor,
                growth_interval: params.scale_window + 1,
                min_scale: Some(params.min_scale),
                raise_error_at_min_scale: params.raise_error_at_min_scale,
                hysteresis: params.hysteresis,
                consecutive_hysteresis: params.consecutive_hysteresis,
                ..Default::default()
            };
            let Ok(mut scale) = config.schedule() else {
                // The scale starts below the floor, or is no f32.
                assert!(
                    config.init_scale < params.min_scale || config.init_scale > f32::MAX.into()
                );
                refused += 1;
                continue;
            };
            for (step, overflow) in trace.overflow.iter().enumerate() {
                let at = format!("{name}, {}, step {step}", trace.id);
                let overflow = *overflow == 1;
                let ends = overflow && scale.is_at_floor() && params.raise_error_at_min_scale;
                let raises = trace.raises.as_ref().is_some_and(|at| at.step == step);
                assert_eq!(ends, raises, "{at}");
                if ends {
                    errors += 1;
                    break;
                }
                let before = scale.scale();
                scale = scale.adjust(match overflow {
                    true => StepOutcome::Skipped,
                    false => StepOutcome::Stepped,
                });
                let window = params.scale_window;
                if overflow {
                    scale = with_growth_interval(scale, window + 1);
                } else if scale.scale() > before {
                    scale = with_growth_interval(scale, window);
                    growths += 1;
                }
                let expected = trace.scale[step].as_f64().unwrap_or(f64::INFINITY);
                if expected as f32 == f32::INFINITY {
                    break;
                }
                assert_eq!(f64::from(scale.scale()), expected, "{at}");
                assert_eq!(scale.hysteresis_tracker(), trace.hysteresis[step], "{at}");
            }
        }
    }
    assert!(growths > 300, "only {growths} growths");
    assert!(
        errors >= 4 && refused <= 4,
        "{errors} errors, {refused} refused"
    );
}
