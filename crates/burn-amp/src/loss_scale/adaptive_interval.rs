//! A growth interval that follows the run: longer after overflows, shorter after growths in a row.

use serde::{Deserialize, Serialize};

/// Growths in a row without an overflow between that halve the interval.
const GROWTHS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdaptiveInterval {
    pub(super) interval: u32,
    pub(super) growths_in_a_row: u32,
}

impl AdaptiveInterval {
    pub(super) fn new(interval: u32) -> Self {
        Self {
            interval,
            growths_in_a_row: 0,
        }
    }

    pub(super) fn overflow(&mut self, max: u32) {
        self.interval = self.interval.saturating_mul(2).min(max);
        self.growths_in_a_row = 0;
    }

    /// After a growth that has raised the scale.
    pub(super) fn grew(&mut self, min: u32) {
        self.growths_in_a_row += 1;
        if self.growths_in_a_row >= GROWTHS {
            *self = Self::new((self.interval / 2).max(min));
        }
    }
}
