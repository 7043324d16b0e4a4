//! Parity with other systems: every test here reads all traces of its prefix in `tests/reference/`.

mod departures;
mod families;
mod guards;
mod histogram;
mod roundpipe;
mod schedule;
mod table;
mod torch_training;
mod torch_unscale;

use burn_amp_tests::prelude::*;

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// What a scaler makes of a parameter's gradient that is scaled already.
fn unscaled(scaler: &GradScaler, grad: Tensor<1>) -> (UnscaledGradients, Tensor<1>) {
    let weight = Param::initialized(ParamId::new(), grad.zeros_like());
    let mut grads = GradientsParams::new();
    grads.register(weight.id, grad);
    let grads = scaled_by_hand(scaler, grads);
    let grads = scaler.unscale(grads, &weight).unwrap();
    let own = grads.get::<1>(weight.id).unwrap();
    (grads, own)
}
