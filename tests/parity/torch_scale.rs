//! PyTorch's traces on the device, and with tensors through a `GradScaler`.

use burn_amp_core::internal::fused::on_device;
use burn_amp_tests::trial::ByHand;

use super::*;
use crate::families::table_of;
use crate::schedule::advancing;
use crate::table::{Event, check};

/// A device moves every schedule whose scale and factors are powers of two.
#[test]
fn parity_torch_scale_on_the_device() {
    let advance = advancing();
    for (name, trace) in traces::<Value>("torch_scale_traces") {
        let (mut schedule, rows) = table_of("torch_scale_traces", &trace);
        for (event, _) in &rows {
            let before = schedule.clone();
            schedule = event.apply(schedule);
            // No scope uses smaller scales than normal ones, and GPUs have no smaller floats.
            let is_normal = before.scale().is_normal() && schedule.scale().is_normal();
            let Event::Seen(evidence) = event else {
                continue;
            };
            if is_normal {
                let (config, state) = (before.config(), on_device(&before));
                let factors = [config.growth_factor, config.backoff_factor];
                let mut exact = factors.into_iter().chain([before.scale().into()]);
                let is_exact = exact.all(|value| value.log2().fract() == 0.0);
                assert_eq!(state.is_some(), is_exact, "{name}, {before:?}");
                let Some(state) = state else { continue };
                let state = state.upload(&Device::default());
                let next = advance(state, *evidence == Evidence::Overflow).read();
                let found = (next.scale, next.growth_tracker);
                let right = (schedule.scale(), schedule.growth_tracker());
                assert_eq!(found, right, "{name}, {before:?}");
            }
        }
    }
}

/// The gradients of an event. One value of one of two parameters is not finite, if the event says so.
fn gradients(module: &[Param<Tensor<1>>; 2], event: &Value, scale: f32) -> GradientsParams {
    let mut grads = GradientsParams::new();
    for (index, param) in module.iter().enumerate() {
        let mut values = [scale, -scale, 0.5 * scale];
        let grad = event["grads"].as_str().unwrap();
        if event["where"] == index && grad != "finite" {
            values[1] = grad.parse().unwrap();
        }
        let grad = Tensor::<1>::from_floats(values, &Device::default());
        grads.register(param.id, grad);
    }
    grads
}

/// Up to where PyTorch's scale has no inverse in f32: it goes on to zero, where it steps on infinite gradients.
#[test]
fn parity_torch_scale_through_grad_scaler() {
    for (name, trace) in traces::<Value>("torch_scale_traces") {
        let (start, rows) = table_of("torch_scale_traces", &trace);
        let config = start.config().with_max_consecutive_skips(None);
        let module = [(); 2].map(|()| Param::from_tensor(Tensor::ones([3], &device())));
        let mut run = ByHand::of(module, config);
        for (event, row) in list(&trace["events"]).iter().zip(&rows) {
            let at = format!("{name}, {event}");
            match event["op"].as_str().unwrap() {
                "step" => {
                    let grads = run.unscale(gradients(&run.model, event, run.scale()));
                    let before = numbers(&run.model);
                    run.take(grads).unwrap();
                    let stepped = event["grads"] == "finite";
                    assert_eq!(run.outcome().unwrap().is_stepped(), stepped, "{at}");
                    assert_eq!(numbers(&run.model) != before, stepped, "{at}");
                    match event["new_scale"].as_f64() {
                        Some(scale) => run.scaler.update_to(scale).unwrap(),
                        None => run.scaler.update().unwrap(),
                    };
                }
                "set" => {
                    let (field, value) = (event["field"].as_str(), number(&event["value"]));
                    set_field(&mut run.scaler, field.unwrap(), value).unwrap();
                }
                _ => {
                    let record = run.scaler.to_record().with_settings();
                    run.scaler = GradScaler::new(config).unwrap();
                    run.scaler.load_record(record).unwrap();
                }
            }
            // PyTorch backs off to scales that have no inverse in f32, and to zero. So does the schedule; a scaler stays above them.
            if (1.0 / row.1[0].1) as f32 == f32::INFINITY {
                assert!(run.scale() > 0.0, "{at}");
                break;
            }
            let schedule = run.scaler.schedule();
            check(row, &schedule, &schedule, 0.0);
        }
    }
}
