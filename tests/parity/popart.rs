//! PopART's automatic loss scaling, by the share of values near the top of f16.

use super::*;

fn float(value: &Value) -> f32 {
    number(value) as f32
}

/// The traces of one kind, each with its place for messages.
fn of_kind(kind: &str) -> Vec<(String, Value)> {
    let mut found = traces::<Value>("popart_als");
    found.retain(|(_, trace)| trace["kind"] == kind);
    assert!(!found.is_empty(), "no {kind}");
    let named = |(name, trace): (String, Value)| (format!("{name}, {}", trace["id"]), trace);
    found.into_iter().map(named).collect()
}

/// Without bounds PopART doubles to infinity, where ours stays: compared as far as the scale is finite.
#[test]
fn parity_popart_als_schedule() {
    for (name, trace) in of_kind("trace") {
        let params = &trace["params"];
        let config = GradScalerConfig::new().with_schedule(Schedule::NearTop {
            edge: 0.125,
            share: number(&params["threshold"]),
            period: number(&params["update_period"]) as u32,
        });
        let config = config.with_init_scale(number(&params["init_loss_scale"]));
        let mut scale = config.schedule().unwrap();
        for (step, after) in list(&trace["scale_after"]).iter().enumerate() {
            let (at, used) = (format!("{name}, step {step}"), &trace["scale_used"][step]);
            assert_eq!(scale.scale().to_bits(), float(used).to_bits(), "{at}");
            if float(after).is_infinite() {
                break;
            }
            let [below, above] = ["count_below", "count_above"].map(|counts| {
                let counts = list(&trace[counts][step]).iter();
                counts.map(|count| count.as_u64().unwrap()).sum::<u64>()
            });
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
    for (name, trace) in of_kind("histogram") {
        for init_scale in [1.0, 1024.0, 65536.0] {
            let config = at_scale(init_scale).with_schedule(Schedule::NearTop {
                edge: number(&trace["params"]["bin_edge_location"]),
                share: 1e-7,
                period: 1,
            });
            let scaled: Vec<f32> = list(&trace["scaled_grad"]).iter().map(float).collect();
            let grad = Tensor::<1>::from_data(scaled.as_slice(), &device);
            let (grads, _) = crate::unscaled(&config.init().unwrap(), grad);
            let above = grads.status().above();
            let below = grads.status().elements() - above;
            let at = format!("{name}, loss scale {init_scale}");
            assert_eq!(below, trace["count_below"], "{at}");
            assert_eq!(above, trace["count_above"], "{at}");
        }
    }
}
