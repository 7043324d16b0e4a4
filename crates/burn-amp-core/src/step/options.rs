//! What an optimizer adds to a step: settings, and what is kept from one to the next.

use crate::{
    error::AmpError, gradients::clip::ClipRules, record::AmpRecord, scaler::Scaler,
    scaler::accumulation::AccumulationWindow, step::hook::Hooks,
};

/// The additions of a [`ScaledOptimizer`](crate::ScaledOptimizer) to a step.
#[derive(Clone, Debug, Default)]
pub struct StepOptions {
    /// The micro-batches that wait for a step.
    pub window: Option<AccumulationWindow>,
    pub(crate) clip: ClipRules,
    /// The hooks, in their order.
    pub hooks: Hooks,
    /// The loss of the next call, if it was given.
    pub(crate) loss: Option<f64>,
    /// Settings that were refused, by the methods that were given them. No step is made with them.
    pub(crate) refused: Vec<(&'static str, AmpError)>,
}

impl StepOptions {
    /// A setting that was checked, and is added to others. What is wrong with it is kept.
    pub(crate) fn added<T>(
        &mut self,
        method: &'static str,
        checked: Result<T, AmpError>,
    ) -> Option<T> {
        let refused = |error| self.refused.push((method, error));
        checked.map_err(refused).ok()
    }

    /// Adds a setting that takes the place of the one before, and of what was wrong with that.
    pub(crate) fn replaced<T>(
        &mut self,
        method: &'static str,
        checked: Result<T, AmpError>,
    ) -> Option<T> {
        self.refused.retain(|(other, _)| *other != method);
        self.added(method, checked)
    }

    /// Says what is added to a step, in one line.
    pub(crate) fn about(&self) -> String {
        let hooks: Vec<_> = self.hooks.0.iter().map(|hook| hook.name()).collect();
        let window = self.window.as_ref().map(|window| &window.config);
        let clip = &self.clip;
        format!("the settings of a step: {clip:?}, the hooks {hooks:?}, {window:?}")
    }

    /// The state of a scaler, and of what is kept here.
    pub(crate) fn record_with(&self, scaler: &Scaler) -> AmpRecord {
        let mut record = scaler.to_record();
        let open = self.window.as_ref().filter(|window| !window.is_empty());
        if let (Some(window), Some(state)) = (open, &mut record.scaler) {
            state.regions = scaler.live.regions_with(&window.state.events);
        }
        record.window = open.map(|window| window.state.clone());
        record.hooks = self.hooks.states().collect();
        record
    }
}
