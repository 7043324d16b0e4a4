//! Halve or double by the share of values near the top of f16, after PopART's automatic loss scaling.

use burn::tensor::f16;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NearTop {
    /// Iterations since the last update, or the start.
    pub(super) step: u32,
}

impl NearTop {
    /// Counts an iteration; whether it updates the scale: the first of each period does.
    pub(super) fn count(&mut self, period: u32) -> bool {
        let updates = self.step == 0;
        self.step = (self.step + 1) % period;
        updates
    }
}

/// The magnitude of a scaled gradient from which on it counts as near the top.
pub(super) fn edge(share_of_top: f64) -> f32 {
    f16::from_f32(super::F16_MAX as f32 * share_of_top as f32).to_f32()
}

/// Whether too large a share of the values is near the top. In f32, as in PopART.
pub(super) fn is_too_high(elements: u64, above: u64, share: f64) -> bool {
    let (above, below) = (above as f32, elements.saturating_sub(above) as f32);
    let share = share as f32;
    above > below * (share / (1.0 - share))
}
