//! What the rule of a schedule remembers beside the scale and the counts, and how that is stored: by the name of the rule.

use serde::{Deserialize, Serialize};

use super::own_rule::OwnRule;
use super::rule::{Evidence, NextScale};
use super::{config::GradScalerConfig, log_max, near_top, schedule::Schedule};

/// The rules of the settings, and one of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Memory {
    /// PyTorch's, which remembers nothing.
    GrowthInterval,
    AdaptiveInterval(AdaptiveInterval),
    LogMax(log_max::Sums),
    OpenSeq2SeqLogMax(log_max::OriginalSums),
    NearTop(near_top::Count),
    #[serde(untagged, skip_deserializing)]
    Own(OwnRule),
}

/// A growth interval that follows the run: longer after overflows, shorter after growths in a row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdaptiveInterval {
    pub(super) interval: u32,
    /// Without an overflow between, since the interval was last halved.
    pub(super) growths_in_a_row: u32,
}

impl Memory {
    const BUILT_IN: [&str; 5] = [
        "GrowthInterval",
        "AdaptiveInterval",
        "LogMax",
        "OpenSeq2SeqLogMax",
        "NearTop",
    ];

    /// Before the first step.
    pub(super) fn first(config: &GradScalerConfig) -> Self {
        match config.schedule {
            Schedule::GrowthInterval => Self::GrowthInterval,
            Schedule::AdaptiveInterval { .. } => Self::AdaptiveInterval(AdaptiveInterval {
                interval: config.growth_interval,
                growths_in_a_row: 0,
            }),
            Schedule::LogMax { .. } => Self::LogMax(log_max::Sums::START),
            Schedule::OpenSeq2SeqLogMax { .. } => {
                Self::OpenSeq2SeqLogMax(log_max::OriginalSums::START)
            }
            Schedule::NearTop { .. } => Self::NearTop(near_top::Count::default()),
        }
    }

    /// The same rule before the first step.
    pub(super) fn restarted(&self, config: &GradScalerConfig) -> Self {
        match self {
            Self::Own(rule) => Self::Own(rule.restarted()),
            _ => Self::first(config),
        }
    }

    /// Whether a rule of this name is one of the settings'.
    pub(super) fn is_built_in(name: &str) -> bool {
        Self::BUILT_IN.contains(&name)
    }

    pub(super) fn name(&self) -> &str {
        let [
            growth_interval,
            adaptive_interval,
            log_max,
            original,
            near_top,
        ] = Self::BUILT_IN;
        match self {
            Self::GrowthInterval => growth_interval,
            Self::AdaptiveInterval(_) => adaptive_interval,
            Self::LogMax(_) => log_max,
            Self::OpenSeq2SeqLogMax(_) => original,
            Self::NearTop(_) => near_top,
            Self::Own(rule) => rule.name(),
        }
    }

    /// Takes in what an iteration has shown, in which `scale` was used: see [`Rule::advance`](super::Rule::advance). The first two are counted where
    /// all schedules are, in `rule.rs` of the kernels, so that devices move them too.
    pub(super) fn advance(
        &mut self,
        schedule: &Schedule,
        scale: f32,
        evidence: Evidence,
    ) -> NextScale {
        match self {
            Self::GrowthInterval | Self::AdaptiveInterval(_) => NextScale::Counted,
            Self::LogMax(sums) => sums.advance(schedule, evidence),
            Self::OpenSeq2SeqLogMax(sums) => sums.advance(schedule, evidence),
            Self::NearTop(count) => count.advance(schedule, evidence),
            Self::Own(rule) => rule.advance(scale, evidence),
        }
    }

    /// From which magnitude on scaled values are to be counted, if the rule wants to know.
    pub(super) fn count_from(&self, schedule: &Schedule) -> Option<f32> {
        match self {
            Self::NearTop(_) => near_top::edge(schedule),
            Self::Own(rule) => rule.count_from(),
            _ => None,
        }
    }

    /// Whether a run can have left it.
    pub(super) fn is_valid(&self) -> bool {
        match self {
            Self::AdaptiveInterval(state) => state.interval > 0 && state.growths_in_a_row < 2,
            Self::LogMax(sums) => sums.is_valid(),
            Self::OpenSeq2SeqLogMax(sums) => sums.is_valid(),
            Self::GrowthInterval | Self::NearTop(_) | Self::Own(_) => true,
        }
    }

    /// Whether it is PyTorch's.
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::GrowthInterval
    }

    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Whether a record has brought it, and the program has to give the rule.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self, Self::Own(rule) if rule.is_unknown())
    }

    /// The interval, where it follows the run.
    pub(super) fn interval(&self) -> Option<AdaptiveInterval> {
        match self {
            Self::AdaptiveInterval(state) => Some(*state),
            _ => None,
        }
    }

    /// Whether the counts of steps say all: it does not look at gradients.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self, Self::GrowthInterval | Self::AdaptiveInterval(_))
    }

    /// The same rule at the state of another; none if that is of another rule. The error says why the rule refuses it.
    pub(super) fn continuing(&self, other: &Self) -> Result<Option<Self>, String> {
        match (self, other) {
            (Self::Own(rule), Self::Own(other)) if rule.name() == other.name() => {
                let name = rule.name();
                let next = rule.continuing(other);
                let next = next.map_err(|reason| format!("rule `{name}`: {reason}"))?;
                Ok(Some(Self::Own(next)))
            }
            _ => Ok((self.name() == other.name()).then(|| other.clone())),
        }
    }
}
