//! A scaler whose steps the device decides: what it hands over, and what it hears of.

use burn::tensor::Device;
use burn_amp_kernels::{CrossingStatus, DeviceScale, ScaleState};
use std::{collections::VecDeque, sync::Arc};

use super::GradScaler;
use crate::{
    ahead::{Ahead, Run},
    live_scale::{LiveScale, Noted, Place},
};

impl GradScaler {
    fn live(&self) -> Option<&LiveScale> {
        self.border.as_ref().map(|border| border.amp.live())
    }

    /// Whether a device can move the scale: nobody else does, nor wants to see the gradients.
    pub(crate) fn can_go_ahead(&self) -> bool {
        let alone = |live: &LiveScale| !live.is_shared() && live.on_device().is_some();
        self.is_enabled()
            && self.live().is_some_and(alone)
            && !self.is_observed()
            && self.iteration.outcome().is_none()
    }

    fn is_observed(&self) -> bool {
        let slot = self.precision().map(|amp| amp.slot());
        slot.is_some_and(|slot| slot.get().is_some())
    }

    /// The scale on a device, where this is.
    pub(crate) fn begin_ahead(&self, device: &Device) -> Option<Ahead> {
        let scale = self.state_on_device()?.upload(device);
        let border = self.border.as_ref()?;
        Some(Ahead::new(scale, Arc::default(), &border.member))
    }

    /// The scale as a device moves it.
    pub(crate) fn state_on_device(&self) -> Option<ScaleState> {
        self.live()?.on_device()
    }

    /// A scale that is on a device already, for the scopes of this.
    pub(crate) fn ahead_of(&self, scale: DeviceScale, run: Arc<Run>) -> Option<Arc<Ahead>> {
        let border = self.border.as_ref()?;
        Some(Arc::new(Ahead::new(scale, run, &border.member)))
    }

    /// The scale on the device, if it is ahead of this.
    pub(crate) fn ahead(&self) -> Option<Arc<Ahead>> {
        self.live()?.ahead()
    }

    /// The next scopes take the scale from the device, or no longer.
    pub(crate) fn go_ahead(&self, ahead: Option<Arc<Ahead>>) {
        if let Some(live) = self.live() {
            live.go_ahead(ahead);
        }
    }

    /// What the scopes of a step that is heard of now have multiplied by.
    pub(crate) fn border_scale(&self) -> f64 {
        self.live().map_or(1.0, |live| live.scale().into())
    }

    /// Takes out what was noted since the last step.
    pub(crate) fn take_noted(&self) -> VecDeque<Noted> {
        self.live().map(LiveScale::take_noted).unwrap_or_default()
    }

    /// Puts back what was taken out.
    pub(crate) fn note_again(&self, noted: VecDeque<Noted>) {
        if let Some(live) = self.live() {
            live.note_again(noted);
        }
    }

    /// Puts back what was taken out, as it was read.
    pub(crate) fn put_back(
        &self,
        read: impl Iterator<Item = ((u64, Place), Option<CrossingStatus>)>,
    ) {
        if let Some(live) = self.live() {
            live.put_back(read);
        }
    }

    /// Has counted, and shows, what another has. The scale stays.
    pub(crate) fn count_as(&mut self, other: Self) {
        self.counters = other.counters;
        self.last_outcome = other.last_outcome;
        self.last_status = other.last_status;
    }
}
