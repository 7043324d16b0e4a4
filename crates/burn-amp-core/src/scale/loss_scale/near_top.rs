//! Halve or double by the share of values near the top of f16, after PopART's automatic loss scaling.

use burn::tensor::f16;
use serde::{Deserialize, Serialize};

use super::rule::{Evidence, NextScale};
use super::{F16_MAX, Measures};
use crate::error::{AmpError, in_range};
use crate::settings;

settings! {
    /// The settings of [`Schedule::NearTop`](crate::Schedule::NearTop).
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    NearTop:
    /// The scaled magnitude from which on a value counts as near the top, as a share of f16's largest, 65504. From 0 to 1; default 0.125.
    #[serde(with = "crate::values::number")]
    edge, with_edge: f64 = 0.125,
    /// The share of values near the top that is too large. From 0 to 1; default 1e-7.
    #[serde(with = "crate::values::number")]
    share, with_share: f64 = 1e-7,
    /// One in this many iterations moves the scale. At least 1; default 1.
    period, with_period: u32 = 1,
}

impl NearTop {
    pub(super) fn check(&self) -> Result<(), AmpError> {
        for (field, share) in [("edge", self.edge), ("share", self.share)] {
            let inside = (0.0..=1.0).contains(&share);
            in_range(field, share, inside, "between 0 and 1")?;
        }
        in_range("period", self.period.into(), self.period > 0, "at least 1")
    }

    /// The scaled magnitude from which on a value is near the top.
    pub(super) fn count_from(&self) -> f32 {
        f16::from_f32(F16_MAX as f32 * self.edge as f32).to_f32()
    }

    /// Compares the share of the values near the top with the one that is too large. In f32, as in PopART.
    fn is_too_high(&self, found: &Measures) -> bool {
        let below = found.elements.saturating_sub(found.above) as f32;
        let share = self.share as f32;
        found.above as f32 > below * (share / (1.0 - share))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Count {
    /// Iterations since the last update, or the start. The first of each period moves the scale.
    step: u32,
}

impl Count {
    pub(super) fn advance(&mut self, settings: &NearTop, evidence: Evidence) -> NextScale {
        let updates = self.step == 0;
        self.step = (self.step + 1) % settings.period;
        match evidence {
            Evidence::Overflow => NextScale::Counted,
            Evidence::Finite(Some(found)) if updates => match settings.is_too_high(&found) {
                true => NextScale::Lower,
                false => NextScale::UpTo(f32::INFINITY),
            },
            Evidence::Finite(_) => NextScale::Same,
        }
    }
}
