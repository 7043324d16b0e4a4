//! What a record holds of a scaler.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

use super::GradScaler;
use crate::{
    error::short,
    loss_scale::{GradScalerConfig, LossScale, Measures, Observation, StepOutcome},
    mixed_precision::MixedPrecision,
    rescale::PartState,
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
    /// What its gradients have shown; absent from records of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<Measures>,
    /// The parts of the network whose factors move.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) parts: BTreeMap<String, PartState>,
    /// Whether the settings of the schedule are to be taken too, in place of the program's.
    #[serde(skip)]
    pub(crate) with_settings: bool,
}

impl ScalerState {
    /// What no run can have stored, if there is something.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let pending = self.pending.filter(|o| !o.is_stepped() && !o.is_skipped());
        let pending = pending.map(|outcome| format!("its iteration is {outcome:?}"));
        let zero = (self.schedule.scale() == 0.0).then(|| "its loss scale is 0".to_string());
        let part = self.parts.values().find_map(PartState::contradiction);
        (self.counters.contradiction().or(pending))
            .or(zero)
            .or(part)
    }

    /// Lets a program go on with the loss scale of this state, and the factors of its parts.
    pub(crate) fn resume(&self, amp: &MixedPrecision, origin: &str) {
        let live = amp.live();
        live.set_schedule(self.resumed(&live.schedule(), origin));
        live.restore_parts(&self.parts, self.with_settings);
    }

    /// The schedule to go on with where `here` was: this state under the settings that are there, which the log compares.
    pub(crate) fn resumed(&self, here: &LossScale, origin: &str) -> LossScale {
        let (settings, stored) = (here.config(), self.schedule.config());
        if self.with_settings {
            let enabled = settings.enabled;
            return self
                .schedule
                .in_program(&GradScalerConfig { enabled, ..*stored });
        }
        let resumed = here.continuing(&self.schedule);
        let differences = differences(settings, stored);
        if !differences.is_empty() {
            let (before, after) = (self.schedule.scale(), resumed.scale());
            let moved = match before == after {
                true => String::new(),
                false => format!(
                    " The loss scale is {}, where the record has {}.",
                    short(after.into()),
                    short(before.into())
                ),
            };
            log::warn!(
                "{origin} was saved with other settings of the loss scale, and those of the program are used: {}.{moved} \
                 `AmpRecord::with_settings` takes those of the record instead; in a `Learner`, see `Resume::record`",
                differences.join(", ")
            );
        }
        resumed
    }
}

/// Every setting in which the program differs from the record, in words.
fn differences(here: &GradScalerConfig, stored: &GradScalerConfig) -> Vec<String> {
    let fields = |config| match serde_json::to_value(config) {
        Ok(Value::Object(fields)) => fields,
        _ => Default::default(),
    };
    let stored = fields(stored);
    fields(here)
        .into_iter()
        .filter(|(name, value)| stored.get(name) != Some(value))
        .map(|(name, value)| {
            let words = |value: &Value| match value {
                Value::Null => "none".to_string(),
                value => value.to_string(),
            };
            let there = stored.get(&name).map_or_else(String::new, words);
            format!("`{name}` is {} here and {there} there", words(&value))
        })
        .collect()
}

impl GradScaler {
    pub(crate) fn state_to_store(&self) -> ScalerState {
        ScalerState {
            schedule: self.schedule(),
            counters: self.counters,
            pending: self.iteration.outcome(),
            seen: self.iteration.observation().and_then(|seen| seen.measures),
            parts: self
                .precision()
                .map_or_else(BTreeMap::new, |amp| amp.live().parts()),
            with_settings: false,
        }
    }

    /// Goes on from a stored state, under the settings that are here. Nothing is left of what this scaler has seen before.
    pub(crate) fn restore(&mut self, state: ScalerState, origin: &str) {
        match self.precision() {
            Some(amp) => state.resume(amp, origin),
            None => self.schedule = state.resumed(&self.schedule, origin),
        }
        self.restore_counters(state);
        #[cfg(feature = "train")]
        if let Some(amp) = self.precision() {
            amp.publish(self, false);
        }
    }

    /// As [`restore`](Self::restore), where the schedule is in place already.
    pub(crate) fn restore_counters(&mut self, state: ScalerState) {
        self.forget_steps();
        self.counters = state.counters;
        if self.config() != *state.schedule.config() {
            // A run that has ended for its skips is to go on with other settings.
            self.counters.reset_rows();
        }
        let pending = state.pending.map(|outcome| Observation {
            outcome,
            measures: state.seen,
        });
        self.iteration.restore(pending);
    }

    fn forget_steps(&mut self) {
        (self.last_outcome, self.last_status) = (None, None);
        self.watch = crate::loss_watch::LossWatch::default();
        self.unsettled = crate::iteration::Unsettled::default();
        // Those of a model that is loaded too, most likely.
        self.forget_statistics();
        self.suspicious = false;
    }

    /// Counts from zero. The schedule stays.
    #[cfg(feature = "train")]
    pub(crate) fn reset_counters(&mut self) {
        self.forget_steps();
        self.counters = StepCounters::default();
        self.iteration.restore(None);
    }
}
