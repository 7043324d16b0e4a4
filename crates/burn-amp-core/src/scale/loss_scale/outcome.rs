//! The outcome of a step, and the measures of its gradients.

use serde::{Deserialize, Serialize};

/// The outcome of one call of `step`, `accumulate`, `flush`, `observe` or `discard`.
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
    /// All gradients were finite, and a [hook](crate::hook::Hook), a guard for example, rejected the step. Parameters and optimizer state are untouched.
    Guarded,
}

impl StepOutcome {
    /// Tells whether the optimizer was called.
    pub fn is_stepped(self) -> bool {
        self == Self::Stepped
    }

    /// Tells whether an overflow made the step a no-op.
    pub fn is_skipped(self) -> bool {
        self == Self::Skipped
    }
}

/// The measures of an iteration's gradients, of all its optimizers, unscaled and before clipping. For the factor of a region: those that came to
/// it, with the loss scale and the [`outer_factor`](Self::outer_factor), and without its own factor. Host values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Measures {
    /// The largest finite magnitude.
    #[serde(with = "crate::values::number")]
    pub max_abs: f64,
    /// The number of values.
    pub elements: u64,
    /// The number of values that are zero; for the factor of a region, all of them or 0.
    #[serde(skip_serializing_if = "crate::values::number::is_default")]
    pub zeros: u64,
    /// The number of values whose scaled magnitude is [`Rule::count_from`](crate::schedule::Rule::count_from) or more; 0 where that is none.
    pub above: u64,
    /// The L2 norm over the finite values.
    #[serde(with = "crate::values::number")]
    pub norm: f64,
    /// The product of the factors of the regions that enclose a region: gradients that come to it are multiplied by this, beside the loss scale. 1 for a loss scale.
    #[serde(with = "crate::values::number")]
    pub outer_factor: f64,
}

/// The measures of no values.
impl Default for Measures {
    fn default() -> Self {
        Self {
            max_abs: 0.0,
            elements: 0,
            zeros: 0,
            above: 0,
            norm: 0.0,
            outer_factor: 1.0,
        }
    }
}

impl Measures {
    /// Tells whether there are values, and each of them is zero: no evidence of a scale.
    pub fn are_all_zero(&self) -> bool {
        self.elements > 0 && self.zeros >= self.elements
    }

    /// Joins the measures of several gradients.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            max_abs: self.max_abs.max(other.max_abs),
            elements: self.elements.saturating_add(other.elements),
            zeros: self.zeros.saturating_add(other.zeros),
            above: self.above.saturating_add(other.above),
            norm: self.norm.hypot(other.norm),
            outer_factor: self.outer_factor.max(other.outer_factor),
        }
    }
}

/// The cause of a skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SkipCause {
    /// A gradient was too large for half precision once it was multiplied, or became so inside.
    Scale,
    /// The gradient of the loss was infinite or NaN before it reached half precision.
    Loss {
        /// The model's output was finite.
        output_finite: bool,
    },
    /// The gradient became infinite or NaN in a scope of another handle, whose loss scale this one's optimizers do not move.
    OtherScale,
    /// All that scopes have given was finite: gradients became infinite or NaN outside of them.
    Unknown,
}
