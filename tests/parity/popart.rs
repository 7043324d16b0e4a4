//! PopART's automatic loss scaling, by the share of values near the top of f16.

use serde::Deserialize;
use serde_json::Value;

use burn_amp_tests::prelude::*;

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Trace {
    Trace(Steps),
    Histogram(Histogram),
}

#[derive(Deserialize)]
struct Steps {
    id: String,
    params: Value,
    count_below: Vec<Vec<u64>>,
    count_above: Vec<Vec<u64>>,
    scale_used: Vec<Value>,
    scale_after: Vec<Value>,
}

#[derive(Deserialize)]
struct Histogram {
    id: String,
    params: Value,
    scaled_grad: Vec<Value>,
    count_below: u64,
    count_above: u64,
}

fn float(value: &Value) -> f32 {
    number(value) as f32
}

/// Without bounds PopART doubles to infinity, where ours stays: compared as far as the scale is finite.
#[test]
fn parity_popart_als_schedule() {
    for (name, trace) in &traces::<Trace>("popart_als") {
        let Trace::Trace(trace) = trace else { continue };
        let config = GradScalerConfig::new().with_schedule(Schedule::NearTop {
            edge: 0.125,
            share: number(&trace.params["threshold"]),
            period: number(&trace.params["update_period"]) as u32,
        });
        let config = config.with_init_scale(number(&trace.params["init_loss_scale"]));
        let mut scale = config.schedule().unwrap();
        let scales = trace.scale_used.iter().zip(&trace.scale_after);
        for (step, (used, after)) in scales.enumerate() {
            let at = format!("{name}, {}, step {step}", trace.id);
            assert_eq!(scale.scale().to_bits(), float(used).to_bits(), "{at}");
            if float(after).is_infinite() {
                break;
            }
            let above: u64 = trace.count_above[step].iter().sum();
            let below: u64 = trace.count_below[step].iter().sum();
            let status = GradientStatus::default().with_values(below + above, above);
            scale = scale.adjust((StepOutcome::Stepped, &status));
            assert_eq!(scale.scale().to_bits(), float(after).to_bits(), "{at}");
        }
    }
}

/// Counted by the pass that unscales and tests, at any loss scale.
#[test]
fn parity_popart_als_histogram() {
    let device = Device::default();
    let mut seen = 0;
    for (name, trace) in &traces::<Trace>("popart_als") {
        let Trace::Histogram(trace) = trace else {
            continue;
        };
        for init_scale in [1.0, 1024.0, 65536.0] {
            let schedule = Schedule::NearTop {
                edge: number(&trace.params["bin_edge_location"]),
                share: 1e-7,
                period: 1,
            };
            let config = GradScalerConfig::new().with_schedule(schedule);
            let scaler = config.with_init_scale(init_scale).init().unwrap();
            let scaled: Vec<f32> = trace.scaled_grad.iter().map(float).collect();
            let grad = Tensor::<1>::from_data(scaled.as_slice(), &device);
            let (grads, _) = crate::unscaled(&scaler, grad);
            let at = format!("{name}, {}, loss scale {init_scale}", trace.id);
            let above = grads.status().above();
            let below = grads.status().elements() - above;
            let expected = (trace.count_below, trace.count_above);
            assert_eq!((below, above), expected, "{at}");
            seen += 1;
        }
    }
    assert!(seen > 0, "no histogram");
}
