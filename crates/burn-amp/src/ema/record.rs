//! What a record holds of averages.

use serde::{Deserialize, Serialize};

use super::Ema;
use crate::param_tensors::ParamTensors;

/// The state of an [`Ema`], as it is stored: this beside the averages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmaState {
    pub(crate) updates: u64,
    #[serde(skip)]
    pub(crate) averages: ParamTensors,
}

impl Ema {
    pub(crate) fn state_to_store(&self) -> EmaState {
        EmaState {
            updates: self.updates,
            averages: self.averages.clone(),
        }
    }

    /// Goes on from a stored state.
    pub(crate) fn restore(&mut self, state: EmaState) {
        self.updates = state.updates;
        self.averages = state.averages;
    }
}
