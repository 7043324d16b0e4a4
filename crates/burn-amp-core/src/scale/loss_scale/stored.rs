//! A loss scale as it is stored, and the checks on what is read.

use serde::Deserialize;
use serde_json::Value;

use super::{
    GradScalerConfig, LossScale, config::checked_scale, memory::Memory, own_rule::OwnRule,
};
use crate::error::{AmpError, in_range};
use crate::values::number;

/// A stored state before its checks: what serde reads must be as valid as what is built.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    config: GradScalerConfig,
    #[serde(deserialize_with = "number::single::deserialize")]
    scale: f32,
    growth_tracker: u32,
    hysteresis_tracker: u32,
    /// The memory under the name of its rule: `{name: state}`, or the name alone of a rule that has none. Absent: PyTorch's rule.
    #[serde(default = "without_state")]
    state: Value,
    #[serde(default)]
    ceiling: Option<f32>,
    #[serde(default)]
    warmup_step: u32,
}

impl TryFrom<Stored> for LossScale {
    type Error = AmpError;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        stored.config.check()?;
        let allowed = "one that the `schedule` of the settings can have";
        let memory = read(&stored.state, &stored.config)
            .map_err(|reason| AmpError::refused("state", reason, allowed))?;
        let start = Self::first(stored.config);
        let start = start.with_scale("scale", stored.scale.into())?;
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
        Ok(Self {
            growth_tracker: stored.growth_tracker,
            hysteresis_tracker: stored.hysteresis_tracker,
            memory,
            ceiling: stored.ceiling,
            warmup_step: stored.warmup_step,
            ..start
        })
    }
}

fn without_state() -> Value {
    "GrowthInterval".into()
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
