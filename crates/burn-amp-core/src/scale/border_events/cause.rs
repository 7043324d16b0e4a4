//! The cause of a skip: which gradient was not finite first, and where.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::{BorderEvent, BorderEvents, EventPlace, Inside, OpenRegion};
use crate::{lock::locked, scale::loss_scale::SkipCause};

impl BorderEvents {
    /// Whether a scope of another handle has made a gradient infinite that came here: it was opened and left `between` the opening of a scope here and
    /// the arrival of that gradient in the same pass, and got a finite one. Waits for the device.
    fn is_made_by_others(&self, pass: u64, between: Range<u64>) -> bool {
        let of_chain = |other: Arc<Self>| {
            let events = locked(&other.queue).events.clone().into_iter();
            let is_there = |e: &BorderEvent| e.pass == pass && between.contains(&e.number);
            let events = BorderEvent::read_now(events.filter(is_there));
            // One whose input requires no gradients is not part of a chain.
            let left = |event: &BorderEvent| {
                let scope = event.place.left().filter(|scope| *scope > between.start);
                scope.filter(|_| event.is_bad())
            };
            let scope = events.iter().find_map(left);
            let came = |event: &&BorderEvent| matches!((&event.place, scope), (EventPlace::Scope(a, _), Some(b)) if *a == b);
            let mut came = events.iter().filter(came).filter_map(BorderEvent::status);
            scope.is_some() && came.all(|status| status.gradient_finite)
        };
        let neighbours = locked(&self.neighbours).clone();
        let mut others = neighbours.iter().filter_map(Weak::upgrade);
        others.any(of_chain)
    }

    /// What was not finite first in events of this order, and the regions in which it became so; none if nothing is known of what scopes have given.
    /// Waits for the device.
    ///
    /// Where a gradient comes to half precision, it was made in f32: by the loss, or by what is between two scopes. Where it leaves half
    /// precision, or overflows as it comes, the scale has made it.
    pub(crate) fn first_cause(
        &self,
        events: VecDeque<BorderEvent>,
    ) -> Option<(SkipCause, Vec<Arc<str>>)> {
        let events = Vec::from(BorderEvent::read_now(events));
        let gives = |event: &BorderEvent| {
            matches!(
                event.place,
                EventPlace::Left(..) | EventPlace::Parameter(..)
            )
        };
        let Some(at) = events.iter().position(BorderEvent::is_bad) else {
            let is_known = events.iter().any(gives);
            return is_known.then(|| (SkipCause::Unknown, Vec::new()));
        };
        let (first, status) = (&events[at], events[at].status()?);
        let scale = |region: &Inside| {
            let name = region.iter().map(|region| region.name.clone());
            Some((SkipCause::Scale, name.collect()))
        };
        let some = |region: &Arc<OpenRegion>| Some(region.clone());
        match &first.place {
            EventPlace::Scope(opened, _) if !status.gradient_finite => {
                let is_others = self.is_made_by_others(first.pass, *opened..first.number);
                let output_finite = status.output_finite;
                let cause = match is_others && output_finite {
                    true => SkipCause::OtherScale,
                    false => SkipCause::Loss { output_finite },
                };
                Some((cause, Vec::new()))
            }
            EventPlace::Return(..) if !status.gradient_finite => {
                let output_finite = true;
                Some((SkipCause::Loss { output_finite }, Vec::new()))
            }
            EventPlace::Parameter(..) => {
                let of_pass = events[at..].iter().filter(|event| event.pass == first.pass);
                Some((SkipCause::Scale, overflown(of_pass)))
            }
            EventPlace::Arrival(_, outside) if !status.gradient_finite => scale(outside),
            EventPlace::Departure(inside, _) if !status.gradient_finite => scale(&some(inside)),
            EventPlace::Arrival(inside, _) => scale(&some(inside)),
            EventPlace::Scope(_, region)
            | EventPlace::Return(_, region)
            | EventPlace::Left(_, region)
            | EventPlace::Departure(_, region) => scale(region),
        }
    }
}

/// The regions in which gradients of parameters overflow, before anything else does; none if one is outside of all.
fn overflown<'a>(events: impl Iterator<Item = &'a BorderEvent>) -> Vec<Arc<str>> {
    let bad = events.filter(|event| event.is_bad());
    let regions = bad.map_while(|event| match &event.place {
        EventPlace::Parameter(_, region) => Some(region.as_ref().map(|region| region.name.clone())),
        _ => None,
    });
    let regions: Option<HashSet<_>> = regions.collect();
    regions.into_iter().flatten().collect()
}
