//! PyTorch's `GradScaler`: scale and growth tracker after every event, bit for bit.

use burn_amp_tests::trial::ByHand;

use super::{device_scale::advancing, *};

/// Settings, and the events in which ours does as PyTorch, each with what comes of it. From `"stuck": true` on it departs: an
/// interval below the tracker stops PyTorch's growth for ever, because it compares with `==`; ours grows at the next finite step.
fn shared(trace: &Value) -> (GradScalerConfig, Vec<(&Value, &Value)>) {
    let config = serde_json::from_value(trace["config"].clone());
    let mut events = both(trace);
    let departure = (events.iter()).position(|(event, _)| event["stuck"] == true);
    events.truncate(departure.unwrap_or(events.len()));
    (config.unwrap(), events)
}

/// All events, each with what comes of it.
fn both(trace: &Value) -> Vec<(&Value, &Value)> {
    let [events, expected] = ["events", "expected"].map(|field| list(&trace[field]));
    assert_eq!(events.len(), expected.len());
    events.iter().zip(expected).collect()
}

fn scale_bits(expected: &Value) -> u32 {
    u32::from_str_radix(expected["scale_hex"].as_str().unwrap(), 16).unwrap()
}

/// What an event does to a schedule. A step is taken, or else skipped.
fn follow(schedule: LossScale, event: &Value, stepped: bool) -> LossScale {
    match event["op"].as_str().unwrap() {
        "step" => match event["new_scale"].as_f64() {
            Some(scale) => with(schedule, "/scale", scale),
            None => schedule.adjust(outcome(!stepped)),
        },
        "set" => match setting(event) {
            ("growth_interval", steps) => with(schedule, "/config/growth_interval", steps as u32),
            (field, value) => with(schedule, &format!("/config/{field}"), value),
        },
        // Saves the state and loads it into a new value.
        "resume" => serde_json::from_str(&serde_json::to_string(&schedule).unwrap()).unwrap(),
        other => panic!("unknown event {other}"),
    }
}

/// The setting that an event changes, and to what.
fn setting(event: &Value) -> (&str, f64) {
    let (field, value) = (event["field"].as_str(), event["value"].as_f64());
    (field.unwrap(), value.unwrap())
}

fn assert_state(schedule: &LossScale, expected: &Value, at: &str) {
    let (scale, config) = (schedule.scale(), schedule.config());
    let tracker = schedule.growth_tracker();
    assert_eq!(scale.to_bits(), scale_bits(expected), "{at}: {scale}");
    assert_eq!(tracker, expected["growth_tracker"], "{at}");
    let saved = &expected["state_dict"];
    for (field, found) in [
        ("scale", scale.into()),
        ("growth_factor", config.growth_factor),
        ("backoff_factor", config.backoff_factor),
        ("growth_interval", config.growth_interval.into()),
        ("_growth_tracker", tracker.into()),
    ] {
        let is_same = saved.is_null() || saved[field] == found;
        assert!(is_same, "{at}: {field} is {found}");
    }
}

/// On the host, and on the device every schedule whose scale and factors are powers of two: scale and growth tracker, as far as it
/// goes down.
#[test]
fn parity_torch_scale_schedule() {
    let advance = advancing();
    for (name, trace) in traces::<Value>("torch_scale_traces") {
        let (config, events) = shared(&trace);
        let mut schedule = config.schedule().unwrap();
        // No scope uses smaller ones than normal, and GPUs have no smaller floats.
        let mut is_normal = true;
        for (step, (event, expected)) in events.into_iter().enumerate() {
            let at = format!("{name}, event {step}");
            let stepped = expected["stepped"] == true;
            is_normal &= f32::from_bits(scale_bits(expected)) >= f32::MIN_POSITIVE;
            if event["op"] == "step" {
                assert_eq!(expected["stepped"], event["grads"] == "finite", "{at}");
                if is_normal && event["new_scale"].is_null() {
                    let state = schedule.on_device();
                    assert_eq!(state.is_some(), are_powers_of_two(&schedule), "{at}");
                    if let Some(state) = state {
                        let next = advance(state.upload(&Device::default()), !stepped).read();
                        assert_eq!(next.scale.to_bits(), scale_bits(expected), "{at}");
                        assert_eq!(next.growth_tracker, expected["growth_tracker"], "{at}");
                    }
                }
            }
            schedule = follow(schedule, event, stepped);
            assert_state(&schedule, expected, &at);
        }
    }
}

#[test]
fn parity_torch_scale_stuck_interval_grows() {
    let mut seen = false;
    for (name, trace) in traces::<Value>("torch_scale_traces") {
        let (config, events) = shared(&trace);
        if events.len() == both(&trace).len() {
            continue;
        }
        seen = true;
        let (mut schedule, mut grew) = (config.schedule().unwrap(), false);
        for (event, expected) in both(&trace) {
            let before = schedule.clone();
            schedule = follow(schedule, event, true);
            if event["op"] == "step" {
                let due = before.growth_tracker() + 1 >= before.config().growth_interval;
                assert_eq!(schedule.scale() > before.scale(), due, "{name}");
                grew |= schedule.scale().to_bits() != scale_bits(expected);
            }
        }
        assert!(grew, "{name}: ours grows where PyTorch is stuck");
    }
    assert!(seen, "the trace of the departure is missing");
}

/// What a device can move exactly.
fn are_powers_of_two(schedule: &LossScale) -> bool {
    let (config, scale) = (schedule.config(), schedule.scale().into());
    let values = [scale, config.growth_factor, config.backoff_factor];
    values.iter().all(|value| value.log2().fract() == 0.0)
}

/// One value of the parameter with number `bad` is not finite, if it is to be so.
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

/// The same traces with tensors: real gradients through `unscale`, `step` and `update`.
///
/// Up to where PyTorch's scale has no inverse in f32: it goes on to zero, where it steps on infinite gradients.
#[test]
fn parity_torch_scale_through_grad_scaler() {
    for (name, trace) in traces::<Value>("torch_scale_traces") {
        let (config, events) = shared(&trace);
        let config = config.with_max_consecutive_skips(None);
        let module = [(); 2].map(|()| Param::from_tensor(Tensor::ones([3], &device())));
        let mut run = ByHand::of(module, config);
        for (step, (event, expected)) in events.into_iter().enumerate() {
            let at = format!("{name}, event {step}");
            match event["op"].as_str().unwrap() {
                "step" => {
                    let grads = run.unscale(gradients(&run.model, event, run.scale()));
                    let before = numbers(&run.model);
                    run.take(grads).unwrap();
                    let stepped = &expected["stepped"];
                    assert_eq!(run.outcome().unwrap().is_stepped(), *stepped, "{at}");
                    assert_eq!(numbers(&run.model) != before, *stepped, "{at}");
                    match event["new_scale"].as_f64() {
                        Some(scale) => run.scaler.update_to(scale).unwrap(),
                        None => run.scaler.update().unwrap(),
                    };
                }
                "set" => {
                    let (field, value) = setting(event);
                    set_field(&mut run.scaler, field, value).unwrap();
                }
                _ => {
                    let record = run.scaler.to_record().with_settings();
                    run.scaler = config.init().unwrap();
                    run.scaler.load_record(record.with_settings()).unwrap();
                }
            }
            // PyTorch backs off to scales that have no inverse in f32, and to zero. So does the schedule; a scaler stays above them.
            let scale = f64::from(f32::from_bits(scale_bits(expected)));
            if (1.0 / scale) as f32 == f32::INFINITY {
                assert!(run.scale() > 0.0, "{at}");
                break;
            }
            assert_state(&run.scaler.schedule(), expected, &at);
        }
    }
}
