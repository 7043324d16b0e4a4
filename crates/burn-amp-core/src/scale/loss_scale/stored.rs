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
    /// By the name of its rule: `{name: state}`, or the name alone of a rule that has none. Absent: PyTorch's rule.
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
        let schedule = Self::first(stored.config);
        let allowed = "one that the `schedule` of the settings can have";
        let state = read(&stored.state, &stored.config)
            .map_err(|reason| AmpError::refused("state", reason, allowed))?;
        // Zero is a state that a schedule reaches without `min_scale`; NaN, and infinity without `max_scale`, are OpenSeq2Seq's, and may be
        // those of a rule that is not known here.
        let can_be_lost = stored.config.schedule.can_lose_scale() || state.is_unknown();
        let is_zero = stored.scale.to_bits() == 0 && stored.config.min_scale.is_none();
        let is_infinite = stored.scale == f32::INFINITY && stored.config.max_scale.is_none();
        let is_lost = (stored.scale.is_nan() || is_infinite) && can_be_lost;
        if !is_zero && !is_lost {
            schedule.with_scale("scale", stored.scale.into())?;
        }
        let (hysteresis, tracker) = (stored.config.hysteresis, stored.hysteresis_tracker);
        let inside = (1..=hysteresis).contains(&tracker);
        let allowed = format!("between 1 and `hysteresis`, {hysteresis}");
        in_range("hysteresis_tracker", tracker.into(), inside, &allowed)?;
        // Zero, as above.
        if let Some(ceiling) = stored.ceiling.filter(|ceiling| ceiling.to_bits() != 0) {
            checked_scale("ceiling", ceiling.into())?;
        }
        let (steps, step) = (stored.config.warmup_steps, stored.warmup_step);
        let allowed = format!("at most `warmup_steps`, {steps}");
        in_range("warmup_step", step.into(), step <= steps, &allowed)?;
        Ok(Self {
            config: stored.config,
            scale: stored.scale,
            growth_tracker: stored.growth_tracker,
            hysteresis_tracker: stored.hysteresis_tracker,
            state,
            ceiling: stored.ceiling,
            warmup_step: stored.warmup_step,
        })
    }
}

fn without_state() -> Value {
    "GrowthInterval".into()
}

/// What the rule of the settings, or one that is not known here, remembers. The error says what is wrong with it.
fn read(stored: &Value, config: &GradScalerConfig) -> Result<Memory, String> {
    let refused = || format!("{stored}");
    let (name, state) = match stored {
        Value::String(name) => (name, &Value::Null),
        Value::Object(fields) if fields.len() == 1 => fields.iter().next().ok_or_else(refused)?,
        _ => return Err(refused()),
    };
    if !Memory::is_built_in(name) {
        let rule = || Memory::Own(OwnRule::stored(name, state));
        return (!name.is_empty()).then(rule).ok_or_else(refused);
    }
    let memory = Memory::deserialize(stored);
    let memory = memory.map_err(|error| format!("rule `{name}`: {error}"))?;
    match memory.is_valid() {
        true if memory.name() == Memory::first(config).name() => Ok(memory),
        true => Err(refused()),
        false => Err(format!("rule `{name}`: no run has {stored}")),
    }
}
