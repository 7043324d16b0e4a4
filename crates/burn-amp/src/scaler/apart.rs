//! The two sides of a scaler whose steps are decided on another thread: that which scales losses, and that which learns.

use std::collections::BTreeMap;

use super::{Border, GradScaler};
use crate::{
    error::AmpError,
    gradient_status::GradientStatus,
    live_scale::Passage,
    loss_scale::{LossScale, StepOutcome},
    loss_watch::{LossWatch, Losses},
    rescale::PartState,
    step_counters::StepCounters,
};

/// Where a scaler is after a step: what the other side is to know of it.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    pub(crate) schedule: LossScale,
    parts: BTreeMap<String, PartState>,
    pub(crate) counters: StepCounters,
    pub(crate) outcome: Option<StepOutcome>,
    status: Option<GradientStatus>,
}

/// What the side that scales has noted in an iteration.
pub(crate) struct Noted {
    passage: Option<Passage>,
    losses: Losses,
}

impl GradScaler {
    /// Takes out what was noted since the last step.
    pub(crate) fn hand_over(&mut self) -> Noted {
        Noted {
            passage: self.precision().map(|amp| amp.live().hand_over()),
            losses: self.watch.hand_over(),
        }
    }

    /// Decides on what the other side has noted.
    pub(crate) fn take_over(&mut self, noted: Noted) {
        if let (Some(amp), Some(passage)) = (self.precision(), noted.passage) {
            amp.live().take_over(passage);
        }
        self.watch.take_over(noted.losses);
    }

    /// The side that learns: it moves a scale of its own, in the same state, which multiplies nothing.
    pub(crate) fn apart(&self) -> Self {
        let border = self.precision().map(|amp| Border::new(&amp.apart()));
        Self {
            watch: LossWatch::default(),
            border,
            ..self.clone()
        }
    }

    /// A copy with a scale that it shares with nobody.
    pub(crate) fn detached(&self) -> Self {
        Self {
            schedule: self.schedule(),
            border: None,
            ..self.clone()
        }
    }

    pub(crate) fn reached(&self) -> Reached {
        let amp = self.precision();
        Reached {
            schedule: self.schedule(),
            parts: amp.map_or_else(BTreeMap::new, |amp| amp.live().parts()),
            counters: self.counters,
            outcome: self.last_outcome,
            status: self.last_status.clone(),
        }
    }

    /// Scales the next losses as far as the side that learns has come, by a call of `step` or by something else.
    pub(crate) fn follow(&mut self, reached: Reached, is_call: bool) {
        let stepped = reached.counters.steps() != self.counters.steps();
        self.counters = reached.counters;
        self.last_outcome = reached.outcome;
        self.last_status = reached.status;
        match self.precision() {
            Some(amp) => amp.live().follow(reached.schedule, &reached.parts),
            None => self.schedule = reached.schedule,
        }
        #[cfg(feature = "train")]
        if let Some(amp) = self.precision() {
            amp.publish(self, stepped);
        }
        #[cfg(not(feature = "train"))]
        let _ = stepped;
        if is_call {
            self.log_call();
        }
    }

    /// Ends an iteration with a scale of the caller's choice, where its outcome has moved the scale that was `before`. The growth
    /// tracker is that of before, too.
    pub(crate) fn replace_update(&mut self, before: LossScale, scale: f64) -> Result<(), AmpError> {
        self.set_schedule(before.with_scale("loss_scale", scale)?);
        self.counters.reset_consecutive_skips();
        Ok(())
    }

    /// Whether other optimizers move the same scale.
    pub(crate) fn is_shared(&self) -> bool {
        self.precision().is_some_and(|amp| amp.live().is_shared())
    }
}
