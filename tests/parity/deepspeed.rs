//! DeepSpeed's `DynamicLossScaler`, growth switched off: both hysteresis modes and the error at the floor.

use burn_amp::{GradScalerConfig, StepOutcome};
use burn_amp_tests::reference;
use serde::Deserialize;

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
