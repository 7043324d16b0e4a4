//! Steps in flight: launched on a device, not yet resolved. They belong to the scale that they move, so that no optimizer that is
//! dropped or cloned takes them along.

use burn::optim::GradientsParams;
use burn_amp_kernels::Reading;
use std::sync::Arc;

#[cfg(any(test, feature = "counts"))]
use crate::gradients::pass::READS;
use crate::scale::in_flight::{Pending, Resolution};
use crate::{
    gradients::UnscaledGradients, gradients::clip::ClipRules, gradients::entries::Entry,
    scale::border_events::BorderEvent, scale::device_step::Run, scale::journal::Caller,
    scale::place::Place,
};

/// A step in flight.
#[derive(Debug)]
pub(crate) struct PendingStep {
    pub(crate) entries: Vec<Entry>,
    /// The findings of its gradients, and of the events.
    pub(crate) reading: Reading,
    /// The events of their way to the border, and from it.
    pub(crate) events: Vec<BorderEvent>,
    /// The rules by which they were clipped.
    pub(crate) clip: ClipRules,
    pub(crate) run: Arc<Run>,
    /// Its number in its run.
    pub(crate) number: usize,
    /// Whose outcome this is: it is counted although the optimizer is gone.
    pub(crate) place: Arc<Place>,
    /// The thread that has made it.
    pub(crate) caller: Caller,
    /// Receives whether it was applied.
    pub(crate) resolution: Resolution,
}

impl Pending for PendingStep {
    fn is_known(&self) -> bool {
        self.reading.is_there()
    }

    fn resolve(self: Box<Self>) {
        let Some(live) = self.place.live() else {
            return;
        };
        #[cfg(any(test, feature = "counts"))]
        if !self.reading.is_there() {
            READS.set(READS.get() + 1);
        }
        let (statuses, event_statuses) = self.reading.wait(live.scale().into());
        if statuses.iter().any(|status| status.non_finite > 0) {
            self.run.add_skip(self.number);
        }
        let events = BorderEvent::read(self.events, event_statuses);
        let params = GradientsParams::new();
        let mut grads = UnscaledGradients::new(params, self.entries, Some(statuses));
        let arrived = events.iter().any(BorderEvent::has_arrived);
        if grads.finding.skips() {
            (grads.finding).explain(live.cause_of(events, grads.overflows()));
        }
        self.resolution.resolve(!grads.finding.skips());
        if !self.clip.0.is_empty() {
            // The device has done it: what is left is to say so.
            let clipped = grads.clip_by(&self.clip, 1.0, true);
            grads = clipped.expect("they were measured").0;
        }
        let (id, status) = (self.place.id, grads.status().clone());
        if status.is_all_zero() && arrived {
            let scale = live.scale();
            live.account(id, |account| account.warn_of_zeros(&status, scale));
        }
        let status = Some(Arc::new(status));
        if let Err(error) = live.end(id, &grads.finding, status, self.caller) {
            live.account(id, |account| account.keep(error));
        }
    }
}
