//! PyTorch's `GradScaler`: scale and growth tracker after every event, bit for bit.

use burn::{
    module::{Module, Param},
    optim::{GradientsParams, SgdConfig},
    tensor::{Device, Tensor},
};
use burn_amp::{GradScalerConfig, LossScale, StepOutcome};
use burn_amp_tests::{reference, scaled_by_hand};

use crate::device_scale::Verdicts;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    traces: Vec<Trace>,
}

#[derive(Deserialize)]
struct Trace {
    config: Config,
    events: Vec<Event>,
    expected: Vec<Expected>,
}

#[derive(Deserialize)]
struct Config {
    init_scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: u32,
}

impl Config {
    fn settings(&self) -> GradScalerConfig {
        GradScalerConfig {
            init_scale: self.init_scale,
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            growth_interval: self.growth_interval,
            max_consecutive_skips: None,
            ..Default::default()
        }
    }

    fn schedule(&self) -> LossScale {
        self.settings().schedule().unwrap()
    }
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Event {
    Step {
        grads: String,
        #[serde(rename = "where")]
        bad: usize,
        new_scale: Option<f64>,
    },
    Set {
        field: String,
        value: f64,
        #[serde(default)]
        stuck: bool,
    },
    Resume,
}

#[derive(Deserialize)]
struct Expected {
    stepped: Option<bool>,
    scale_hex: String,
    growth_tracker: u32,
    state_dict: Option<StateDict>,
}

#[derive(Deserialize)]
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

/// The departure from PyTorch that the trace with `"stuck": true` shows: an interval below the tracker stops its
/// growth for ever, because it compares with `==`; ours grows at the next clean step.
fn departs(trace: &Trace) -> bool {
    let stuck = |event: &Event| matches!(event, Event::Set { stuck: true, .. });
    trace.events.iter().any(stuck)
}

/// PyTorch backs off to scales that have no inverse in f32, and to zero. So does the schedule; a scaler stays above them.
fn leaves_f32(expected: &Expected) -> bool {
    let scale = f64::from(f32::from_bits(expected.scale_bits()));
    (1.0 / scale) as f32 == f32::INFINITY
}

fn set(schedule: LossScale, field: &str, value: f64) -> LossScale {
    let mut state = serde_json::to_value(schedule).unwrap();
    state["config"][field] = match field {
        "growth_factor" | "backoff_factor" => value.into(),
        "growth_interval" => (value as u32).into(),
        other => panic!("unknown field {other}"),
    };
    serde_json::from_value(state).unwrap()
}

fn with_scale(schedule: LossScale, scale: f64) -> LossScale {
    let mut state = serde_json::to_value(schedule).unwrap();
    state["scale"] = scale.into();
    serde_json::from_value(state).unwrap()
}

/// Saves the state and loads it into a new value.
fn resume(schedule: &LossScale) -> LossScale {
    serde_json::from_str(&serde_json::to_string(schedule).unwrap()).unwrap()
}

fn assert_state(schedule: &LossScale, expected: &Expected, at: &str) {
    let scale = schedule.scale();
    assert_eq!(
        scale.to_bits(),
        expected.scale_bits(),
        "{at}: scale {scale}"
    );
    assert_eq!(schedule.growth_tracker(), expected.growth_tracker, "{at}");
    if let Some(state) = &expected.state_dict {
        assert_eq!(f64::from(scale), state.scale, "{at}");
        assert_eq!(schedule.config().growth_factor, state.growth_factor, "{at}");
        assert_eq!(
            schedule.config().backoff_factor,
            state.backoff_factor,
            "{at}"
        );
        assert_eq!(
            schedule.config().growth_interval,
            state.growth_interval,
            "{at}"
        );
        assert_eq!(schedule.growth_tracker(), state.growth_tracker, "{at}");
    }
}

#[test]
fn parity_torch_scale_schedule() {
    for (name, file) in reference::<File>("torch_scale_traces") {
        let mut stuck = 0;
        for (index, trace) in file.traces.iter().enumerate() {
            if departs(trace) {
                stuck += 1;
                continue;
            }
            let mut schedule = trace.config.schedule();
            assert_eq!(trace.events.len(), trace.expected.len());
            for (step, (event, expected)) in trace.events.iter().zip(&trace.expected).enumerate() {
                let at = format!("{name}, trace {index}, event {step}");
                match event {
                    Event::Step {
                        grads, new_scale, ..
                    } => {
                        let stepped = expected.stepped.unwrap();
                        assert_eq!(stepped, grads == "finite", "{at}");
                        schedule = match new_scale {
                            Some(scale) => with_scale(schedule, *scale),
                            None if stepped => schedule.adjust(StepOutcome::Stepped),
                            None => schedule.adjust(StepOutcome::Skipped),
                        };
                    }
                    Event::Set { field, value, .. } => schedule = set(schedule, field, *value),
                    Event::Resume => schedule = resume(&schedule),
                }
                assert_state(&schedule, expected, &at);
            }
        }
        assert!(
            stuck <= 1,
            "{name}: {stuck} traces depart, but only one is known to"
        );
    }
}

#[test]
fn parity_torch_scale_stuck_interval_grows() {
    let mut seen = false;
    for (name, file) in reference::<File>("torch_scale_traces") {
        for trace in file.traces.iter().filter(|trace| departs(trace)) {
            seen = true;
            let mut schedule = trace.config.schedule();
            let mut grew = false;
            for (event, expected) in trace.events.iter().zip(&trace.expected) {
                match event {
                    Event::Step { .. } => {
                        let (before, tracker) = (schedule.scale(), schedule.growth_tracker());
                        let due = tracker + 1 >= schedule.config().growth_interval;
                        schedule = schedule.adjust(StepOutcome::Stepped);
                        assert_eq!(schedule.scale() > before, due, "{name}");
                        grew |= schedule.scale().to_bits() != expected.scale_bits();
                    }
                    Event::Set { field, value, .. } => schedule = set(schedule, field, *value),
                    Event::Resume => schedule = resume(&schedule),
                }
            }
            assert!(
                grew,
                "{name}: ours should have grown where PyTorch is stuck"
            );
        }
    }
    assert!(seen, "the trace of the departure is missing");
}

/// The same on the device: scale and growth tracker, as far as it goes down.
#[test]
fn parity_torch_scale_on_the_device() {
    let mut steps = 0;
    let device = Device::default();
    let verdicts = Verdicts::new(&device);
    for (name, file) in reference::<File>("torch_scale_traces") {
        for (index, trace) in file.traces.iter().enumerate() {
            let mut schedule = trace.config.schedule();
            for (step, (event, expected)) in trace.events.iter().zip(&trace.expected).enumerate() {
                let at = format!("{name}, trace {index}, event {step}");
                if departs(trace) || leaves_normal(expected) {
                    break;
                }
                match event {
                    Event::Step {
                        new_scale: Some(scale),
                        ..
                    } => schedule = with_scale(schedule, *scale),
                    Event::Step { .. } => {
                        let stepped = expected.stepped.unwrap();
                        if let Some(state) = schedule.on_device() {
                            let next = verdicts.advance(state.upload(&device), !stepped).read();
                            assert_eq!(next.scale.to_bits(), expected.scale_bits(), "{at}");
                            assert_eq!(next.growth_tracker, expected.growth_tracker, "{at}");
                            steps += 1;
                        }
                        schedule = schedule.adjust(match stepped {
                            true => StepOutcome::Stepped,
                            false => StepOutcome::Skipped,
                        });
                    }
                    Event::Set { field, value, .. } => schedule = set(schedule, field, *value),
                    Event::Resume => schedule = resume(&schedule),
                }
            }
        }
    }
    assert!(steps > 500, "{steps}");
}

/// No scope uses smaller ones, and GPUs have no smaller floats.
fn leaves_normal(expected: &Expected) -> bool {
    f32::from_bits(expected.scale_bits()) < f32::MIN_POSITIVE
}

#[derive(Module, Debug)]
struct Two {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
}

impl Two {
    fn new(device: &Device) -> Self {
        let param = || Param::from_tensor(Tensor::ones([3], device));
        Self {
            first: param(),
            second: param(),
        }
    }

    fn gradients(&self, kind: &str, bad: usize, scale: f32, device: &Device) -> GradientsParams {
        let mut grads = GradientsParams::new();
        for (index, id) in [self.first.id, self.second.id].into_iter().enumerate() {
            let mut values = [scale, -scale, 0.5 * scale];
            if index == bad {
                values[1] = match kind {
                    "finite" => values[1],
                    "inf" => f32::INFINITY,
                    "-inf" => f32::NEG_INFINITY,
                    "nan" => f32::NAN,
                    other => panic!("unknown gradients {other}"),
                };
            }
            grads.register(id, Tensor::<1>::from_floats(values, device));
        }
        grads
    }
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
    let device = Device::default();
    let (mut ended, mut whole) = (0, 0);
    for (name, file) in reference::<File>("torch_scale_traces") {
        for (index, trace) in file.traces.iter().enumerate() {
            if departs(trace) {
                continue;
            }
            let mut scaler = trace.config.settings().init().unwrap();
            let mut optim = SgdConfig::new().init();
            let mut module = Two::new(&device.clone().autodiff());
            let mut complete = true;
            for (step, (event, expected)) in trace.events.iter().zip(&trace.expected).enumerate() {
                let at = format!("{name}, trace {index}, event {step}");
                match event {
                    Event::Step {
                        grads,
                        bad,
                        new_scale,
                    } => {
                        let scale = scaler.loss_scale();
                        let grads = module.gradients(grads, *bad, scale, &device);
                        let grads = scaler.unscale(scaled_by_hand(&scaler, grads), &module);
                        let before = values(&module.first);
                        module = scaler.step(&mut optim, 0.1, module, grads);
                        let applied = scaler.last_outcome().map(StepOutcome::is_stepped);
                        assert_eq!(applied, expected.stepped, "{at}");
                        let moved = values(&module.first) != before;
                        assert_eq!(Some(moved), expected.stepped, "{at}");
                        match new_scale {
                            Some(scale) => scaler.update_to(*scale),
                            None => scaler.update(),
                        };
                    }
                    Event::Set { field, value, .. } => match field.as_str() {
                        "growth_factor" => scaler.set_growth_factor(*value).unwrap(),
                        "backoff_factor" => scaler.set_backoff_factor(*value).unwrap(),
                        "growth_interval" => scaler.set_growth_interval(*value as u32).unwrap(),
                        other => panic!("unknown field {other}"),
                    },
                    Event::Resume => {
                        let record = scaler.to_record().with_settings();
                        scaler = trace.config.settings().init().unwrap();
                        scaler.load_record(record.with_settings());
                    }
                }
                if leaves_f32(expected) {
                    assert!(scaler.loss_scale() > 0.0, "{at}");
                    complete = false;
                    break;
                }
                assert_state(&scaler.schedule(), expected, &at);
            }
            if complete {
                whole += 1;
            } else {
                ended += 1;
            }
        }
    }
    assert!(
        whole >= 40 && ended <= 3,
        "{whole} whole traces, {ended} ended early"
    );
}
