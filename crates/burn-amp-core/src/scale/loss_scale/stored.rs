//! A loss scale as it is stored, and the checks on what is read.

use burn_amp_kernels::ScaleState;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    GradScalerConfig, LossScale, config::checked_scale, memory::Memory, own_rule::OwnRule,
};
use crate::error::{AmpError, in_range};
use crate::values::number;

/// A stored state before its checks: what serde reads must be as valid as what is built. What says nothing is absent.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    config: GradScalerConfig,
    #[serde(deserialize_with = "number::single::deserialize")]
    scale: f32,
    growth_tracker: u32,
    hysteresis_tracker: u32,
    /// The memory under the name of its rule: `{name: state}`, or the name alone of a rule that has none. Absent: PyTorch's rule.
    #[serde(default = "pytorchs", skip_serializing_if = "is_pytorchs")]
    state: Value,
    /// The growth interval that the run has reached, where it follows the run, and the growths in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interval: Option<u32>,
    #[serde(default, skip_serializing_if = "number::is_default")]
    growths_in_a_row: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ceiling: Option<f32>,
    #[serde(default, skip_serializing_if = "number::is_default")]
    warmup_step: u32,
}

impl From<LossScale> for Stored {
    fn from(scale: LossScale) -> Self {
        let (state, memory) = (scale.state, scale.memory);
        let follows = memory == Memory::AdaptiveInterval;
        Self {
            config: scale.config,
            scale: state.scale,
            growth_tracker: state.growth_tracker,
            hysteresis_tracker: state.hysteresis_tracker,
            state: serde_json::to_value(&memory).expect("its names are text"),
            interval: follows.then_some(state.growth_interval),
            growths_in_a_row: state.growths_in_a_row,
            ceiling: scale.ceiling,
            warmup_step: state.warmup_step,
        }
    }
}

impl TryFrom<Stored> for LossScale {
    type Error = AmpError;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        stored.config.check()?;
        let allowed = "one that the `schedule` of the settings can have";
        let memory = read(&stored.state, &stored.config)
            .map_err(|reason| AmpError::refused("state", reason, allowed))?;
        let start = Self::first(stored.config);
        let mut start = start.with_scale("scale", stored.scale.into())?;
        let (hysteresis, tracker) = (stored.config.hysteresis, stored.hysteresis_tracker);
        let inside = (1..=hysteresis).contains(&tracker);
        let allowed = format!("between 1 and `hysteresis`, {hysteresis}");
        in_range("hysteresis_tracker", tracker.into(), inside, &allowed)?;
        if let Some(ceiling) = stored.ceiling {
            checked_scale("ceiling", ceiling.into())?;
        }
        let (steps, step) = (stored.config.warmup_steps, stored.warmup_step);
        let allowed = format!("at most `warmup_steps`, {steps}");
        in_range("warmup_step", step.into(), step <= steps, &allowed)?;
        let follows = memory == Memory::AdaptiveInterval;
        if let Some(interval) = stored.interval {
            let inside = follows && interval > 0;
            let allowed = "at least 1, of a schedule whose interval follows the run";
            in_range("interval", interval.into(), inside, allowed)?;
            start.state.growth_interval = interval;
        }
        let growths = stored.growths_in_a_row;
        let inside = growths <= u32::from(follows);
        let allowed = "0, or 1 where the interval follows the run";
        in_range("growths_in_a_row", growths.into(), inside, allowed)?;
        start.state = ScaleState {
            growth_tracker: stored.growth_tracker,
            hysteresis_tracker: stored.hysteresis_tracker,
            growths_in_a_row: growths,
            warmup_step: stored.warmup_step,
            ..start.state
        };
        (start.memory, start.ceiling) = (memory, stored.ceiling);
        Ok(start)
    }
}

fn pytorchs() -> Value {
    "GrowthInterval".into()
}

fn is_pytorchs(state: &Value) -> bool {
    *state == pytorchs()
}

/// The memory of the rule of the settings, or of one that is not known here. The error says what is wrong with it.
fn read(stored: &Value, config: &GradScalerConfig) -> Result<Memory, String> {
    let refused = || format!("{stored}");
    let fields = stored.as_object().filter(|fields| fields.len() == 1);
    let name = stored
        .as_str()
        .or(fields.and_then(|fields| Some(fields.keys().next()?.as_str())));
    let name = name.filter(|name| !name.is_empty()).ok_or_else(refused)?;
    if !Memory::BUILT_IN.contains(&name) {
        let state = stored[name].as_str().ok_or_else(refused)?;
        return Ok(Memory::Own(OwnRule::stored(name, state)));
    }
    let memory = Memory::deserialize(stored);
    let memory = memory.map_err(|error| format!("rule `{name}`: {error}"))?;
    match memory.is_valid() {
        true if memory.name() == Memory::first(config).name() => Ok(memory),
        true => Err(refused()),
        false => Err(format!("rule `{name}`: no run has {stored}")),
    }
}
