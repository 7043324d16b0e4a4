//! PopART's automatic loss scaling, by the share of values near the top of f16.

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use burn_amp::{GradScalerConfig, GradientStatus, Schedule, StepOutcome};
use burn_amp_tests::{reference, scaled_by_hand};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct File {
    traces: Vec<Trace>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Trace {
    Trace {
        id: String,
        params: Params,
        count_below: Vec<Vec<u64>>,
        count_above: Vec<Vec<u64>>,
        scale_used: Vec<Value>,
        scale_after: Vec<Value>,
    },
    Histogram {
        id: String,
        params: Edge,
        scaled_grad: Vec<Value>,
        count_below: u64,
        count_above: u64,
    },
}

#[derive(Deserialize)]
struct Params {
    init_loss_scale: f64,
    threshold: f64,
    update_period: u32,
}

#[derive(Deserialize)]
struct Edge {
    bin_edge_location: f64,
}

/// JSON has no infinity.
fn number(value: &Value) -> f32 {
    match value {
        Value::String(text) => text.parse().unwrap(),
        value => value.as_f64().unwrap() as f32,
    }
}

/// Without bounds PopART doubles to infinity, where ours stays: compared as far as the scale is finite.
#[test]
fn parity_popart_als_schedule() {
    let (mut zeros, mut infinities) = (0, 0);
    for (name, file) in reference::<File>("popart_als") {
        for trace in &file.traces {
            let Trace::Trace {
                id,
                params,
                count_below,
                count_above,
                scale_used,
                scale_after,
            } = trace
            else {
                continue;
            };
            let mut scale = GradScalerConfig {
                init_scale: params.init_loss_scale,
                schedule: Schedule::NearTop {
                    edge: 0.125,
                    share: params.threshold,
                    period: params.update_period,
                },
                ..Default::default()
            }
            .schedule()
            .unwrap();
            for (step, (used, after)) in scale_used.iter().zip(scale_after).enumerate() {
                let at = format!("{name}, {id}, step {step}");
                assert_eq!(scale.scale().to_bits(), number(used).to_bits(), "{at}");
                if number(after).is_infinite() {
                    infinities += 1;
                    break;
                }
                let above: u64 = count_above[step].iter().sum();
                let below: u64 = count_below[step].iter().sum();
                let status = GradientStatus::default().with_values(below + above, above);
                scale = scale.adjust((StepOutcome::Stepped, &status));
                assert_eq!(scale.scale().to_bits(), number(after).to_bits(), "{at}");
                zeros += usize::from(scale.scale() == 0.0);
            }
        }
    }
    assert!(zeros > 0 && infinities > 0, "{zeros}, {infinities}");
}

#[derive(Module, Debug)]
struct One {
    weight: Param<Tensor<1>>,
}

/// Counted by the pass that unscales and tests, at any loss scale.
#[test]
fn parity_popart_als_histogram() {
    let device = Device::default();
    let mut seen = 0;
    for (name, file) in reference::<File>("popart_als") {
        for trace in &file.traces {
            let Trace::Histogram {
                id,
                params,
                scaled_grad,
                count_below,
                count_above,
            } = trace
            else {
                continue;
            };
            for init_scale in [1.0, 1024.0, 65536.0] {
                let schedule = Schedule::NearTop {
                    edge: params.bin_edge_location,
                    share: 1e-7,
                    period: 1,
                };
                let config = GradScalerConfig::new().with_schedule(schedule);
                let scaler = config.with_init_scale(init_scale).init().unwrap();
                let scaled: Vec<f32> = scaled_grad.iter().map(number).collect();
                let weight = Tensor::<1>::zeros([scaled.len()], &device);
                let model = One {
                    weight: Param::from_tensor(weight),
                };
                let mut grads = GradientsParams::new();
                let grad = Tensor::<1>::from_data(scaled.as_slice(), &device);
                grads.register(model.weight.id, grad);
                let grads = scaler.unscale(scaled_by_hand(&scaler, grads), &model);
                let at = format!("{name}, {id}, loss scale {init_scale}");
                let status = grads.status();
                assert_eq!(status.above(), *count_above, "{at}");
                assert_eq!(status.elements() - status.above(), *count_below, "{at}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "no histogram");
}
