//! The state of a scaler in a record.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

use super::Scaler;
use crate::error::{AmpError, short};
use crate::scale::loss_scale::{Evidence, LossScale, Measures, StepOutcome};
use crate::{
    scale::finding::Dropped, scale::live_scale::LiveScale, scale::regions::RegionState,
    scale::step_counters::StepCounters, scaler::losses::LossWatch,
};

/// The state of a scaler, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScalerState {
    pub(crate) schedule: LossScale,
    pub(crate) counters: StepCounters,
    /// The outcome of an iteration that has not been ended.
    pub(super) pending: Option<StepOutcome>,
    /// The measures of its gradients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<Measures>,
    /// The regions of the network whose factors move.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) regions: BTreeMap<String, RegionState>,
    /// True if the settings of the schedule are to be taken too, in place of the program's.
    #[serde(skip)]
    pub(crate) with_settings: bool,
}

impl ScalerState {
    /// Names a contradiction, which no run can have stored, if there is one.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let pending = self.pending.filter(|o| !o.is_stepped() && !o.is_skipped());
        let pending = pending.map(|outcome| format!("its iteration is {outcome:?}"));
        self.counters.contradiction().or(pending)
    }

    /// Lets a program go on with the loss scale of this state, and the factors of its regions.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); nothing has changed then.
    pub fn resume(&self, live: &LiveScale, origin: &str) -> Result<(), AmpError> {
        live.resolve(true);
        let resumed = self.check(live, origin)?;
        self.log_differences(&live.schedule(), &resumed, origin);
        live.restart_at(resumed);
        let restored = (live.regions).replace(|own| own.restore(&self.regions, self.with_settings));
        drop(restored);
        Ok(())
    }

    /// The schedule to go on with where that of `live` was: this state under the settings and the rule that are there.
    ///
    /// # Errors
    ///
    /// [`AmpError::DamagedRecord`] if a rule of the program refuses what is stored under its name.
    pub(crate) fn check(&self, live: &LiveScale, origin: &str) -> Result<LossScale, AmpError> {
        let resumed = live.schedule().resumed(&self.schedule, self.with_settings);
        resumed
            .and_then(|resumed| live.regions.check(&self.regions).map(|()| resumed))
            .map_err(|reason| AmpError::damaged(origin, reason))
    }

    /// Names what differs here from what is stored.
    fn log_differences(&self, here: &LossScale, resumed: &LossScale, origin: &str) {
        let stored = &self.schedule;
        if self.with_settings {
            let (rule, other) = (resumed.rule_name(), stored.rule_name());
            if rule != other {
                warn!(
                    "{origin} was saved under the rule `{other}` of the loss scale, which is not here: `{rule}` starts fresh"
                );
            }
            return;
        }
        let fields = differences(here, stored);
        if !fields.is_empty() {
            let (before, after) = (stored.scale(), resumed.scale());
            let moved = match before == after || stored.is_idle() || resumed.is_idle() {
                true => String::new(),
                false => format!(
                    " The loss scale is {}, where the record has {}.",
                    short(after.into()),
                    short(before.into())
                ),
            };
            let advice = match fields.keys().any(|field| field != ENABLED) {
                false => "",
                true => {
                    " `AmpRecord::with_settings` takes those of the record instead, all but `enabled`; in a `Learner`, see `Resume::record`"
                }
            };
            let fields: Vec<String> = fields.into_values().collect();
            warn!(
                "{origin} was saved with other settings of the loss scale, and those of the program are used: {}.{moved}{advice}",
                fields.join(", ")
            );
        }
    }
}

/// The setting that is the program's, whatever a record is loaded with.
const ENABLED: &str = "enabled";

/// Every setting in which the program differs from the record, in words, by its name.
fn differences(here: &LossScale, stored: &LossScale) -> BTreeMap<String, String> {
    let fields = |scale: &LossScale| {
        let mut fields = serde_json::to_value(scale.config()).unwrap_or_default();
        if scale.has_own_rule() {
            fields["schedule"] = scale.rule_name().into();
        }
        fields
    };
    let is_used = here.config().enabled && stored.config().enabled;
    let (here, stored) = (fields(here), fields(stored));
    let words = |value: &Value| match value {
        Value::Null => "none".to_string(),
        value => value.to_string(),
    };
    let difference = |(name, value): (&String, &Value)| {
        let (here, there) = (words(value), words(&stored[name]));
        let is_other = (is_used || name == ENABLED) && stored[name] != *value;
        is_other.then(|| {
            (
                name.clone(),
                format!("`{name}` is {here} here and {there} there"),
            )
        })
    };
    let fields = here.as_object().into_iter().flatten();
    fields.filter_map(difference).collect()
}

impl ScalerState {
    /// The evidence of the iteration that was not ended.
    pub(crate) fn pending(&self) -> Option<Evidence> {
        Evidence::of(self.pending?, self.seen)
    }
}

impl Scaler {
    /// The state, to be stored, in an iteration that has shown this so far.
    pub(crate) fn state_to_store(&self, seen: Option<Evidence>) -> ScalerState {
        ScalerState {
            schedule: self.schedule(),
            counters: self.counters(),
            pending: seen.map(Evidence::outcome),
            seen: match seen {
                Some(Evidence::Finite(measures)) => measures,
                _ => None,
            },
            regions: self.live.regions.lock().states(),
            with_settings: false,
        }
    }

    /// Goes on from a stored state, under the settings that are here. Nothing is left of what this scaler has seen before.
    ///
    /// # Errors
    ///
    /// As [`ScalerState::check`]; nothing has changed then.
    pub(crate) fn restore(&mut self, state: &ScalerState, origin: &str) -> Result<(), AmpError> {
        state.resume(&self.live, origin)?;
        self.restore_counters(state);
        self.live.show(self.place.id, true);
        Ok(())
    }

    /// Restores all but the schedule, which is in place already.
    pub(crate) fn restore_counters(&mut self, state: &ScalerState) {
        self.restart_at(match self.schedule().is_like(&state.schedule) {
            true => state.counters,
            // A run that has ended for its skips is to go on with other settings.
            false => state.counters.with_rows_of(StepCounters::default()),
        });
    }

    /// Counts on from there, and forgets all that this scaler has seen before. The schedule stays.
    pub(crate) fn restart_at(&mut self, counters: StepCounters) {
        self.account(|account| account.restart_at(counters));
        self.watch = LossWatch::default();
        self.dropped = Dropped::default();
        // Those of a model that is loaded too, most likely.
        self.buffers.forget();
    }
}
