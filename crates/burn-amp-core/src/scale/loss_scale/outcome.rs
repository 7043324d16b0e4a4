//! The outcome of a step.

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
