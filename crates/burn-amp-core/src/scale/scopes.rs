//! What scopes and their casts ask of the scale that they share, and what they leave for a step.

use burn::module::ParamId;
use burn_amp_kernels::{PassedGradient, UnreadEvent};
use std::collections::{BTreeMap, VecDeque};
use std::ptr;
use std::sync::{Arc, atomic::Ordering};

use crate::scale::border_events::{
    BorderEvent, EventPlace, LAST, Measured, OpenRegion, next_number,
};
use crate::scale::live_scale::LiveScale;
use crate::scale::members::OptimizerId;
use crate::{
    lock::locked,
    scale::device_step::DeviceStep,
    scale::finding::{Grounds, SkipCause},
    scale::regions::RegionState,
};

/// A scope that is counted, and the scale in it.
pub(crate) struct Opened {
    /// Its place in the order of the border events.
    pub(crate) number: u64,
    /// The multiple of gradients in it.
    pub(crate) scale: f64,
    /// A further factor, if only the device knows it.
    pub(crate) device_step: Option<Arc<DeviceStep>>,
}

impl LiveScale {
    /// Counts a scope. Gradients are multiplied in it, and come to a step, if it `is_scaled`.
    pub(crate) fn open(&self, is_scaled: bool) -> Opened {
        self.opened.fetch_add(1, Ordering::Relaxed);
        // Not where they come: a backward pass waits for nothing.
        self.events.fold_many(|region| self.needs_measures(region));
        let mut scale = 1.0;
        let mut device_step = None;
        if is_scaled {
            let ([min, max], state) = (self.range, locked(&self.state));
            device_step = state.device_step.clone();
            scale = state.schedule.scale().clamp(min, max);
        }
        // It is of no use where its optimizer is gone.
        device_step = device_step.filter(|step| step.has_owner());
        let is_last = || LAST.with_borrow(|last| ptr::eq(last.as_ptr(), &*self.events));
        if is_scaled && !is_last() {
            self.events.follow_the_last();
        }
        Opened {
            number: next_number(),
            scale: match &device_step {
                Some(_) => 1.0,
                None => scale.into(),
            },
            device_step,
        }
    }

    /// Returns the parameter that was read last in a scope that is closed.
    pub(crate) fn last_read(&self) -> Option<Arc<str>> {
        locked(&self.last_read).clone()
    }

    /// Remembers a gradient on its way back.
    pub(crate) fn add_event(&self, place: EventPlace, event: UnreadEvent) {
        let untested = self
            .untested
            .add_arrival(event.node(), self.tests.load(Ordering::Relaxed));
        let (pass, event) = (event.pass(), Measured::OnDevice(Box::new(event)));
        self.events.add(place, None, pass, event);
        if let Some(count) = untested {
            warn!(
                "the gradients of {count} scopes were never tested: an overflow goes into the weights, and the loss scale stays at {}. Step with \
                 `ScaledOptimizer::new(optim, &amp)` in place of Burn's optimizer; for one that it cannot wrap, such as L-BFGS, test them by \
                 `GradScaler::unscale`",
                self.scale()
            );
        }
    }

    /// Remembers a gradient that leaves half precision, maybe for a parameter, or comes back to it, to be measured where it is asked for.
    pub(crate) fn keep_gradient(
        &self,
        place: EventPlace,
        parameter: Option<ParamId>,
        gradient: PassedGradient,
    ) {
        if parameter.is_some() {
            self.untested.add_parameter(gradient.node());
        }
        let (pass, gradient) = (gradient.pass(), Measured::Kept(vec![gradient]));
        self.events.add(place, parameter, pass, gradient);
    }

    /// Finds the cause of a skip with gradients of these parameters: the forward pass, or the first event in the order of the backward pass, or else the
    /// regions of the `overflows`, the parameters whose gradients overflow; but no scale that scopes do not apply. Waits for the device.
    ///
    /// Of workers who make the same step, the first finds it, while none is in the next one.
    pub(crate) fn cause_of_skip<'a>(
        &self,
        id: OptimizerId,
        ids: &[ParamId],
        overflows: impl Iterator<Item = &'a str>,
    ) -> SkipCause {
        let _first = locked(&self.explaining);
        let known = locked(&self.state).members.cause_by_others(id);
        if let Some(cause) = known {
            self.events.clear(ids, true);
            return cause;
        }
        let events = self.events.of_step(ids);
        // A skip is explained by them, and no other.
        self.events.clear(ids, false);
        let cause = self.cause_of(events, overflows);
        locked(&self.state).members.explain(id, cause);
        cause
    }

    /// Finds the cause as [`cause_of_skip`](Self::cause_of_skip), of these events.
    pub(crate) fn cause_of<'a>(
        &self,
        events: VecDeque<BorderEvent>,
        overflows: impl Iterator<Item = &'a str>,
    ) -> SkipCause {
        let before = {
            let iteration = &locked(&self.state).members.iteration;
            iteration.cause.zip(Some(iteration.regions.clone()))
        };
        let is_empty = events.is_empty();
        let ((cause, regions), grounds) = match (self.events.first_cause(events), before) {
            // Another optimizer's skip has read them, when both backward passes were over.
            (None, Some(before)) if is_empty => (before, Grounds::Earlier),
            (Some(((SkipCause::Unknown, _), _)), Some(before)) => (before, Grounds::Earlier),
            (Some(first), _) => first,
            (None, _) if self.is_of_scopes() && self.is_idle() => {
                let output_finite = true;
                let loss = SkipCause::Loss { output_finite };
                ((loss, Vec::new()), Grounds::Guess)
            }
            (None, _) => {
                let regions = self.regions.lock().of_parameters(overflows);
                ((SkipCause::Scale, regions), Grounds::Guess)
            }
        };
        self.set_cause(cause, regions, grounds);
        cause
    }

    /// Notes the cause of a skip, and the regions that are it, for the end of its step.
    pub(crate) fn set_cause(&self, cause: SkipCause, regions: Vec<Arc<str>>, grounds: Grounds) {
        let iteration = &mut locked(&self.state).members.iteration;
        (iteration.cause, iteration.regions) = (Some(cause), regions);
        iteration.grounds = grounds;
    }

    /// The regions that are the cause of the present step's skip, if there is one, and on what grounds.
    pub(crate) fn regions_at_fault(&self) -> (Vec<Arc<str>>, Grounds) {
        let iteration = &locked(&self.state).members.iteration;
        (iteration.regions.clone(), iteration.grounds)
    }

    /// Takes out the events of regions whose rules look at gradients, if they were measured and not read, to be read with the gradients of a step.
    pub(crate) fn take_measures(&self) -> (VecDeque<BorderEvent>, Vec<UnreadEvent>) {
        let unread = self.take_wanted(|event| event.unread().is_some());
        let events = unread.iter().filter_map(BorderEvent::unread);
        let events = events.cloned().collect();
        (unread, events)
    }

    /// Shows regions whose rules look at gradients those that came to them, after a backward pass without overflow. Waits for the device if they were
    /// not read with the gradients.
    pub(crate) fn read_measures(&self) {
        for event in BorderEvent::read_now(self.take_wanted(|event| event.is_tested)) {
            if let Some((region, measures)) = event.measures() {
                self.regions.lock().see(region, measures);
            }
        }
    }

    /// Returns the regions for a record, with the gradients that have come to them in an open window, which has kept these events. Waits for the device.
    pub(crate) fn regions_with(
        &self,
        window: &VecDeque<BorderEvent>,
    ) -> BTreeMap<String, RegionState> {
        let mut regions = self.regions.lock().clone();
        let wanted = window.iter().filter(|event| {
            let region = event.entered();
            region.is_some_and(|region| regions.needs_measures(&region.name))
        });
        for event in BorderEvent::read_now(wanted.cloned()) {
            if let Some((region, measures)) = event.measures() {
                regions.see(region, measures);
            }
        }
        regions.states()
    }

    /// Adds the events of a micro-batch with gradients of these parameters to those that a window keeps until its test.
    pub(crate) fn move_to_window(&self, window: &mut VecDeque<BorderEvent>, ids: &[ParamId]) {
        self.untested.end();
        window.extend(self.events.take_micro_batch(self.is_shared(None), ids));
        BorderEvent::limit_kept(window);
        BorderEvent::fold_many(window, |region| self.needs_measures(region));
    }

    fn needs_measures(&self, region: &OpenRegion) -> bool {
        self.regions.lock().needs_measures(&region.name)
    }

    fn take_wanted(&self, fits: fn(&BorderEvent) -> bool) -> VecDeque<BorderEvent> {
        let regions = self.regions.lock();
        self.events.take_if(|event| {
            let is_wanted = |region: &Arc<OpenRegion>| regions.needs_measures(&region.name);
            fits(event) && event.entered().is_some_and(is_wanted)
        })
    }
}
