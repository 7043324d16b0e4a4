//! The owners of states that records hold: under which names, what no run can have stored, and their own records.

use super::{AmpRecord, State, section::States};
use crate::scaler::accumulation::{AccumulationWindow, WindowState};
use crate::scaler::{Joint, Scaler, ScalerState};
use crate::{error::AmpError, values::ParamTensors};

/// The name of the state of a loss scale.
const SCALER: &str = "scaler";
/// The name of the state of an accumulation window, which may be open.
const WINDOW: &str = "window";
/// The name of master weights.
const MASTERS: &str = "masters";
/// The begin of the names of hooks' states.
const HOOK: &str = "hook.";

/// Reads a stored state; the error says what serde refuses, or what no run can have stored.
fn scaler(state: &State) -> Result<ScalerState, String> {
    let values: ScalerState = state.values()?;
    values.contradiction().map_or(Ok(values), Err)
}

/// Does for a window what [`scaler`] does.
fn window(state: State) -> Result<WindowState, String> {
    let window: WindowState = state.values()?;
    let window = window.with_sums(state.tensors);
    let losses = window.losses.mean();
    let is_empty = window.sums.is_empty()
        && window.scale.is_none()
        && losses.is_none()
        && window.events.is_empty();
    if window.len == 0 && !is_empty {
        return Err("it holds sums of no micro-batches".to_string());
    }
    let is_bad = |scale: &f32| !(scale.is_finite() && *scale > 0.0);
    match window.scale.filter(is_bad) {
        Some(scale) => Err(format!("the loss scale of its window is {scale}")),
        None => Ok(window),
    }
}

impl AmpRecord {
    /// All states but that of an optimizer, by name.
    pub(super) fn into_states(self) -> States {
        let scaler = self.scaler.iter();
        let scaler = scaler.map(|scaler| (SCALER.to_string(), State::plain(scaler)));
        let window = self.window.map(WindowState::stored);
        let window = window.into_iter().map(|window| {
            let state = State::plain(&window).with_tensors(window.sums);
            (WINDOW.to_string(), state)
        });
        let masters = Some(self.masters).filter(|masters| !masters.is_empty());
        let masters = masters.map(|masters| (MASTERS.to_string(), State::of_tensors(masters)));
        let hooks = self.hooks.into_iter();
        let hooks = hooks.map(|(name, state)| (format!("{HOOK}{name}"), state));
        scaler.chain(window).chain(masters).chain(hooks).collect()
    }

    /// Takes over the states of a section, and checks them.
    pub(super) fn take_states(&mut self, states: States) -> Result<(), AmpError> {
        for (name, state) in states {
            let refused = |reason| AmpError::damaged(&self.origin, format!("`{name}`: {reason}"));
            match (name.as_str(), name.strip_prefix(HOOK)) {
                (SCALER, _) => self.scaler = Some(scaler(&state).map_err(refused)?),
                (WINDOW, _) => self.window = Some(window(state).map_err(refused)?),
                (MASTERS, _) => self.masters = state.tensors,
                (_, Some(hook)) => {
                    self.hooks.insert(hook.to_string(), state);
                }
                (_, None) => return Err(refused("this release does not know it".to_string())),
            }
        }
        Ok(())
    }

    /// The owners of the states that are here beside that of an optimizer.
    pub(super) fn owners(&self) -> impl Iterator<Item = String> {
        let scaler = self.scaler.iter().map(|_| "a `GradScaler`".to_string());
        let window = self.window.iter();
        let window = window.map(|_| "an `AccumulationWindow`".to_string());
        let hooks = self.hooks().map(|name| format!("the hook `{name}`"));
        scaler.chain(window).chain(hooks)
    }

    /// The number of micro-batches in an accumulation window that was open; 0 if none was.
    pub fn window(&self) -> u32 {
        self.window.as_ref().map_or(0, |window| window.len)
    }

    /// The number of master weights, which a `PipelinedOptimizer` stores where the model's own record does not
    /// have them; 0 otherwise.
    pub fn masters(&self) -> usize {
        self.masters.len()
    }

    /// The record without an open window: the run resumes with an empty one, or without accumulation.
    pub fn without_window(mut self) -> Self {
        self.window = None;
        let regions = self
            .scaler
            .iter_mut()
            .flat_map(|one| one.regions.values_mut());
        regions.for_each(|region| region.seen = None);
        self
    }

    /// The record without master weights: the run continues from the parameters of the model.
    pub fn without_masters(mut self) -> Self {
        self.masters = ParamTensors::default();
        self
    }
}

impl std::fmt::Debug for AmpRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AmpRecord")
            .field("origin", &self.origin)
            .field("num_tensors", &self.num_tensors())
            .field("scaler", &self.scaler)
            .field("window", &self.window())
            .field("masters", &self.masters())
            .field("hooks", &self.hooks().collect::<Vec<_>>())
            .finish()
    }
}

impl Scaler {
    /// Takes the counters of a record, where the schedule is in place already. Counts from zero, and returns false, if the record has none.
    pub(crate) fn take_counters(&mut self, record: &mut AmpRecord) -> bool {
        let stored = record.scaler.take();
        let had_some = stored.is_some();
        match stored {
            Some(state) => self.restore_counters(&state),
            None => self.restart_at(Default::default()),
        }
        had_some
    }

    /// The state, to be stored: the schedule with its settings and trackers, and counters. Waits for the device only in an open window, for regions
    /// whose rules look at gradients.
    pub fn to_record(&self) -> AmpRecord {
        Joint::default().to_record(self)
    }

    /// Takes over a stored state: its own, or that of the scaler in an optimizer's record. A disabled scaler takes it over too,
    /// for the day it is enabled. Does not wait for the device.
    ///
    /// Loss scale, trackers and counters are the record's; the settings stay as they are here, unless the record is loaded
    /// [`with_settings`](AmpRecord::with_settings). The log names every setting that differs. Where one does, the skips in a row
    /// are counted from zero, so that a run that ended because of them can be resumed. A scale outside of `min_scale` and `max_scale` is
    /// moved to the nearest of them. A static scale is the record's if that was static too, with the same `init_scale`, and the program's if not.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if there is no state of a scaler in it, [`AmpError::DamagedRecord`] if a
    /// [rule of your own](crate::schedule::Rule) refuses what is stored under its name; the present state stays as it was.
    pub fn load_record(&mut self, record: AmpRecord) -> Result<(), AmpError> {
        match &record.scaler {
            Some(state) => self.restore(state, &record.origin),
            None => Err(record.foreign("no state of a loss scaler")),
        }
    }
}

impl Joint {
    /// The state of the scaler, to be stored, and what its iteration has shown.
    pub fn to_record(&self, scaler: &Scaler) -> AmpRecord {
        AmpRecord {
            scaler: Some(scaler.state_to_store(self.evidence())),
            ..AmpRecord::empty()
        }
    }

    /// The iteration in a record, which was not ended.
    pub fn of_record(record: &AmpRecord) -> Self {
        Self::begun(record.scaler.as_ref().and_then(ScalerState::pending))
    }
}

impl AccumulationWindow {
    /// The state, to be stored: the sums, of how many micro-batches, and the loss scale that they carry. Settings are not
    /// stored: the program sets them. Does not wait for the device; writing the record does.
    ///
    /// The record has handles to the sums, which the next micro-batch copies if the record is still there.
    pub fn to_record(&self) -> AmpRecord {
        AmpRecord {
            window: Some(self.state.clone()),
            ..AmpRecord::empty()
        }
    }

    /// Takes over a stored state: its own, or that of the window in an optimizer's record. The settings stay. An empty window
    /// empties this one. Does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`AmpError::ForeignRecord`] if there is no window in it, or if the stored window is full by the settings here, or was summed by
    /// the other rule for an overflow; the present state stays as it was.
    pub fn load_record(&mut self, record: AmpRecord) -> Result<(), AmpError> {
        let Some(state) = &record.window else {
            return Err(record.foreign("no accumulation window"));
        };
        if let Some(reason) = self.misfit(state) {
            return Err(record.misfit(reason));
        }
        self.state = state.clone();
        Ok(())
    }
}
