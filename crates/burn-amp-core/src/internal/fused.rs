//! What the optimizers and the captured steps of `burn-amp-optim` are made of.

pub use crate::{
    optimizer::{InspectedStep, Recorder, Stage, refused},
    scale::device_step::{DeviceStep, Run},
    scale::rehearsal::{Rehearsal, Rehearses},
    update::module_optim::FRESH,
    values::ids_with_gradient,
};

/// The loss scale in the words of a device; none where only the host can move it.
pub fn on_device(scale: &crate::LossScale) -> Option<burn_amp_kernels::ScaleState> {
    scale.on_device()
}
