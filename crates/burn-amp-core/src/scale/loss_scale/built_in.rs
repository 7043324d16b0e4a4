//! What the rules of the settings have in common: each is one by what it remembers. And those that are counted where all schedules are, in
//! `rule.rs` of the kernels, so that devices move them too.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{error::Error, fmt::Debug};

use super::rule::{Evidence, NextScale, Rule};
use super::schedule::Schedule;

/// What a rule of the settings remembers, as it is stored, and how it moves the scale.
pub(super) trait Memory:
    Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    const NAME: &'static str;

    /// As [`Rule::advance`]. By default a rule counts, as PyTorch's.
    fn advance(&mut self, _schedule: &Schedule, _evidence: Evidence) -> NextScale {
        NextScale::Counted
    }

    /// As [`Rule::count_from`].
    fn count_from(_schedule: &Schedule) -> Option<f32> {
        None
    }

    /// Whether a run can have left it.
    fn is_valid(&self) -> bool {
        true
    }
}

/// A rule of the settings, with its parameters.
#[derive(Clone, Debug)]
pub(super) struct BuiltIn<M> {
    pub(super) schedule: Schedule,
    pub(super) memory: M,
}

impl<M: Memory> Rule for BuiltIn<M> {
    fn name(&self) -> &str {
        M::NAME
    }

    fn advance(&mut self, _scale: f32, evidence: Evidence) -> NextScale {
        self.memory.advance(&self.schedule, evidence)
    }

    fn count_from(&self) -> Option<f32> {
        M::count_from(&self.schedule)
    }

    fn state(&self) -> String {
        serde_json::to_string(&self.memory).expect("a memory is plain data")
    }

    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.memory = serde_json::from_str(state)?;
        match self.memory.is_valid() {
            true => Ok(()),
            false => Err(format!("no run has {:?}", self.memory).into()),
        }
    }
}

/// PyTorch's rule remembers nothing beside the counts.
impl Memory for () {
    const NAME: &'static str = "GrowthInterval";
}

/// A growth interval that follows the run: longer after overflows, shorter after growths in a row.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdaptiveInterval {
    pub(super) interval: u32,
    /// Without an overflow between, since the interval was last halved.
    pub(super) growths_in_a_row: u32,
}

impl Memory for AdaptiveInterval {
    const NAME: &'static str = "AdaptiveInterval";

    fn is_valid(&self) -> bool {
        self.interval > 0 && self.growths_in_a_row < 2
    }
}
