//! What scopes and their casts ask of the scale that they share, and what they leave for a step.

use burn::module::ParamId;
use burn_amp_kernels::{PassedGradient, UnreadEvent};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, atomic::Ordering};
use std::thread;

use crate::scale::border_events::{BorderEvent, EventPlace, OpenRegion, next_number};
use crate::scale::live_scale::LiveScale;
use crate::{lock::locked, scale::loss_scale::SkipCause, scale::regions::RegionState};

/// Threads that are remembered.
const MAX_THREADS: usize = 16;

impl LiveScale {
    /// Counts a scope, and gives it its number.
    pub(crate) fn open(&self) -> u64 {
        self.opened.fetch_add(1, Ordering::Relaxed);
        // Not where they come: a backward pass waits for nothing.
        if BorderEvent::are_many(self.events.len()) {
            self.events.fold(|region| self.needs_measures(region));
        }
        next_number()
    }

    /// A scope is closed, in which this parameter was read last.
    pub(crate) fn note_read(&self, path: Arc<str>) {
        *locked(&self.last_read) = Some(path);
    }

    /// The parameter that was read last in a scope that is closed; none if none was.
    pub(crate) fn last_read(&self) -> Option<Arc<str>> {
        locked(&self.last_read).clone()
    }

    /// Whether several threads use it, in their own time: the test of one may clear what explains the skip of another.
    pub(crate) fn is_used_by_threads(&self) -> bool {
        self.is_on_threads.load(Ordering::Relaxed)
    }

    /// How many scopes were opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Remembers a gradient on its way back.
    pub(crate) fn add_event(&self, place: EventPlace, event: UnreadEvent) {
        self.note_thread();
        self.untested.add_arrival(event.node());
        self.events.add(place, event);
        if let Some(count) = self.untested.too_many() {
            warn!(
                "the gradients of {count} scopes were never tested: an overflow goes into the weights, and the loss scale stays at {}. Step with \
                 `ScaledOptimizer::new(optim, &amp)` in place of Burn's optimizer; for one that it cannot wrap, such as L-BFGS, test them by \
                 `GradScaler::unscale`",
                self.scale()
            );
        }
    }

    /// A training that goes on on another thread is one; where a thread comes back, they are several.
    fn note_thread(&self) {
        let here = thread::current().id();
        let mut threads = locked(&self.threads);
        if threads.last() == Some(&here) {
            return;
        }
        if threads.contains(&here) {
            self.is_on_threads.store(true, Ordering::Relaxed);
        }
        // Of those that come one after the other, no more than the last are of interest.
        let before = threads.len().saturating_sub(MAX_THREADS);
        threads.drain(..before);
        threads.retain(|thread| *thread != here);
        threads.push(here);
    }

    /// Remembers a gradient that leaves half precision, or comes back to it, to be measured where it is asked for.
    pub(crate) fn keep_gradient(&self, place: EventPlace, gradient: PassedGradient) {
        self.events.keep(place, None, gradient);
    }

    /// The same of a gradient that leaves half precision for a parameter.
    pub(crate) fn keep_of_parameter(
        &self,
        place: EventPlace,
        id: ParamId,
        gradient: PassedGradient,
    ) {
        self.untested.add_parameter(gradient.node());
        self.events.keep(place, Some(id), gradient);
    }

    /// The cause of a skip with gradients of these parameters: the forward pass, or the first event in the order of the backward pass, or else the
    /// regions of the `overflows`, the parameters whose gradients overflow; but no scale that scopes do not apply. Waits for the device.
    pub(crate) fn cause_of_skip<'a>(
        &self,
        ids: &[ParamId],
        overflows: impl Iterator<Item = &'a str>,
    ) -> SkipCause {
        let events = self.events.take_for_skip(self.tested(), ids);
        self.cause_of(events, overflows)
    }

    /// As [`cause_of_skip`](Self::cause_of_skip), of these events, if there are any.
    pub(crate) fn cause_of<'a>(
        &self,
        events: VecDeque<BorderEvent>,
        overflows: impl Iterator<Item = &'a str>,
    ) -> SkipCause {
        let before = locked(&self.state).members.iteration.cause;
        match before.filter(|_| events.is_empty()) {
            // Another optimizer's skip has read them: both backward passes were over before it.
            Some(cause) => cause,
            None => self.cause_among(events, overflows),
        }
    }

    /// As [`cause_of_skip`](Self::cause_of_skip), of these events alone.
    pub(crate) fn cause_among<'a>(
        &self,
        events: VecDeque<BorderEvent>,
        overflows: impl Iterator<Item = &'a str>,
    ) -> SkipCause {
        let before = {
            let iteration = &locked(&self.state).members.iteration;
            iteration.cause.zip(Some(iteration.regions.clone()))
        };
        let (cause, regions) = match (self.events.first_cause(events), before) {
            // Another worker's skip has read what explains this one, and computes the next iteration.
            (Some((SkipCause::Unknown, _)), Some(before)) => before,
            (Some(first), _) => first,
            (None, _) if self.is_of_scopes() && self.schedule().is_idle() => {
                let output_finite = true;
                (SkipCause::Loss { output_finite }, Vec::new())
            }
            (None, _) => {
                let regions = self.regions.lock().of_parameters(overflows);
                (SkipCause::Scale, regions)
            }
        };
        let iteration = &mut locked(&self.state).members.iteration;
        (iteration.cause, iteration.regions) = (Some(cause), regions);
        cause
    }

    /// Takes out what came to the regions whose rules look at gradients and was not read, to be read with the gradients of a step.
    pub(crate) fn take_measures(&self) -> (VecDeque<BorderEvent>, Vec<UnreadEvent>) {
        let unread = self.take_wanted(u64::MAX, |event| event.unread().is_some());
        let events = unread.iter().filter_map(BorderEvent::unread);
        let events = events.cloned().collect();
        (unread, events)
    }

    /// Reads what came to the regions whose rules look at gradients, to be seen once the gradients are counted. Waits for the device if that was
    /// not read with them.
    pub(crate) fn read_wanted(&self) {
        let wanted = self.take_wanted(u64::MAX, |_| true);
        if !wanted.is_empty() {
            self.events.restore(BorderEvent::read_now(wanted));
        }
    }

    /// Lets regions whose rules look at gradients see what came to them, after a backward pass without overflow. Waits for the device if that was
    /// not read with the gradients.
    pub(crate) fn read_measures(&self) {
        for event in self.take_wanted(self.tested(), |_| true) {
            if let Some((region, measures)) = event.measures() {
                self.regions.lock().see(&region.name, measures);
            }
        }
    }

    /// Whether a gradient that is not zero came to a scope before the last test. Waits for the device.
    pub(crate) fn have_arrived(&self) -> bool {
        self.events.have_arrived(self.tested())
    }

    /// The regions for a record, with what has come to them in an open window, which has kept these events. Waits for the device.
    pub(crate) fn regions_with(
        &self,
        window: &VecDeque<BorderEvent>,
    ) -> BTreeMap<String, RegionState> {
        let mut regions = self.regions.lock().clone();
        for event in window.iter().cloned() {
            let is_wanted = |region: &Arc<OpenRegion>| regions.needs_measures(&region.name);
            if event.entered().is_some_and(is_wanted)
                && let Some((region, measures)) = event.measures()
            {
                regions.see(&region.name, measures);
            }
        }
        regions.states()
    }

    /// Adds the events of a micro-batch with gradients of these parameters to those that a window keeps until its test.
    pub(crate) fn move_to_window(&self, window: &mut VecDeque<BorderEvent>, ids: &[ParamId]) {
        self.untested.end();
        window.extend(self.events.take_micro_batch(self.is_shared(), ids));
        BorderEvent::limit_kept(window);
        if BorderEvent::are_many(window.len()) {
            BorderEvent::fold(window, |region| self.needs_measures(region));
        }
    }

    /// An open window is thrown away.
    pub(crate) fn discard_window(&self) {
        self.regions.lock().forget_window();
    }

    fn needs_measures(&self, region: &Arc<OpenRegion>) -> bool {
        self.regions.lock().needs_measures(&region.name)
    }

    fn take_wanted(&self, until: u64, fits: fn(&BorderEvent) -> bool) -> VecDeque<BorderEvent> {
        let regions = self.regions.lock();
        if !regions.need_measures() {
            return VecDeque::new();
        }
        let is_wanted = |region: &Arc<OpenRegion>| regions.needs_measures(&region.name);
        (self.events).take_if(|event| {
            event.number <= until && fits(event) && event.entered().is_some_and(is_wanted)
        })
    }
}
