//! PyTorch's `GradScaler`: scale and growth tracker after every event, bit for bit.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{outcome, scaled_by_hand, traces};
use serde::Deserialize;

use crate::{device_scale::Verdicts, with};

#[derive(Deserialize)]
struct Trace {
    config: GradScalerConfig,
    events: Vec<Event>,
    expected: Vec<Expected>,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Event {
    Step(Step),
    Set(Set),
    Resume,
}

#[derive(Deserialize)]
struct Step {
    grads: String,
    #[serde(rename = "where")]
    bad: usize,
    new_scale: Option<f64>,
}

#[derive(Deserialize)]
struct Set {
    field: String,
    value: f64,
    #[serde(default)]
    stuck: bool,
}

#[derive(Deserialize)]
struct Expected {
    stepped: Option<bool>,
    scale_hex: String,
    growth_tracker: u32,
    state_dict: Option<StateDict>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct StateDict {
    scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: u32,
    #[serde(rename = "_growth_tracker")]
    growth_tracker: u32,
}

impl Expected {
    fn scale_bits(&self) -> u32 {
        u32::from_str_radix(&self.scale_hex, 16).unwrap()
    }
}

impl Trace {
    /// The events in which ours does as PyTorch, each with what comes of it. From `"stuck": true` on it departs: an interval
    /// below the tracker stops PyTorch's growth for ever, because it compares with `==`; ours grows at the next clean step.
    fn shared(&self) -> impl Iterator<Item = (usize, (&Event, &Expected))> {
        assert_eq!(self.events.len(), self.expected.len());
        let events = self.events.iter().zip(&self.expected);
        let is_shared = |(event, _): &(&Event, _)| !matches!(event, Event::Set(set) if set.stuck);
        events.take_while(is_shared).enumerate()
    }

    fn departs(&self) -> bool {
        self.shared().count() < self.events.len()
    }
}

/// PyTorch backs off to scales that have no inverse in f32, and to zero. So does the schedule; a scaler stays above them.
fn leaves_f32(expected: &Expected) -> bool {
    let scale = f64::from(f32::from_bits(expected.scale_bits()));
    (1.0 / scale) as f32 == f32::INFINITY
}

/// What an event does to a schedule. A step is taken, or else skipped.
fn follow(schedule: LossScale, event: &Event, stepped: bool) -> LossScale {
    match event {
        Event::Step(step) => match step.new_scale {
            Some(scale) => with(schedule, "/scale", scale),
            None => schedule.adjust(outcome(!stepped)),
        },
        Event::Set(set) => {
            let place = format!("/config/{}", set.field);
            match set.field.as_str() {
                "growth_interval" => with(schedule, &place, set.value as u32),
                _ => with(schedule, &place, set.value),
            }
        }
        // Saves the state and loads it into a new value.
        Event::Resume => serde_json::from_str(&serde_json::to_string(&schedule).unwrap()).unwrap(),
    }
}

fn assert_state(schedule: &LossScale, expected: &Expected, at: &str) {
    let (scale, config) = (schedule.scale(), schedule.config());
    let tracker = schedule.growth_tracker();
    assert_eq!(scale.to_bits(), expected.scale_bits(), "{at}: {scale}");
    assert_eq!(tracker, expected.growth_tracker, "{at}");
    if let Some(state) = &expected.state_dict {
        let found = StateDict {
            scale: scale.into(),
            growth_factor: config.growth_factor,
            backoff_factor: config.backoff_factor,
            growth_interval: config.growth_interval,
            growth_tracker: tracker,
        };
        assert_eq!(found, *state, "{at}");
    }
}

/// On the host, and on the device every schedule whose scale and factors are powers of two: scale and growth tracker, as far as it
/// goes down.
#[test]
fn parity_torch_scale_schedule() {
    let device = Device::default();
    let verdicts = Verdicts::new(&device);
    for (name, trace) in traces::<Trace>("torch_scale_traces") {
        let mut schedule = trace.config.schedule().unwrap();
        let mut is_normal = true;
        for (step, (event, expected)) in trace.shared() {
            let at = format!("{name}, event {step}");
            let stepped = expected.stepped == Some(true);
            is_normal &= !leaves_normal(expected);
            if let Event::Step(step) = event {
                assert_eq!(expected.stepped, Some(step.grads == "finite"), "{at}");
                if is_normal && step.new_scale.is_none() {
                    let state = schedule.on_device();
                    assert_eq!(state.is_some(), are_powers_of_two(&schedule), "{at}");
                    if let Some(state) = state {
                        let next = verdicts.advance(state.upload(&device), !stepped).read();
                        assert_eq!(next.scale.to_bits(), expected.scale_bits(), "{at}");
                        assert_eq!(next.growth_tracker, expected.growth_tracker, "{at}");
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
    for (name, trace) in traces::<Trace>("torch_scale_traces") {
        if trace.departs() {
            seen = true;
            let mut schedule = trace.config.schedule().unwrap();
            let mut grew = false;
            for (event, expected) in trace.events.iter().zip(&trace.expected) {
                let before = schedule.clone();
                schedule = follow(schedule, event, true);
                if let Event::Step(_) = event {
                    let due = before.growth_tracker() + 1 >= before.config().growth_interval;
                    assert_eq!(schedule.scale() > before.scale(), due, "{name}");
                    grew |= schedule.scale().to_bits() != expected.scale_bits();
                }
            }
            assert!(grew, "{name}: ours grows where PyTorch is stuck");
        }
    }
    assert!(seen, "the trace of the departure is missing");
}

/// What a device can move exactly.
fn are_powers_of_two(schedule: &LossScale) -> bool {
    let config = schedule.config();
    let values = [
        schedule.scale().into(),
        config.growth_factor,
        config.backoff_factor,
    ];
    values.iter().all(|value| value.log2().fract() == 0.0)
}

/// No scope uses smaller ones, and GPUs have no smaller floats.
fn leaves_normal(expected: &Expected) -> bool {
    f32::from_bits(expected.scale_bits()) < f32::MIN_POSITIVE
}

type Two = Vec<Param<Tensor<1>>>;

/// One value of the parameter with number `bad` is not finite, if it is to be so.
fn gradients(module: &Two, step: &Step, scale: f32) -> GradientsParams {
    let mut grads = GradientsParams::new();
    for (index, param) in module.iter().enumerate() {
        let mut values = [scale, -scale, 0.5 * scale];
        if index == step.bad {
            values[1] = match step.grads.as_str() {
                "finite" => values[1],
                bad => bad.parse().unwrap(),
            };
        }
        grads.register(
            param.id,
            Tensor::<1>::from_floats(values, &Device::default()),
        );
    }
    grads
}

/// A copy: on some devices Burn's `TensorData` is the tensor's own memory, which a step may overwrite.
fn values(param: &Param<Tensor<1>>) -> Vec<f32> {
    param.val().try_to_vec_as().unwrap()
}

/// The same traces with tensors: real gradients through `unscale`, `step` and `update`.
///
/// Up to where PyTorch's scale has no inverse in f32: it goes on to zero, where it steps on infinite gradients.
#[test]
fn parity_torch_scale_through_grad_scaler() {
    let device = Device::default().autodiff();
    let param = || Param::from_tensor(Tensor::ones([3], &device));
    for (name, trace) in traces::<Trace>("torch_scale_traces") {
        let config = trace.config.with_max_consecutive_skips(None);
        let mut scaler = config.init().unwrap();
        let mut optim = SgdConfig::new().init();
        let mut module: Two = vec![param(), param()];
        for (step, (event, expected)) in trace.shared() {
            let at = format!("{name}, event {step}");
            match event {
                Event::Step(step) => {
                    let grads = gradients(&module, step, scaler.loss_scale());
                    let grads = scaled_by_hand(&scaler, grads);
                    let grads = scaler.unscale(grads, &module).unwrap();
                    let before = values(&module[0]);
                    module = scaler.step(&mut optim, 0.1, module, grads);
                    let applied = scaler.last_outcome().map(StepOutcome::is_stepped);
                    assert_eq!(applied, expected.stepped, "{at}");
                    let moved = values(&module[0]) != before;
                    assert_eq!(Some(moved), expected.stepped, "{at}");
                    match step.new_scale {
                        Some(scale) => scaler.update_to(scale).unwrap(),
                        None => scaler.update().unwrap(),
                    };
                }
                Event::Set(Set { field, value, .. }) => match field.as_str() {
                    "growth_factor" => scaler.set_growth_factor(*value).unwrap(),
                    "backoff_factor" => scaler.set_backoff_factor(*value).unwrap(),
                    "growth_interval" => scaler.set_growth_interval(*value as u32).unwrap(),
                    other => panic!("unknown field {other}"),
                },
                Event::Resume => {
                    let record = scaler.to_record().with_settings();
                    scaler = config.init().unwrap();
                    scaler.load_record(record.with_settings()).unwrap();
                }
            }
            if leaves_f32(expected) {
                assert!(scaler.loss_scale() > 0.0, "{at}");
                break;
            }
            assert_state(&scaler.schedule(), expected, &at);
        }
    }
}
