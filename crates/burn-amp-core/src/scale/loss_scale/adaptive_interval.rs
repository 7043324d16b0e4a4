//! A growth interval that follows the run: longer after overflows, shorter after growths in a row. It is counted where all schedules are.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdaptiveInterval {
    pub(super) interval: u32,
    /// Without an overflow between, since the interval was last halved.
    pub(super) growths_in_a_row: u32,
}

impl AdaptiveInterval {
    pub(super) fn new(interval: u32) -> Self {
        Self {
            interval,
            growths_in_a_row: 0,
        }
    }

    /// From what is stored. The error says what no run can have left.
    pub(super) fn from_json(text: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match state.interval > 0 && state.growths_in_a_row < 2 {
            true => Ok(state),
            false => Err(format!("{state:?}")),
        }
    }
}
