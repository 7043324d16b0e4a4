//! What the optimizers and the captured steps of `burn-amp-optim` are made of.

pub use crate::{
    optimizer::{InspectedStep, Stage},
    scale::device_step::{DeviceStep, Run},
    scale::rehearsal::{Rehearsal, Rehearses},
    update::masters::{Masters, WithMaster},
    update::module_optim::FRESH,
    values::ids_with_gradient,
};
