//! A scaler whose steps the device decides: what it hands over, and what it hears of.

use burn_amp_kernels::DeviceScale;
use std::sync::{Arc, Weak};

use super::GradScaler;
use crate::{
    device_step::DeviceStep, ledger::Ledger, mixed_precision::MixedPrecision, pending::PendingStep,
};

impl GradScaler {
    /// Whether a device can move the scale: nobody else does, nor wants to see the gradients.
    pub(crate) fn can_step_on_device(&self) -> bool {
        let live = self.live();
        let is_unobserved = |amp: &MixedPrecision| amp.observer().is_none();
        self.is_enabled()
            && self.precision().is_some_and(is_unobserved)
            && !live.is_shared()
            && live.on_device().is_some()
            && self.iteration.outcome().is_none()
    }

    /// A scale that is on a device, for the scopes of this.
    pub(crate) fn device_step_at(&self, scale: DeviceScale) -> DeviceStep {
        DeviceStep::new(scale, Arc::default(), &self.scale.member)
    }

    /// Adds a step in flight.
    pub(crate) fn push(&self, step: impl FnOnce(Arc<Ledger>, Weak<()>) -> PendingStep) {
        let step = step(self.ledger.0.clone(), Arc::downgrade(&self.scale.member));
        self.live().in_flight().push(Box::new(step));
    }
}
