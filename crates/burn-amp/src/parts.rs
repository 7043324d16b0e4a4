//! The parts of a network whose factors move, beside the scale that all share. Knows no events, and no optimizer.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use crate::{
    adaloss::Statistics,
    rescale::{Driven, Part, PartState},
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    by_name: BTreeMap<Arc<str>, Part>,
    /// In which part each parameter was read last.
    pub(crate) readers: HashMap<Arc<str>, Arc<str>>,
}

impl Parts {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// What a part multiplies gradients by now. A `dry` run leaves no trace.
    pub(crate) fn enter(&mut self, driven: &Driven, dry: bool) -> f32 {
        if dry {
            let known = self.by_name.get(&driven.name).map(Part::factor);
            return known.unwrap_or_else(|| driven.first_factor());
        }
        let part = self.by_name.entry(driven.name.clone());
        let part = part.or_insert_with(|| Part::new(driven));
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
            all &= match self.by_name.get_mut(&name) {
                Some(part) => part.back_off(&name),
                None => false,
            };
        }
        all
    }

    /// Ends an iteration.
    pub(crate) fn end_iteration(&mut self, is_finite: bool) {
        for (name, part) in &mut self.by_name {
            if is_finite {
                part.learn(name);
            }
            part.forget();
        }
    }

    /// Whether a part moves by what comes to it.
    pub(crate) fn want_statistics(&self, name: &Arc<str>) -> bool {
        self.by_name.get(name).is_some_and(Part::wants_statistics)
    }

    /// Whether any part does.
    pub(crate) fn any_wants_statistics(&self) -> bool {
        self.by_name.values().any(Part::wants_statistics)
    }

    pub(crate) fn see(&mut self, name: &Arc<str>, statistics: Statistics) {
        if let Some(part) = self.by_name.get_mut(name) {
            part.see(statistics);
        }
    }

    /// What each of them multiplies gradients by, for a record.
    pub(crate) fn states(&self) -> BTreeMap<String, PartState> {
        let state = |(name, part): (&Arc<str>, &Part)| (name.to_string(), part.state());
        self.by_name.iter().map(state).collect()
    }

    /// Why a part refuses what a record has under its name, if one does. One that is not opened yet cannot be asked.
    pub(crate) fn check(&self, states: &BTreeMap<String, PartState>) -> Result<(), String> {
        for (name, state) in states {
            if let Some(part) = self.by_name.get(name.as_str()) {
                (part.check(state)).map_err(|reason| format!("part `{name}`: {reason}"))?;
            }
        }
        Ok(())
    }

    /// Goes on from the parts of a record, or from none.
    pub(crate) fn restore(&mut self, states: &BTreeMap<String, PartState>, with_settings: bool) {
        let part = |(name, state): (&String, &PartState)| {
            let part = Part::stored(state.clone(), with_settings);
            (name.as_str().into(), part)
        };
        self.by_name = states.iter().map(part).collect();
    }

    /// Uses the factors that another has reached.
    pub(crate) fn follow(&mut self, states: &BTreeMap<String, PartState>) {
        for (name, reached) in states {
            let part = self.by_name.entry(name.as_str().into());
            part.or_insert_with(|| Part::stored(reached.clone(), true))
                .follow(reached.clone());
        }
    }

    /// Starts all of them again.
    pub(crate) fn restart(&mut self) {
        self.by_name.values_mut().for_each(Part::restart);
    }

    /// The parts that were opened since the last step.
    pub(crate) fn take_opened(&mut self) -> Vec<Driven> {
        let parts = self.by_name.values_mut();
        parts.filter_map(Part::take_opened).collect()
    }
}
