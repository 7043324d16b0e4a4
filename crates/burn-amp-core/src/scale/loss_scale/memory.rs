//! The memory of a schedule's rule, beside the scale and the counts. It is stored under the rule's name.

use serde::{Deserialize, Serialize};

use super::own_rule::OwnRule;
use super::rule::{Evidence, NextScale};
use super::{GradScalerConfig, Schedule, log_max, near_top};

/// The rules of the settings, and one of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Memory {
    /// PyTorch's, which remembers nothing.
    GrowthInterval,
    /// Its interval is one of the counts.
    AdaptiveInterval,
    LogMax(log_max::Sums),
    NearTop(near_top::Count),
    #[serde(untagged, skip_deserializing)]
    Own(OwnRule),
}

impl Memory {
    pub(super) const BUILT_IN: [&str; 4] =
        ["GrowthInterval", "AdaptiveInterval", "LogMax", "NearTop"];

    /// The memory before the first step.
    pub(super) fn first(config: &GradScalerConfig) -> Self {
        match config.schedule {
            Schedule::GrowthInterval => Self::GrowthInterval,
            Schedule::AdaptiveInterval(_) => Self::AdaptiveInterval,
            Schedule::LogMax(_) => Self::LogMax(log_max::Sums::START),
            Schedule::NearTop(_) => Self::NearTop(near_top::Count::default()),
        }
    }

    /// The same rule before the first step.
    pub(super) fn restarted(&self, config: &GradScalerConfig) -> Self {
        match self {
            Self::Own(rule) => Self::Own(rule.restarted()),
            _ => Self::first(config),
        }
    }

    pub(super) fn name(&self) -> &str {
        Self::BUILT_IN[match self {
            Self::GrowthInterval => 0,
            Self::AdaptiveInterval => 1,
            Self::LogMax(_) => 2,
            Self::NearTop(_) => 3,
            Self::Own(rule) => return &rule.name,
        }]
    }

    /// Takes in the evidence of an iteration, in which `scale` was used: see [`Rule::advance`](super::Rule::advance). Rules that only count do so in
    /// `rule.rs` of the kernels, so that devices move them too.
    pub(super) fn advance(
        &mut self,
        schedule: &Schedule,
        scale: f32,
        evidence: Evidence,
    ) -> NextScale {
        match (self, schedule) {
            (Self::LogMax(sums), Schedule::LogMax(settings)) => sums.advance(settings, evidence),
            (Self::NearTop(count), Schedule::NearTop(settings)) => {
                count.advance(settings, evidence)
            }
            (Self::Own(rule), _) => rule.advance(scale, evidence),
            _ => NextScale::Counted,
        }
    }

    /// Refuses what no run can have left.
    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::LogMax(sums) => sums.is_valid(),
            _ => true,
        }
    }

    /// The same rule at the state of another; none if that is of another rule. The error says why the rule refuses it.
    pub(super) fn continuing(&self, other: &Self) -> Result<Option<Self>, String> {
        let next = match (self, other) {
            _ if self.name() != other.name() => return Ok(None),
            (Self::Own(rule), Self::Own(other)) => Self::Own(rule.continuing(other)?),
            _ => other.clone(),
        };
        Ok(Some(next))
    }
}
