//! The regions of the network whose factors move, beside the scale that all share. Knows no events, and no optimizer.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::{replace, take};
use std::sync::{Arc, Mutex};

use crate::lock::{Guard, locked};
use crate::scale::loss_scale::{Evidence, LossScale, Measures};
use crate::{error::short, scale::rescale::NamedRegion, values::number};

/// The regions, which scopes and steps share. Rules are asked without the lock, because they are code of a program.
#[derive(Default)]
pub(crate) struct SharedRegions(Mutex<Regions>);

impl SharedRegions {
    pub(crate) fn lock(&self) -> Guard<'_, Regions> {
        locked(&self.0)
    }

    /// What a region multiplies gradients by now. A `dry` run leaves no trace.
    pub(crate) fn enter(&self, named: &Arc<NamedRegion>, dry: bool) -> f32 {
        let first = || Arc::new(MovingRegion::first(named));
        if dry {
            let known = self.lock().by_name.get(&named.name).cloned();
            return known.unwrap_or_else(first).factor();
        }
        (self.lock().by_name.entry(named.name.clone())).or_insert_with(first);
        let open = |region: &mut MovingRegion| (region.open(named), region.factor());
        let Some((said, factor)) = self.change(&named.name, open) else {
            // Another thread has loaded a record meanwhile.
            return named.schedule.scale();
        };
        said.into_iter().for_each(|line| warn!("{line}"));
        factor
    }

    /// Backs off the regions that are the cause of a skip. Whether the scale that all share may stay: each of them had a lower factor to go to.
    pub(crate) fn back_off(&self, names: &[Arc<str>]) -> bool {
        let mut all = !names.is_empty();
        for name in names {
            let lowered = self.change(name, MovingRegion::back_off).flatten();
            all &= lowered.is_some();
            if let Some([before, after]) = lowered {
                info!(
                    "region `{name}`: gradients overflow at {before} times the loss scale, next {after}"
                );
            }
        }
        all
    }

    /// Whether these regions, of which there is one, all have a lower factor to go to.
    pub(crate) fn can_back_off(&self, names: &[Arc<str>]) -> bool {
        let region = |name| self.lock().by_name.get(name).cloned();
        let can = |name| region(name).is_some_and(|region| region.can_back_off());
        !names.is_empty() && names.iter().all(can)
    }

    /// Ends an iteration: after a finite one the factors of the regions that were opened in it move. A region that is not shown what comes to it
    /// takes gradients that are all zero for no evidence.
    pub(crate) fn end_iteration(&self, finite: Option<Evidence>) {
        let names: Vec<_> = {
            let mut regions = self.lock();
            regions.iteration += 1;
            regions.by_name.keys().cloned().collect()
        };
        for name in names {
            let ended = self.change(&name, |region| region.end(finite));
            let Some((moved, is_missed)) = ended else {
                continue;
            };
            if let Some([before, after]) = moved {
                debug!("region `{name}`: {before} times the loss scale, next {after}");
            }
            if is_missed {
                warn!(
                    "region `{name}` comes from a record, and the first step after it was loaded has not opened it: its factor waits, here and in \
                     records, until a region of this name is opened"
                );
            }
        }
    }

    /// Why a region refuses what a record has under its name, if one does. One that is not opened yet cannot be asked.
    pub(crate) fn check(&self, states: &BTreeMap<String, RegionState>) -> Result<(), String> {
        let known = self.lock().by_name.clone();
        for (name, state) in states {
            if let Some(region) = known.get(name.as_str())
                && let Some(named) = &region.settings
            {
                region
                    .resumed(&state.schedule, named)
                    .map_err(|reason| format!("region `{name}`: {reason}"))?;
            }
        }
        Ok(())
    }

    /// Changes a region: again, if another thread has changed it meanwhile. None if it is gone.
    fn change<T>(&self, name: &Arc<str>, change: impl Fn(&mut MovingRegion) -> T) -> Option<T> {
        loop {
            let before = self.lock().by_name.get(name).cloned()?;
            let mut next = MovingRegion::clone(&before);
            let result = change(&mut next);
            if let Some(now) = self.lock().by_name.get_mut(name)
                && Arc::ptr_eq(now, &before)
            {
                *now = Arc::new(next);
                return Some(result);
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Regions {
    by_name: BTreeMap<Arc<str>, Arc<MovingRegion>>,
    /// In which regions each parameter was read last, by its path. Several models may have one of that path.
    readers: HashMap<Arc<str>, Readers>,
    /// How many iterations have ended.
    iteration: u64,
}

/// Where parameters of one path were read, in an iteration: none stands for outside of all regions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readers {
    iteration: u64,
    regions: HashSet<Option<Arc<str>>>,
}

impl Regions {
    /// Whether the program has opened one. What a record has brought moves nothing before.
    pub(crate) fn were_opened(&self) -> bool {
        (self.by_name.values()).any(|region| region.settings.is_some())
    }

    /// A parameter is read, in a region or in none.
    pub(crate) fn read_in(&mut self, region: Option<&Arc<str>>, path: &Arc<str>) {
        if region.is_none() && self.readers.is_empty() {
            return;
        }
        self.add_readers(path.clone(), [region.cloned()]);
    }

    fn add_readers(&mut self, path: Arc<str>, regions: impl IntoIterator<Item = Option<Arc<str>>>) {
        let readers = self.readers.entry(path).or_default();
        if readers.iteration != self.iteration {
            readers.regions.clear();
        }
        readers.iteration = self.iteration;
        readers.regions.extend(regions);
    }

    /// Of the parameters that were read in this iteration.
    pub(crate) fn readers_now(&self) -> HashMap<Arc<str>, Readers> {
        let is_now = |(_, readers): &(_, &Readers)| readers.iteration == self.iteration;
        let now = self.readers.iter().filter(is_now);
        now.map(|(path, readers)| (path.clone(), readers.clone()))
            .collect()
    }

    /// Reads of another, in this iteration.
    pub(crate) fn join_readers(&mut self, others: HashMap<Arc<str>, Readers>) {
        for (path, others) in others {
            self.add_readers(path, others.regions);
        }
    }

    /// The regions in which these parameters were read; none if one was read elsewhere.
    pub(crate) fn of_parameters<'a>(
        &self,
        mut parameters: impl Iterator<Item = &'a str>,
    ) -> Vec<Arc<str>> {
        if self.readers.is_empty() {
            return Vec::new();
        }
        let regions: Option<HashSet<_>> = parameters.try_fold(HashSet::new(), |mut all, path| {
            for region in &self.readers.get(path)?.regions {
                all.insert(region.clone()?);
            }
            Some(all)
        });
        regions.into_iter().flatten().collect()
    }

    /// Whether any region moves by what comes to it.
    pub(crate) fn need_measures(&self) -> bool {
        let mut regions = self.by_name.values();
        regions.any(|region| region.stored.schedule.needs_measures())
    }

    /// Whether a region moves by what comes to it.
    pub(crate) fn needs_measures(&self, name: &Arc<str>) -> bool {
        (self.by_name.get(name)).is_some_and(|region| region.stored.schedule.needs_measures())
    }

    pub(crate) fn see(&mut self, name: &Arc<str>, measures: Measures) {
        if let Some(region) = self.by_name.get_mut(name) {
            let seen = &mut Arc::make_mut(region).stored.seen;
            *seen = Some(seen.map_or(measures, |seen| seen.and(measures)));
        }
    }

    /// An open window is thrown away.
    pub(crate) fn forget_window(&mut self) {
        (self.by_name.values_mut()).for_each(|region| Arc::make_mut(region).stored.seen = None);
    }

    /// What each of them multiplies gradients by, for a record, and whether the step that comes moves it.
    pub(crate) fn states(&self) -> BTreeMap<String, RegionState> {
        let state = |(name, region): (&Arc<str>, &Arc<MovingRegion>)| {
            let state = RegionState {
                opened: region.opened,
                ..region.stored.clone()
            };
            (name.to_string(), state)
        };
        self.by_name.iter().map(state).collect()
    }

    /// Those that another side has open are open here, too: also those of a record, which no scope has opened yet.
    pub(crate) fn open_as(&mut self, other: &Self) {
        for (name, other) in other.by_name.iter().filter(|(_, region)| region.opened) {
            let region = self.by_name.entry(name.clone());
            let region = region.or_insert_with(|| other.clone());
            Arc::make_mut(region).opened = true;
        }
    }

    /// Those that are open here are open in a record, too.
    pub(crate) fn open_in(&self, record: &mut BTreeMap<String, RegionState>) {
        for (name, state) in self.states().into_iter().filter(|(_, state)| state.opened) {
            record.entry(name).or_insert(state).opened = true;
        }
    }

    /// Goes on from the regions of a record, or from none. Those before, to be dropped without the lock: their rules are.
    pub(crate) fn restore(
        &mut self,
        states: &BTreeMap<String, RegionState>,
        with_settings: bool,
    ) -> impl Sized + use<> {
        let region = |(name, state): (&String, &RegionState)| {
            let region = MovingRegion::of(state, with_settings);
            (name.as_str().into(), region.into())
        };
        replace(&mut self.by_name, states.iter().map(region).collect())
    }

    /// Uses the factors that another has reached.
    pub(crate) fn follow(&mut self, other: &Self) {
        for (name, other) in &other.by_name {
            let stored = &other.stored;
            let region = self.by_name.entry(name.clone());
            let region = region.or_insert_with(|| MovingRegion::of(stored, true).into());
            let region = Arc::make_mut(region);
            region.stored = stored.clone();
            region.stored.seen = None;
        }
    }

    /// Starts all of them again. What a record has brought, and nothing has opened, is gone. Those before, as [`restore`](Self::restore).
    pub(crate) fn restart(&mut self) -> impl Sized + use<> {
        let settings = self
            .by_name
            .values()
            .filter_map(|region| region.settings.as_ref());
        let first = settings.map(|named| (named.name.clone(), MovingRegion::first(named).into()));
        let first = first.collect();
        replace(&mut self.by_name, first)
    }

    /// The regions that were opened since the last step; none of them again until it is opened again.
    pub(crate) fn take_opened(&mut self) -> Vec<Arc<NamedRegion>> {
        self.iteration += 1;
        let opened = |region: &mut Arc<MovingRegion>| {
            let region = Arc::make_mut(region);
            let opened = take(&mut region.opened);
            region.settings.clone().filter(|_| opened)
        };
        self.by_name.values_mut().filter_map(opened).collect()
    }
}

/// What a record holds of a region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RegionState {
    pub(crate) schedule: LossScale,
    /// What has come to it in an open window.
    #[serde(default, skip_serializing_if = "number::is_default")]
    pub(crate) seen: Option<Measures>,
    /// Whether a pass has opened it since the last step: the next step moves it.
    #[serde(default, skip_serializing_if = "number::is_default")]
    opened: bool,
}

impl RegionState {
    /// What no run can have stored, if there is something.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let factor = self.schedule.scale();
        let is_valid = factor.is_finite() && factor > 0.0;
        (!is_valid).then(|| format!("the factor of a region is {factor}"))
    }
}

/// A region whose factor moves. A value, without tensors.
#[derive(Clone, Debug, Default)]
struct MovingRegion {
    stored: RegionState,
    /// What the program wants; none until it has opened a region that came from a record.
    settings: Option<Arc<NamedRegion>>,
    /// Whether the settings of the record are to be kept.
    keeps_settings: bool,
    /// Of regions of one name with several settings, or of one that was not opened.
    warned: bool,
    /// Whether it was opened since the last step.
    opened: bool,
}

impl MovingRegion {
    /// One that a program has opened.
    fn first(named: &Arc<NamedRegion>) -> Self {
        Self {
            stored: RegionState {
                schedule: named.schedule.clone(),
                ..RegionState::default()
            },
            settings: Some(named.clone()),
            ..Self::default()
        }
    }

    /// One that a record has brought, with its settings or without.
    fn of(stored: &RegionState, keeps_settings: bool) -> Self {
        let mut stored = stored.clone();
        Self {
            opened: std::mem::take(&mut stored.opened),
            stored,
            keeps_settings,
            ..Self::default()
        }
    }

    /// A program opens it with these settings: the first ones count, or those of the record. What the log is to say of it.
    fn open(&mut self, named: &Arc<NamedRegion>) -> Option<String> {
        self.opened = true;
        match &self.settings {
            None => self.adopt(named),
            Some(settings) if settings == named || self.warned => None,
            Some(_) => {
                self.warned = true;
                Some(format!(
                    "region `{}` is opened with other settings than before, and keeps the first ones: give regions names of their own",
                    named.name
                ))
            }
        }
    }

    fn adopt(&mut self, named: &Arc<NamedRegion>) -> Option<String> {
        let name = &named.name;
        let is_other = !self.stored.schedule.is_like(&named.schedule) && !self.keeps_settings;
        let resumed = self.resumed(&self.stored.schedule, named);
        let said = match &resumed {
            Ok(_) => is_other.then(|| {
                format!(
                    "region `{name}` was saved with other settings, and those of the program are used"
                )
            }),
            Err(reason) => Some(format!("region `{name}` starts fresh: {reason}")),
        };
        self.stored.schedule = resumed.unwrap_or_else(|_| named.schedule.clone());
        self.settings = Some(named.clone());
        self.warned = false;
        said
    }

    /// What a program that opens it with these settings makes of a stored schedule. The error says why its rule refuses it.
    fn resumed(&self, stored: &LossScale, named: &NamedRegion) -> Result<LossScale, String> {
        (named.schedule.clone()).resumed(stored, self.keeps_settings)
    }

    fn factor(&self) -> f32 {
        self.stored.schedule.scale()
    }

    fn can_back_off(&self) -> bool {
        let schedule = &self.stored.schedule;
        schedule.config().dynamic && !schedule.is_at_floor()
    }

    /// Ends a step in which the gradient has overflowed here first. Its factors before and after; none if there was no lower one to go to.
    fn back_off(&mut self) -> Option<[String; 2]> {
        self.forget();
        self.can_back_off()
            .then(|| self.advance(Evidence::Overflow))
    }

    /// Ends an iteration: a finite one in which it was opened moves its factor. Its factors before and after, if they differ, and whether it has
    /// come from a record and was not opened.
    fn end(&mut self, finite: Option<Evidence>) -> (Option<[String; 2]>, bool) {
        let is_blind = !self.stored.schedule.needs_measures();
        let says = |seen: Evidence| !(is_blind && seen.is_all_zero());
        let counts = self.opened && finite.is_some_and(says);
        let seen = self.stored.seen;
        let moved = counts.then(|| self.advance(Evidence::Finite(seen)));
        let is_waiting = self.settings.is_none() && !self.opened;
        let is_missed = is_waiting && !replace(&mut self.warned, true);
        self.forget();
        (moved.filter(|[before, after]| before != after), is_missed)
    }

    fn advance(&mut self, seen: Evidence) -> [String; 2] {
        let before = self.factor();
        let schedule = &mut self.stored.schedule;
        *schedule = schedule.clone().advance(seen);
        [before, self.factor()].map(|factor| short(factor.into()))
    }

    /// Ends a step.
    fn forget(&mut self) {
        self.opened = false;
        self.stored.seen = None;
    }
}
