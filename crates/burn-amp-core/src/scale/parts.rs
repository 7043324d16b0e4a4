//! The parts of the network whose factors move, beside the scale that all share. Knows no events, and no optimizer.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::scale::loss_scale::{Evidence, LossScale, Measures};
use crate::{earlier, error::short, scale::rescale::Driven, values::number};

#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    by_name: BTreeMap<Arc<str>, Part>,
    /// In which part each parameter was read last.
    pub(crate) readers: HashMap<Arc<str>, Arc<str>>,
}

impl Parts {
    /// Whether the program has opened one. What a record has brought moves nothing before.
    pub(crate) fn were_opened(&self) -> bool {
        (self.by_name.values()).any(|part| part.settings.is_some())
    }

    /// What a part multiplies gradients by now. A `dry` run leaves no trace.
    pub(crate) fn enter(&mut self, driven: &Arc<Driven>, dry: bool) -> f32 {
        if dry {
            let known = self.by_name.get(&driven.name);
            return known.map_or(driven.schedule.scale(), Part::factor);
        }
        let part = self.by_name.entry(driven.name.clone());
        let part = part.or_insert_with(|| Part::first(driven));
        part.open(driven);
        part.factor()
    }

    /// A parameter is read, in a part or in none.
    pub(crate) fn read_in(&mut self, part: Option<&Arc<str>>, path: &Arc<str>) {
        match part {
            Some(part) => drop(self.readers.insert(path.clone(), part.clone())),
            None if self.readers.is_empty() => {}
            // Shared by a part and what is around it.
            None => drop(self.readers.remove(path)),
        }
    }

    /// The parts in which these parameters were read; none if one was read elsewhere.
    pub(crate) fn of_parameters<'a>(
        &self,
        mut parameters: impl Iterator<Item = &'a str>,
    ) -> Vec<Arc<str>> {
        if self.readers.is_empty() {
            return Vec::new();
        }
        let parts: Option<HashSet<_>> = parameters.try_fold(HashSet::new(), |mut parts, path| {
            parts.insert(self.readers.get(path)?.clone());
            Some(parts)
        });
        parts.into_iter().flatten().collect()
    }

    /// Backs off the parts that are the cause of a skip. Whether the scale that all share may stay: each of them had a lower factor to go to.
    pub(crate) fn back_off(&mut self, names: Vec<Arc<str>>) -> bool {
        let mut all = !names.is_empty();
        for name in names {
            let part = self.by_name.get_mut(&name);
            all &= part.is_some_and(|part| part.back_off(&name));
        }
        all
    }

    /// Ends an iteration: after a finite one the factors of the parts that were opened in it move.
    pub(crate) fn end_iteration(&mut self, is_finite: bool) {
        for (name, part) in &mut self.by_name {
            if is_finite && part.opened {
                part.count_finite(name);
            }
            if part.settings.is_none() && !std::mem::replace(&mut part.warned, true) {
                warn!(
                    "part `{name}` comes from a record, and the first step after it was loaded has not opened it: its factor waits, here and in \
                     records, until a part of this name is opened"
                );
            }
            part.forget();
        }
    }

    /// Whether a part moves by what comes to it.
    pub(crate) fn needs_measures(&self, name: &Arc<str>) -> bool {
        (self.by_name.get(name)).is_some_and(|part| part.stored.schedule.needs_measures())
    }

    pub(crate) fn see(&mut self, name: &Arc<str>, measures: Measures) {
        if let Some(part) = self.by_name.get_mut(name) {
            let seen = &mut part.stored.seen;
            *seen = Some(seen.map_or(measures, |seen| seen.and(measures)));
        }
    }

    /// An open window is thrown away.
    pub(crate) fn forget_window(&mut self) {
        (self.by_name.values_mut()).for_each(|part| part.stored.seen = None);
    }

    /// What each of them multiplies gradients by, for a record.
    pub(crate) fn states(&self) -> BTreeMap<String, PartState> {
        let state = |(name, part): (&Arc<str>, &Part)| (name.to_string(), part.stored.clone());
        self.by_name.iter().map(state).collect()
    }

    /// Why a part refuses what a record has under its name, if one does. One that is not opened yet cannot be asked.
    pub(crate) fn check(&self, states: &BTreeMap<String, PartState>) -> Result<(), String> {
        for (name, state) in states {
            if let Some(part) = self.by_name.get(name.as_str())
                && let Some(driven) = &part.settings
            {
                part.resumed(&state.schedule, driven)
                    .map_err(|reason| format!("part `{name}`: {reason}"))?;
            }
        }
        Ok(())
    }

    /// Goes on from the parts of a record, or from none.
    pub(crate) fn restore(&mut self, states: &BTreeMap<String, PartState>, with_settings: bool) {
        let part = |(name, state): (&String, &PartState)| {
            (name.as_str().into(), Part::of(state, with_settings))
        };
        self.by_name = states.iter().map(part).collect();
    }

    /// Uses the factors that another has reached.
    pub(crate) fn follow(&mut self, other: &Self) {
        for (name, Part { stored, .. }) in &other.by_name {
            let part = self.by_name.entry(name.clone());
            let part = part.or_insert_with(|| Part::of(stored, true));
            part.stored = stored.clone();
            part.stored.seen = None;
        }
    }

    /// Starts all of them again that were opened.
    pub(crate) fn restart(&mut self) {
        for part in self.by_name.values_mut() {
            if let Some(driven) = &part.settings {
                *part = Part::first(driven);
            }
        }
    }

    /// The parts that were opened since the last step; none of them again until it is opened again.
    pub(crate) fn take_opened(&mut self) -> Vec<Arc<Driven>> {
        let opened = |part: &mut Part| {
            let opened = std::mem::take(&mut part.opened);
            part.settings.clone().filter(|_| opened)
        };
        self.by_name.values_mut().filter_map(opened).collect()
    }
}

/// What a record holds of a part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub(crate) struct PartState {
    pub(crate) schedule: LossScale,
    /// What has come to it in an open window.
    #[serde(skip_serializing_if = "number::is_default")]
    pub(crate) seen: Option<Measures>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    schedule: LossScale,
    #[serde(default)]
    seen: Option<Measures>,
    /// In records of earlier versions.
    #[serde(default)]
    factor: Option<f32>,
}

impl From<Stored> for PartState {
    fn from(stored: Stored) -> Self {
        let Stored { schedule, seen, .. } = stored;
        let schedule = match stored.factor {
            Some(factor) => schedule.below_as_ceiling(earlier::BOUNDED_RULE, factor),
            None => schedule,
        };
        Self { schedule, seen }
    }
}

impl PartState {
    /// What no run can have stored, if there is something.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let factor = self.schedule.scale();
        let is_valid = factor.is_finite() && factor > 0.0;
        (!is_valid).then(|| format!("the factor of a part is {factor}"))
    }
}

/// A part whose factor moves. A value, without tensors.
#[derive(Clone, Debug, Default)]
struct Part {
    stored: PartState,
    /// What the program wants; none until it has opened a part that came from a record.
    settings: Option<Arc<Driven>>,
    /// Whether the settings of the record are to be kept.
    keeps_settings: bool,
    /// Of parts of one name with several settings, or of one that was not opened.
    warned: bool,
    /// Whether it was opened since the last step.
    opened: bool,
}

impl Part {
    /// One that a program has opened.
    fn first(driven: &Arc<Driven>) -> Self {
        Self {
            stored: PartState {
                schedule: driven.schedule.clone(),
                seen: None,
            },
            settings: Some(driven.clone()),
            ..Self::default()
        }
    }

    /// One that a record has brought, with its settings or without.
    fn of(stored: &PartState, keeps_settings: bool) -> Self {
        Self {
            stored: stored.clone(),
            keeps_settings,
            ..Self::default()
        }
    }

    /// A program opens it with these settings: the first ones count, or those of the record.
    fn open(&mut self, driven: &Arc<Driven>) {
        self.opened = true;
        match &self.settings {
            None => self.adopt(driven),
            Some(settings) if settings == driven || self.warned => {}
            Some(_) => {
                self.warned = true;
                warn!(
                    "part `{}` is opened with other settings than before, and keeps the first ones: give parts names of their own",
                    driven.name
                );
            }
        }
    }

    fn adopt(&mut self, driven: &Arc<Driven>) {
        let name = &driven.name;
        let is_other = !self.stored.schedule.is_like(&driven.schedule);
        let resumed = self.resumed(&self.stored.schedule, driven);
        if resumed.is_ok() && is_other && !self.keeps_settings {
            warn!("part `{name}` was saved with other settings, and those of the program are used");
        }
        self.stored.schedule = resumed.unwrap_or_else(|reason| {
            warn!("part `{name}` starts fresh: {reason}");
            driven.schedule.clone()
        });
        self.settings = Some(driven.clone());
        self.warned = false;
    }

    /// What a program that opens it with these settings makes of a stored schedule. The error says why its rule refuses it.
    fn resumed(&self, stored: &LossScale, driven: &Driven) -> Result<LossScale, String> {
        (driven.schedule.clone()).resumed(stored, self.keeps_settings)
    }

    fn factor(&self) -> f32 {
        self.stored.schedule.scale()
    }

    /// Ends a step in which the gradient has overflowed here first. Whether there was a lower factor to go to.
    fn back_off(&mut self, name: &str) -> bool {
        self.forget();
        let before = self.factor();
        let schedule = &mut self.stored.schedule;
        if !schedule.config().dynamic || schedule.is_at_floor() {
            return false;
        }
        *schedule = schedule.clone().advance(Evidence::Overflow);
        let (before, after) = (short(before.into()), short(self.factor().into()));
        log::info!(
            "part `{name}`: gradients overflow at {before} times the loss scale, next {after}"
        );
        true
    }

    /// Takes in a finite step in which it was opened.
    fn count_finite(&mut self, name: &str) {
        let before = self.factor();
        let PartState { schedule, seen } = &mut self.stored;
        *schedule = schedule.clone().advance(Evidence::Finite(*seen));
        let after = self.factor();
        if before != after {
            let (before, after) = (short(before.into()), short(after.into()));
            log::debug!("part `{name}`: {before} times the loss scale, next {after}");
        }
    }

    /// Ends a step.
    fn forget(&mut self) {
        self.opened = false;
        self.stored.seen = None;
    }
}
