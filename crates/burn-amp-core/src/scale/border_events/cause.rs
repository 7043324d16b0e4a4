//! The cause of a skip: which gradient was not finite first, and where.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Weak};

use super::{BorderEvent, BorderEvents, EventPlace, Explanation, Measured, OpenRegion};
use crate::lock::locked;
use crate::scale::finding::{Grounds, SkipCause};

impl BorderEvents {
    /// Finds what was not finite first in events of this order, the regions in which it became so, and on what grounds; none if nothing is known of what
    /// scopes have given. Waits for the device.
    ///
    /// Threads that compute one step come in any order: each has its first, and of several causes the most severe counts, as of ranks.
    pub(crate) fn first_cause(
        &self,
        events: VecDeque<BorderEvent>,
    ) -> Option<(Explanation, Grounds)> {
        let events = Vec::from(BorderEvent::read_now(events));
        // Those after the last test, and those before.
        let mut eras = events.chunk_by(|one, next| one.is_tested == next.is_tested);
        let found = eras.find_map(|era| {
            let threads: HashSet<_> = era.iter().map(|event| event.thread).collect();
            let causes = threads.into_iter().filter_map(|thread| {
                let events = era.iter().filter(|event| event.is_of(thread));
                self.first_of_thread(&events.collect::<Vec<_>>())
            });
            let cause = causes.reduce(SkipCause::most_severe)?;
            Some((cause, era[0].is_tested))
        });
        let grounds = match &found {
            _ if events.iter().all(BorderEvent::is_of_no_step) => Grounds::Guess,
            Some((_, true)) => Grounds::Earlier,
            _ => Grounds::Own,
        };
        if let Some(((cause, regions), _)) = found {
            return Some(((cause, regions.into_iter().collect()), grounds));
        }
        let mut from = events.iter().map(|event| &event.place);
        let is_known =
            from.any(|place| matches!(place, EventPlace::Left(..) | EventPlace::Parameter(..)));
        is_known.then(|| ((SkipCause::Unknown, Vec::new()), grounds))
    }

    /// Finds what was not finite first on one thread, if something was not.
    ///
    /// A gradient that is not finite where it comes to a border was made so before: in f32 by the loss, or by what is between two scopes; in half
    /// precision by the scale. One that overflows there was made so by the scale of the side that it goes to.
    fn first_of_thread(&self, events: &[&BorderEvent]) -> Option<(SkipCause, BTreeSet<Arc<str>>)> {
        let at = events.iter().position(|event| event.is_bad())?;
        let first = events[at];
        if let Measured::Explained((cause, regions)) = &first.measured {
            return Some((*cause, regions.iter().cloned().collect()));
        }
        let status = first.status()?;
        if let EventPlace::Parameter(..) = first.place {
            let of_pass = events[at..].iter().filter(|event| event.pass == first.pass);
            return Some((SkipCause::Scale, overflown(of_pass.copied())));
        }
        let [from, to] = first.place.sides();
        let side = to.filter(|_| status.gradient_finite).or(from);
        let Some(region) = side else {
            let output_finite = status.output_finite;
            let cause = match output_finite && self.is_made_by_others(first) {
                true => SkipCause::OtherScale,
                false => SkipCause::Loss { output_finite },
            };
            return Some((cause, BTreeSet::new()));
        };
        let names = region.map(|region: &OpenRegion| region.name.clone());
        Some((SkipCause::Scale, names.into_iter().collect()))
    }

    /// Says whether a scope of another handle has made a gradient infinite that comes to a scope here: it was opened, and left, after the scope here was
    /// and before that gradient came, in the same pass, and got a finite one. Waits for the device.
    fn is_made_by_others(&self, first: &BorderEvent) -> bool {
        let EventPlace::Scope(opened, _) = first.place else {
            return false;
        };
        let between = opened..first.number;
        let of_chain = |other: Arc<Self>| {
            let events = locked(&other.queue).events.clone().into_iter();
            let is_there = |e: &BorderEvent| e.pass == first.pass && between.contains(&e.number);
            let events = BorderEvent::read_now(events.filter(is_there));
            // One whose input requires no gradients is not part of a chain.
            let left = events.iter().find_map(|event| match event.place {
                EventPlace::Left(scope, _) if scope > opened && event.is_bad() => Some(scope),
                _ => None,
            });
            let came = events.iter().filter(|event| match event.place {
                EventPlace::Scope(scope, _) => Some(scope) == left,
                _ => false,
            });
            let mut came = came.filter_map(BorderEvent::status);
            left.is_some() && came.all(|status| status.gradient_finite)
        };
        let neighbours = locked(&self.neighbours).clone();
        let mut others = neighbours.iter().filter_map(Weak::upgrade);
        others.any(of_chain)
    }
}

/// Finds the regions in which gradients of parameters overflow, before anything else does; none if one is outside of all.
fn overflown<'a>(events: impl Iterator<Item = &'a BorderEvent>) -> BTreeSet<Arc<str>> {
    let bad = events.filter(|event| event.is_bad());
    let regions = bad.map_while(|event| match &event.place {
        EventPlace::Parameter(_, region) => Some(region.as_ref().map(|region| region.name.clone())),
        _ => None,
    });
    let regions: Option<BTreeSet<_>> = regions.collect();
    regions.unwrap_or_default()
}
