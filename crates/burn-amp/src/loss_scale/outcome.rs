//! What a schedule learns from: the outcome of an iteration, and what its gradients have shown.

use serde::{Deserialize, Serialize};

/// What became of one call of `step`, `accumulate`, `flush`, `observe` or `discard`.
///
/// A host value: reading it never waits for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StepOutcome {
    /// All gradients were finite and the optimizer was called.
    Stepped,
    /// A gradient held an infinity or a NaN. Parameters and optimizer state are untouched.
    Skipped,
    /// The gradients went into an accumulation window, which is not full yet.
    Accumulated,
    /// The gradients were thrown away: an overflowing micro-batch, or a call of `discard`.
    Dropped,
    /// There was nothing to step with: no parameter had a gradient, or the window was empty.
    NoGradients,
    /// All gradients were finite, and a [`Guard`](crate::Guard) held the step back. Parameters and optimizer state are untouched.
    Guarded,
}

impl StepOutcome {
    /// Whether the optimizer was called.
    pub fn is_stepped(self) -> bool {
        self == Self::Stepped
    }

    /// Whether an overflow made the step a no-op.
    pub fn is_skipped(self) -> bool {
        self == Self::Skipped
    }
}

/// What [`LossScale::adjust`](crate::LossScale::adjust) takes: an outcome alone, or with the measures of the gradients.
///
/// `(outcome, &status)` has the measures of a [`GradientStatus`](crate::GradientStatus).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    pub(crate) outcome: StepOutcome,
    pub(crate) measures: Option<Measures>,
}

impl From<StepOutcome> for Observation {
    fn from(outcome: StepOutcome) -> Self {
        Self {
            outcome,
            measures: None,
        }
    }
}

/// What schedules use of the gradients of an iteration, unscaled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measures {
    /// The largest finite magnitude.
    #[serde(with = "crate::number")]
    pub(crate) max_abs: f64,
    pub(crate) elements: u64,
    /// Values at or above [`LossScale::edge`](crate::LossScale::edge).
    pub(crate) above: u64,
}

impl Measures {
    /// Those of several optimizers' gradients as one.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            max_abs: self.max_abs.max(other.max_abs),
            elements: self.elements.saturating_add(other.elements),
            above: self.above.saturating_add(other.above),
        }
    }
}
