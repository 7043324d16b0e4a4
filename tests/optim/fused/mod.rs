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

use crate::support::{Net, batch};

/// One training step.
pub fn step<O: ModuleOptim>(
    optim: &mut O,
    lr: impl Into<ModuleLearningRate>,
    net: Net,
    step: usize,
) -> Net {
    let device = net.hidden.weight.device();
    let loss = net.loss(batch(step, &device));
    let grads = GradientsParams::from_grads(loss.backward(), &net);
    optim.step(lr.into(), net, grads)
}

pub fn steps<O: ModuleOptim>(optim: &mut O, net: Net, range: std::ops::Range<usize>) -> Net {
    range.fold(net, |net, number| step(optim, 0.01, net, number))
}

/// Gradients of every parameter, made by hand: values that f16 holds, in `dtype`.
pub fn gradients<M: Module>(module: &M, step: usize, dtype: FloatDType) -> GradientsParams {
    burn_amp_tests::gradients(module, step, 0.125, dtype)
}

pub fn flex() -> Device {
    Device::flex().autodiff()
}
