//! `FusedSgd`, `FusedAdam` and `FusedAdamW` beside Burn's own optimizers.

mod captured;
mod follows;
mod groups;
mod half;
mod held;
mod matrix;
mod pending;
mod records;
mod run;
mod settings;

use burn_amp_tests::prelude::*;
use std::ops::Range;

use crate::support::Net;

/// Gradients of every parameter, made by hand: values that f16 holds, in `dtype`.
pub fn gradients<M: Module>(module: &M, step: usize, dtype: FloatDType) -> GradientsParams {
    burn_amp_tests::gradients(module, step, 0.125, dtype)
}

/// Steps on such gradients, in f32.
fn steps_by_hand<O: ModuleOptim>(optim: &mut O, lr: f64, net: Net, range: Range<usize>) -> Net {
    range.fold(net, |net, number| {
        let grads = gradients(&net, number, FloatDType::F32);
        optim.step(lr.into(), net, grads)
    })
}

pub fn flex() -> Device {
    Device::flex().autodiff()
}
