//! Parity with other systems: every test here reads all traces of its prefix in `tests/reference/`.

mod device_scale;
mod fairscale;
mod hysteresis;
mod openseq2seq;
mod own_schedules;
mod popart;
mod roundpipe;
mod schedule;
mod torch_scale;
mod torch_training;
mod torch_unscale;

use burn_amp_tests::prelude::*;

/// Settings that a trace has: our names of them, with `=` and theirs where that is another. What else it has is left out.
fn settings(params: &Value, names: &str) -> GradScalerConfig {
    let field = |name: &str| {
        let (ours, theirs) = name.split_once('=').unwrap_or((name, name));
        let value = params.get(theirs).unwrap_or_else(|| panic!("no {theirs}"));
        (ours.to_string(), value.clone())
    };
    let fields = names.split_whitespace().map(field).collect();
    serde_json::from_value(Value::Object(fields)).unwrap()
}

/// A schedule that has another value in this place of its stored state.
fn with(scale: LossScale, place: &str, value: impl Into<Value>) -> LossScale {
    let mut state = serde_json::to_value(scale).unwrap();
    *state.pointer_mut(place).unwrap() = value.into();
    serde_json::from_value(state).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// What a scaler makes of a parameter's gradient that is scaled already.
fn unscaled(scaler: &GradScaler, grad: Tensor<1>) -> (UnscaledGradients, Tensor<1>) {
    let weight = Param::initialized(ParamId::new(), grad.zeros_like());
    let mut grads = GradientsParams::new();
    grads.register(weight.id, grad);
    let grads = burn_amp_tests::scaled_by_hand(scaler, grads);
    let grads = scaler.unscale(grads, &weight).unwrap();
    let own = grads.get::<1>(weight.id).unwrap();
    (grads, own)
}
