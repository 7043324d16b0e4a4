use serde::{Deserialize, Serialize};

use crate::values::number::is_default;

/// The numbers of steps that were taken, skipped, rejected, dropped and discarded.
///
/// Host values: reading them never waits for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepCounters {
    pub(super) steps: u64,
    pub(super) skipped: u64,
    pub(super) consecutive_skips: u64,
    // Absent from records where they are zero.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) dropped: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) discarded: u64,
    /// Windows in a row whose micro-batches were finite, but not their sum. Finite micro-batches between them end no row.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) skipped_windows: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) bad_losses: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) bad_losses_in_a_row: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) unknown_causes: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) guarded: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) guarded_in_a_row: u64,
}

impl StepCounters {
    /// Optimizer steps asked for, skipped ones included. With several optimizers, each step counts.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps skipped because of an overflow.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Steps on which the optimizer was called.
    pub fn stepped(&self) -> u64 {
        self.steps.saturating_sub(self.skipped + self.guarded)
    }

    /// Steps whose gradients were finite and which a [hook](crate::hook::Hook), a guard for example, rejected. They are not among
    /// [`skipped`](Self::skipped).
    pub fn guarded(&self) -> u64 {
        self.guarded
    }

    /// Micro-batches that were left out of an accumulation window because they overflowed; no steps.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Gradients that were thrown away with `GradScaler::discard`, or dropped after they were
    /// unscaled; no steps.
    pub fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Skipped steps, dropped micro-batches and discarded gradients of which the loss scale is not the cause: the gradient of the
    /// loss was infinite or NaN, or the cause is [not known](Self::unknown_causes). They are among [`skipped`](Self::skipped), [`dropped`](Self::dropped) and
    /// [`discarded`](Self::discarded).
    pub fn bad_losses(&self) -> u64 {
        self.bad_losses
    }

    /// The part of [`bad_losses`](Self::bad_losses) whose cause is not known: every scope of `autocast` gave finite gradients, and they became infinite
    /// or NaN outside, before they came to the optimizer. A penalty in f32 or another rank may have done it.
    pub fn unknown_causes(&self) -> u64 {
        self.unknown_causes
    }

    /// Iterations in a row, up to the present one, in which a step was skipped because the loss scale (or that of another handle) was too high, or micro-batches in a row
    /// that were dropped so. Those of [`bad_losses`](Self::bad_losses), and windows of finite micro-batches whose sum overflows, neither count nor end
    /// the row. An iteration ends with `GradScaler::update`.
    pub fn consecutive_skips(&self) -> u64 {
        self.consecutive_skips
    }

    /// The share of steps that were skipped because of an overflow, from 0 to 1; 0 before the first step.
    pub fn skip_rate(&self) -> f64 {
        if self.steps == 0 {
            0.0
        } else {
            self.skipped as f64 / self.steps as f64
        }
    }

    /// Takes the counts in a row of another.
    pub(crate) fn with_rows_of(self, other: Self) -> Self {
        Self {
            consecutive_skips: other.consecutive_skips,
            skipped_windows: other.skipped_windows,
            bad_losses_in_a_row: other.bad_losses_in_a_row,
            guarded_in_a_row: other.guarded_in_a_row,
            ..self
        }
    }

    /// Says why no run can have counted so, if none can.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let counts = [
            self.steps,
            self.skipped,
            self.consecutive_skips,
            self.dropped,
            self.discarded,
            self.skipped_windows,
            self.bad_losses,
            self.bad_losses_in_a_row,
            self.unknown_causes,
            self.guarded,
            self.guarded_in_a_row,
        ];
        // A count that is about to overflow is none of a run.
        if let Some(count) = counts.iter().find(|count| **count > u64::MAX / 2) {
            return Some(format!("it counts to {count}"));
        }
        let skipped = self.skipped + self.guarded;
        (skipped > self.steps).then(|| {
            let steps = self.steps;
            format!("it counts {skipped} skipped steps of {steps}")
        })
    }

    /// The sum with those of another optimizer.
    pub(super) fn and(self, later: Self) -> Self {
        Self {
            steps: self.steps.saturating_add(later.steps),
            skipped: self.skipped.saturating_add(later.skipped),
            dropped: self.dropped.saturating_add(later.dropped),
            discarded: self.discarded.saturating_add(later.discarded),
            bad_losses: self.bad_losses.saturating_add(later.bad_losses),
            unknown_causes: self.unknown_causes.saturating_add(later.unknown_causes),
            guarded: self.guarded.saturating_add(later.guarded),
            ..later
        }
    }
}
