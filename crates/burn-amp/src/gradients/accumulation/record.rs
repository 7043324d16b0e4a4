//! What a record holds of a window.

use serde::{Deserialize, Serialize};

use super::AccumulationWindow;
use crate::param_tensors::ParamTensors;

/// The state of an [`AccumulationWindow`], as it is stored: this beside the sums.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowState {
    pub(crate) len: u32,
    pub(crate) scale: Option<f32>,
    #[serde(skip)]
    pub(crate) sums: ParamTensors,
}

impl AccumulationWindow {
    pub(crate) fn state_to_store(&self) -> WindowState {
        WindowState {
            len: self.len,
            scale: self.scale,
            sums: self.sums.clone(),
        }
    }

    /// Goes on from a stored state that fits.
    pub(crate) fn restore(&mut self, state: WindowState) {
        self.len = state.len;
        self.scale = state.scale;
        self.sums = state.sums;
    }

    /// Why a stored window cannot be continued with these settings, if it cannot.
    pub(crate) fn misfit(&self, state: &WindowState) -> Option<String> {
        if state.len == 0 {
            return None;
        }
        let (len, size) = (state.len, self.config.micro_batches);
        if len >= size {
            return Some(format!(
                "its window holds {len} micro-batches, but a window has {size} here"
            ));
        }
        let (stored, here) = match (state.scale, self.drops_micro_batches()) {
            (Some(_), true) => ("SkipWindow", "SkipMicroBatch"),
            (None, false) => ("SkipMicroBatch", "SkipWindow"),
            _ => return None,
        };
        Some(format!(
            "its window was summed by the rule `{stored}`, but the rule is `{here}` here"
        ))
    }
}
