//! What an optimizer is given for one update of a module.

pub(crate) mod masters;
pub(crate) mod module_optim;

pub(crate) use module_optim::ModuleOptim;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use std::sync::Arc;

use crate::{gradients::Factors, scale::device_step::DeviceStep};

/// The inputs of an update beside module and gradients: the learning rate, and what an optimizer that makes one pass is given.
pub struct Update {
    /// The learning rate.
    pub lr: ModuleLearningRate,
    /// The step of the device that decides whether parameters change; none if they do.
    pub decides: Option<Arc<DeviceStep>>,
    /// The factors of gradients; 1 for those that are not named.
    pub factors: Factors,
}

/// The inputs of an update that an optimizer takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Takes {
    /// Set where the device can decide that a step is skipped.
    pub decision: bool,
    /// Set where it multiplies gradients as it updates, so that clipping by a norm is fused into the update.
    pub factors: bool,
}

impl Update {
    /// An update that the host has decided.
    pub fn of(lr: ModuleLearningRate, factors: Factors) -> Self {
        Self {
            lr,
            decides: None,
            factors,
        }
    }

    /// An update that the device decides.
    pub(crate) fn decided_by(device_step: &Arc<DeviceStep>, lr: ModuleLearningRate) -> Self {
        Self {
            decides: Some(device_step.clone()),
            ..Self::of(lr, Factors::new())
        }
    }
}
