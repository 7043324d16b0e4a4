//! What a record holds of a scaler.

use serde::{Deserialize, Serialize};

use super::GradScaler;
use crate::{
    loss_scale::{LossScale, StepOutcome},
    step_counters::StepCounters,
};

/// The state of a scaler, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScalerState {
    pub(crate) schedule: LossScale,
    pub(crate) counters: StepCounters,
    /// That of an iteration that has not been ended.
    pub(crate) pending: Option<StepOutcome>,
}

impl GradScaler {
    pub(crate) fn state_to_store(&self) -> ScalerState {
        ScalerState {
            schedule: self.schedule(),
            counters: self.counters,
            pending: self.iteration.outcome(),
        }
    }

    /// Goes on from a stored state.
    pub(crate) fn restore(&mut self, state: ScalerState) {
        self.set_schedule(state.schedule.in_program(&self.config()));
        self.restore_counters(state);
    }

    /// As [`restore`](Self::restore), where the schedule is in place already.
    pub(crate) fn restore_counters(&mut self, state: ScalerState) {
        self.counters = state.counters;
        self.iteration.restore(state.pending);
        // Those of a model that is loaded too, most likely.
        self.forget_statistics();
    }

    /// Counts from zero. The schedule stays.
    #[cfg(feature = "train")]
    pub(crate) fn reset_counters(&mut self) {
        self.counters = StepCounters::default();
        self.iteration.restore(None);
    }
}
