use serde::{Deserialize, Serialize};

use crate::loss_scale::StepOutcome;

/// How many steps were taken, skipped, held back, dropped and discarded.
///
/// Host values: reading them never waits for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepCounters {
    steps: u64,
    skipped: u64,
    consecutive_skips: u64,
    // Absent from records where they are zero, as from those of earlier releases.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
    #[serde(skip_serializing_if = "is_zero")]
    discarded: u64,
    #[serde(skip_serializing_if = "is_zero")]
    skipped_windows: u64,
    #[serde(skip_serializing_if = "is_zero")]
    bad_losses: u64,
    #[serde(skip_serializing_if = "is_zero")]
    bad_losses_in_a_row: u64,
    #[serde(skip_serializing_if = "is_zero")]
    guarded: u64,
    #[serde(skip_serializing_if = "is_zero")]
    guarded_in_a_row: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
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

    /// Steps whose gradients were finite and which a [`Guard`](crate::Guard) held back. They are not among [`skipped`](Self::skipped).
    pub fn guarded(&self) -> u64 {
        self.guarded
    }

    /// Micro-batches that were left out of an accumulation window because they overflowed; no steps.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Gradients that were thrown away with [`GradScaler::discard`](crate::GradScaler::discard), or dropped after they were
    /// unscaled; no steps.
    pub fn discarded(&self) -> u64 {
        self.discarded
    }

    /// Skipped steps, dropped micro-batches and discarded gradients of which the loss scale is not the cause: the gradient of the
    /// loss was infinite or NaN. They are among [`skipped`](Self::skipped), [`dropped`](Self::dropped) and
    /// [`discarded`](Self::discarded).
    pub fn bad_losses(&self) -> u64 {
        self.bad_losses
    }

    /// Iterations in a row, up to the present one, in which a step was skipped, or micro-batches in a row
    /// that were dropped. An iteration ends with [`GradScaler::update`](crate::GradScaler::update).
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

    /// Why no run can have counted so, if none can.
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

    pub(crate) fn record(&mut self, outcome: StepOutcome) {
        self.steps += 1;
        self.skipped += u64::from(outcome.is_skipped());
        match outcome {
            StepOutcome::Guarded => {
                self.guarded += 1;
                self.guarded_in_a_row += 1;
            }
            _ => self.guarded_in_a_row = 0,
        }
    }

    pub(crate) fn guarded_in_a_row(&self) -> u64 {
        self.guarded_in_a_row
    }

    pub(crate) fn bad_losses_in_a_row(&self) -> u64 {
        self.bad_losses_in_a_row
    }

    pub(crate) fn add_bad_loss(&mut self) {
        self.bad_losses += 1;
        self.bad_losses_in_a_row += 1;
    }

    pub(crate) fn reset_bad_losses(&mut self) {
        self.bad_losses_in_a_row = 0;
    }

    pub(crate) fn record_dropped(&mut self) {
        self.dropped += 1;
    }

    pub(crate) fn record_discarded(&mut self) {
        self.discarded += 1;
    }

    /// Windows in a row whose micro-batches were clean, but not their sum. Clean micro-batches between them end no row.
    pub(crate) fn skipped_windows(&self) -> u64 {
        self.skipped_windows
    }

    pub(crate) fn add_skipped_window(&mut self) {
        self.skipped_windows += 1;
    }

    pub(crate) fn reset_skipped_windows(&mut self) {
        self.skipped_windows = 0;
    }

    pub(crate) fn add_consecutive_skip(&mut self) {
        self.consecutive_skips += 1;
    }

    /// Counts what comes in a row from zero.
    pub(crate) fn reset_rows(&mut self) {
        self.reset_consecutive_skips();
        self.reset_skipped_windows();
        self.reset_bad_losses();
        self.guarded_in_a_row = 0;
    }

    pub(crate) fn reset_consecutive_skips(&mut self) {
        self.consecutive_skips = 0;
    }
}
