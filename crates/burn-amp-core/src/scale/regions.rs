//! The regions of the network whose factors move, beside the scale that all share, as far as they have come. Knows no events, and no optimizer.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::{replace, take};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock::{Guard, locked};
use crate::scale::loss_scale::{Evidence, LossScale, Measures};
use crate::{error::short, values::number};

/// The regions, which scopes and steps share. Rules are asked without the lock, because they are code of a program.
#[derive(Default)]
pub(crate) struct SharedRegions {
    regions: Mutex<Regions>,
    /// Set once there is one, entered or of a record: a training without regions passes none of this.
    pub(super) are_there: AtomicBool,
}

impl SharedRegions {
    pub(crate) fn lock(&self) -> Guard<'_, Regions> {
        locked(&self.regions)
    }

    /// Changes all of them, also by adding some.
    pub(crate) fn replace<T>(&self, change: impl FnOnce(&mut Regions) -> T) -> T {
        self.are_there.store(true, Ordering::Relaxed);
        change(&mut self.lock())
    }

    /// Returns the present factor of a region whose factor the program wants to move so. A `dry` run leaves no trace.
    pub(crate) fn enter(&self, name: &str, wanted: &Arc<LossScale>, dry: bool) -> f32 {
        if dry {
            let known = self.lock().by_name.get(name).cloned();
            return known.map_or(wanted.scale(), |region| region.schedule.scale());
        }
        self.are_there.store(true, Ordering::Relaxed);
        (self.lock().by_name.entry(name.to_string()))
            .or_insert_with(|| RegionState::first(wanted).into());
        let enter =
            |region: &mut RegionState| (region.enter(name, wanted), region.schedule.scale());
        let Some((said, factor)) = self.change(name, enter) else {
            // Another thread has loaded a record meanwhile.
            return wanted.scale();
        };
        said.into_iter().for_each(|line| warn!("{line}"));
        factor
    }

    /// Backs off the regions that are the cause of a skip. Returns whether the scale that all share may stay: each of them had a lower factor to go to.
    pub(super) fn back_off(&self, names: &[Arc<str>]) -> bool {
        let mut all = !names.is_empty();
        for name in names {
            let lowered = self.change(name, RegionState::back_off).flatten();
            all &= lowered.is_some();
            if let Some([before, after]) = lowered {
                info!(
                    "region `{name}`: gradients overflow at {before} times the loss scale, next {after}"
                );
            }
        }
        all
    }

    /// Says whether these regions, of which there is one, all have a lower factor to go to.
    pub(super) fn can_back_off(&self, names: &[Arc<str>]) -> bool {
        let region = |name: &Arc<str>| self.lock().by_name.get(&**name).cloned();
        let can = |name| region(name).is_some_and(|region| region.can_back_off());
        !names.is_empty() && names.iter().all(can)
    }

    /// Ends an iteration: after a finite one the factors of the regions that were entered in it move. A region that is not shown what comes to it
    /// takes gradients that are all zero for no evidence.
    pub(super) fn end_iteration(&self, finite: Option<Evidence>) {
        let names: Vec<_> = {
            let mut regions = self.lock();
            regions.readers_before = take(&mut regions.readers);
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

    /// Finds out why a region refuses the state that a record has under its name, if one does. One that is not entered yet cannot be asked.
    pub(crate) fn check(&self, states: &BTreeMap<String, RegionState>) -> Result<(), String> {
        let known = self.lock().by_name.clone();
        for (name, state) in states {
            if let Some(region) = known.get(name)
                && let Some(wanted) = &region.wanted
            {
                let keeps_settings = region.keeps_settings;
                LossScale::clone(wanted)
                    .resumed(&state.schedule, keeps_settings)
                    .map_err(|reason| format!("region `{name}`: {reason}"))?;
            }
        }
        Ok(())
    }

    /// Changes a region: again, if another thread has changed it meanwhile. None if it is gone.
    fn change<T>(&self, name: &str, change: impl Fn(&mut RegionState) -> T) -> Option<T> {
        loop {
            let before = self.lock().by_name.get(name).cloned()?;
            let mut next = RegionState::clone(&before);
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
    by_name: BTreeMap<String, Arc<RegionState>>,
    /// The regions in which parameters of a path were read in this iteration, or none: several models may have one of that path.
    readers: Readers,
    /// The same of the iteration before: a pass may be of that.
    readers_before: Readers,
}

/// The regions in which parameters were read, by their paths: none stands for outside of all regions.
type Readers = HashMap<Arc<str>, HashSet<Option<Arc<str>>>>;

impl Regions {
    /// Says whether the program has entered one. Those that a record has brought move nothing before.
    pub(super) fn were_opened(&self) -> bool {
        let mut regions = self.by_name.values();
        regions.any(|region| region.wanted.is_some())
    }

    /// Notes that a parameter is read, in a region or in none.
    pub(crate) fn read_in(&mut self, region: Option<&Arc<str>>, path: &Arc<str>) {
        let readers = self.readers.entry(path.clone()).or_default();
        readers.insert(region.cloned());
    }

    /// Returns the regions in which these parameters were read; none if one was read elsewhere. For devices on which no gradient is measured at a border.
    pub(super) fn of_parameters<'a>(
        &self,
        mut parameters: impl Iterator<Item = &'a str>,
    ) -> Vec<Arc<str>> {
        let regions: Option<HashSet<_>> = parameters.try_fold(HashSet::new(), |mut all, path| {
            let readers = self.readers.get(path);
            for region in readers.or_else(|| self.readers_before.get(path))? {
                all.insert(region.clone()?);
            }
            Some(all)
        });
        regions.into_iter().flatten().collect()
    }

    /// Says whether a region moves by the gradients that come to it.
    pub(super) fn needs_measures(&self, name: &str) -> bool {
        (self.by_name.get(name)).is_some_and(|region| region.schedule.needs_measures())
    }

    /// Adds the measures of a gradient that has come to a region.
    pub(crate) fn see(&mut self, name: &str, measures: Measures) {
        if let Some(region) = self.by_name.get_mut(name) {
            let seen = &mut Arc::make_mut(region).seen;
            *seen = Some(seen.map_or(measures, |seen| seen.and(measures)));
        }
    }

    /// Forgets the measures of an open window, which is thrown away.
    pub(crate) fn forget_window(&mut self) {
        (self.by_name.values_mut()).for_each(|region| Arc::make_mut(region).seen = None);
    }

    /// Returns the states for a record.
    pub(crate) fn states(&self) -> BTreeMap<String, RegionState> {
        let state = |(name, region): (&String, &Arc<RegionState>)| (name.clone(), region.stored());
        self.by_name.iter().map(state).collect()
    }

    /// Returns the states of the regions that this step has entered, or that gradients have come to.
    pub(crate) fn of_step(&self) -> BTreeMap<String, RegionState> {
        let mut states = self.states();
        states.retain(|_, state| state.opened || state.seen.is_some());
        states
    }

    /// Marks a region as entered that some rank has entered, with the measures of all ranks.
    pub(crate) fn join(&mut self, name: &str, state: RegionState) {
        let unknown = || RegionState {
            schedule: state.schedule.clone(),
            keeps_settings: true,
            ..RegionState::default()
        };
        let region = self.by_name.entry(name.to_string());
        let region = Arc::make_mut(region.or_insert_with(|| unknown().into()));
        (region.opened, region.seen) = (state.opened, state.seen);
    }

    /// Goes on from the regions of a record, or from none. Returns those before, to be dropped without the lock: their rules are.
    pub(crate) fn restore(
        &mut self,
        states: &BTreeMap<String, RegionState>,
        keeps_settings: bool,
    ) -> impl Sized + use<> {
        let region = |(name, state): (&String, &RegionState)| {
            let state = RegionState {
                keeps_settings,
                ..state.clone()
            };
            (name.clone(), Arc::new(state))
        };
        replace(&mut self.by_name, states.iter().map(region).collect())
    }

    /// Starts all of them again. Those that a record has brought, and that nothing has entered, are gone. Returns those before, as
    /// [`restore`](Self::restore).
    pub(crate) fn restart(&mut self) -> impl Sized + use<> {
        let wanted = self.by_name.iter().filter_map(|(name, region)| {
            let wanted = region.wanted.as_ref()?;
            Some((name.clone(), Arc::new(RegionState::first(wanted))))
        });
        let first = wanted.collect();
        replace(&mut self.by_name, first)
    }

    /// Takes out what the passes since the last step have left.
    pub(crate) fn take_passes(&mut self) -> PassRegions {
        let opened = |(name, region): (&String, &mut Arc<RegionState>)| {
            take(&mut Arc::make_mut(region).opened).then(|| name.clone())
        };
        PassRegions {
            opened: self.by_name.iter_mut().filter_map(opened).collect(),
            readers: take(&mut self.readers),
        }
    }

    /// Adds what passes have left to what others have.
    pub(crate) fn join_passes(&mut self, passes: PassRegions) {
        for name in passes.opened {
            let region = self.by_name.get_mut(&name);
            region
                .into_iter()
                .for_each(|region| Arc::make_mut(region).opened = true);
        }
        for (path, readers) in passes.readers {
            self.readers.entry(path).or_default().extend(readers);
        }
    }
}

/// The regions that the passes of a step have entered, and the readers in them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassRegions {
    opened: Vec<String>,
    readers: Readers,
}

/// The state that a region has reached. A value, without tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RegionState {
    pub(crate) schedule: LossScale,
    /// The measures of the gradients that have come to it in an open window.
    #[serde(default, skip_serializing_if = "number::is_default")]
    pub(crate) seen: Option<Measures>,
    /// Set once a pass has entered it since the last step: the next step moves it.
    #[serde(default, skip_serializing_if = "number::is_default")]
    opened: bool,
    /// The first factor that the program wants, and how it moves; none until it has entered a region that came from a record.
    #[serde(skip)]
    wanted: Option<Arc<LossScale>>,
    /// Set where the settings of the record are to be kept.
    #[serde(skip)]
    keeps_settings: bool,
    /// Set once the log has said that it is wanted in several ways, or by nobody.
    #[serde(skip)]
    warned: bool,
}

impl RegionState {
    /// Makes the state of a region that the program has just entered.
    fn first(wanted: &Arc<LossScale>) -> Self {
        Self {
            schedule: LossScale::clone(wanted),
            wanted: Some(wanted.clone()),
            ..Self::default()
        }
    }

    /// Returns the part of it that records hold.
    fn stored(&self) -> Self {
        Self {
            schedule: self.schedule.clone(),
            seen: self.seen,
            opened: self.opened,
            ..Self::default()
        }
    }

    /// Joins it with its state on another rank.
    pub(crate) fn and(self, other: Self) -> Self {
        let seen = self.seen.into_iter().chain(other.seen);
        Self {
            seen: seen.reduce(Measures::and),
            opened: self.opened || other.opened,
            ..self
        }
    }

    /// Enters it with these settings: the first ones count, or those of the record. Returns a warning for the log.
    fn enter(&mut self, name: &str, wanted: &Arc<LossScale>) -> Option<String> {
        self.opened = true;
        match &self.wanted {
            Some(first) if first == wanted || replace(&mut self.warned, true) => None,
            Some(_) => Some(format!(
                "region `{name}` is opened with other settings than before, and keeps the first ones: give regions names of their own"
            )),
            None => {
                let is_other = !self.schedule.is_like(wanted) && !self.keeps_settings;
                let resumed = LossScale::clone(wanted).resumed(&self.schedule, self.keeps_settings);
                let said = match &resumed {
                    Ok(_) => is_other.then(|| {
                        format!(
                            "region `{name}` was saved with other settings, and those of the program are used"
                        )
                    }),
                    Err(reason) => Some(format!("region `{name}` starts fresh: {reason}")),
                };
                self.schedule = resumed.unwrap_or_else(|_| LossScale::clone(wanted));
                (self.wanted, self.warned) = (Some(wanted.clone()), false);
                said
            }
        }
    }

    fn can_back_off(&self) -> bool {
        self.schedule.config.dynamic && !self.schedule.is_at_floor()
    }

    /// Ends a step in which the gradient has overflowed here first. Returns its factors before and after; none if there was no lower one to go to.
    fn back_off(&mut self) -> Option<[String; 2]> {
        (self.opened, self.seen) = (false, None);
        self.can_back_off()
            .then(|| self.advance(Evidence::Overflow))
    }

    /// Ends an iteration: a finite one in which it was entered moves its factor. Returns its factors before and after, if they differ, and whether it
    /// has come from a record and was not entered.
    fn end(&mut self, finite: Option<Evidence>) -> (Option<[String; 2]>, bool) {
        let is_blind = !self.schedule.needs_measures();
        let says = |seen: Evidence| !(is_blind && seen.is_all_zero());
        let (opened, seen) = (take(&mut self.opened), self.seen.take());
        let counts = opened && finite.is_some_and(says);
        let moved = counts.then(|| self.advance(Evidence::Finite(seen)));
        let is_waiting = self.wanted.is_none() && !opened;
        let is_missed = is_waiting && !replace(&mut self.warned, true);
        (moved.filter(|[before, after]| before != after), is_missed)
    }

    fn advance(&mut self, seen: Evidence) -> [String; 2] {
        let before = self.schedule.scale();
        self.schedule = self.schedule.clone().adjust(seen);
        [before, self.schedule.scale()].map(|factor| short(factor.into()))
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::{Initializer, LinearConfig},
        optim::{GradientsParams, SgdConfig},
        tensor::{Device, Tensor},
    };

    use crate::scale::border_events::READS;
    use crate::{
        GradScalerConfig, MixedPrecision, Rescale, ScaledOptimizer, Schedule, gradients::pass,
        rescaled,
    };

    #[test]
    fn measures_of_regions_are_read_with_the_gradients() {
        let device = Device::flex().autodiff();
        let amp = MixedPrecision::f16();
        let linear = || {
            let weights = Initializer::Constant { value: 0.25 };
            let linear = LinearConfig::new(4, 4).with_initializer(weights);
            let linear = linear.init(&device);
            linear.apply_reparameterization(amp.clone())
        };
        let mut model = (linear(), linear());
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
        let config = GradScalerConfig::new().with_init_scale(1.0);
        let config = config.with_schedule(Schedule::log_max());
        let region = |index: usize| {
            let region = Rescale::dynamic(format!("region {index}"));
            region.with_scaler(config).unwrap()
        };
        let before = pass::READS.get();
        for step in 1..4 {
            let output = amp.autocast(Tensor::<2>::ones([2, 4], &device), |x| {
                let hidden = rescaled(region(0), x, |x| model.0.forward(x));
                rescaled(region(1), hidden, |x| model.1.forward(x))
            });
            let loss = output.sum() * 1e-12;
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(0.1, model, grads);
            assert_eq!(pass::READS.get() - before, step);
        }
        assert_eq!(READS.get(), 0);
        assert!(amp.regions().iter().all(|(_, factor)| *factor > 1.0));
    }
}
