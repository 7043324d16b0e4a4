//! A growth interval that follows the run: longer after overflows, shorter after growths in a row. It is counted where all schedules are, in
//! `rule.rs` of the kernels, so that devices move it too.

use serde::{Deserialize, Serialize};

use super::built_in::Memory;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdaptiveInterval {
    pub(super) interval: u32,
    /// Without an overflow between, since the interval was last halved.
    pub(super) growths_in_a_row: u32,
}

impl Memory for AdaptiveInterval {
    const NAME: &'static str = "AdaptiveInterval";

    fn is_valid(&self) -> bool {
        self.interval > 0 && self.growths_in_a_row < 2
    }
}
