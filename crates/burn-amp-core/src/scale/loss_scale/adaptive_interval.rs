//! PyTorch's rule with a growth interval that follows the run. How it moves is in `rule.rs` of the kernels, so that devices move it too.

use serde::{Deserialize, Serialize};

use crate::error::{AmpError, in_range};
use crate::settings;

settings! {
    /// The settings of [`Schedule::AdaptiveInterval`](crate::Schedule::AdaptiveInterval).
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    AdaptiveInterval:
    /// The interval is not halved below this. At least 1; default 100.
    min_interval, with_min_interval: u32 = 100,
    /// The interval is not doubled above this. At least `min_interval`; default 16000.
    max_interval, with_max_interval: u32 = 16000,
}

impl AdaptiveInterval {
    pub(super) fn check(&self) -> Result<(), AmpError> {
        let (min, max) = (self.min_interval, self.max_interval);
        in_range("min_interval", min.into(), min > 0, "at least 1")?;
        let allowed = format!("at least `min_interval`, {min}");
        in_range("max_interval", max.into(), max >= min, &allowed)
    }
}
