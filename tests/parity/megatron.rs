//! Megatron-LM's `DynamicGradScaler`: hysteresis that is refilled when the scale grows, and a floor.

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
    initial_scale: f64,
    min_scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: u32,
    hysteresis: u32,
}

#[derive(Deserialize)]
struct Expected {
    scale: f32,
    growth_tracker: u32,
    hysteresis_tracker: i64,
}

#[test]
fn parity_megatron() {
    for (name, file) in reference::<File>("megatron_traces") {
        for (index, trace) in file.traces.iter().enumerate() {
            let config = &trace.config;
            let mut scale = GradScalerConfig {
                init_scale: config.initial_scale,
                growth_factor: config.growth_factor,
                backoff_factor: config.backoff_factor,
                growth_interval: config.growth_interval,
                min_scale: Some(config.min_scale),
                max_scale: None,
                hysteresis: config.hysteresis,
                ..Default::default()
            }
            .schedule()
            .unwrap();
            assert_eq!(trace.overflow.len(), trace.expected.len());
            for (step, (overflow, expected)) in
                trace.overflow.iter().zip(&trace.expected).enumerate()
            {
                let at = format!("{name}, trace {index}, step {step}");
                scale = scale.adjust(match overflow {
                    true => StepOutcome::Skipped,
                    false => StepOutcome::Stepped,
                });
                assert_eq!(scale.scale().to_bits(), expected.scale.to_bits(), "{at}");
                assert_eq!(scale.growth_tracker(), expected.growth_tracker, "{at}");
                // Megatron counts on below zero; every value up to 1 means "at the next overflow".
                let tracker = i64::from(scale.hysteresis_tracker());
                assert_eq!(tracker, expected.hysteresis_tracker.max(1), "{at}");
            }
        }
    }
}
