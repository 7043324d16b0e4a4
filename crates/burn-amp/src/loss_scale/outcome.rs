use serde::{Deserialize, Serialize};

/// What became of one optimizer step: the parameters moved, or an overflow kept them where they were.
///
/// Host only: reading it never waits for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StepOutcome {
    /// All gradients were finite and the optimizer was called.
    Applied,
    /// A gradient held an infinity or a NaN; parameters and optimizer state are untouched.
    Skipped,
}

impl StepOutcome {
    /// Whether the optimizer was called.
    pub fn is_applied(self) -> bool {
        self == Self::Applied
    }

    /// Whether an overflow made the step a no-op.
    pub fn is_skipped(self) -> bool {
        self == Self::Skipped
    }

    /// The outcome of an iteration with several steps: one skip makes it a skip.
    ///
    /// PyTorch's `GradScaler.update` combines the optimizers' `found_inf` the same way.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Applied, Self::Applied) => Self::Applied,
            _ => Self::Skipped,
        }
    }
}
