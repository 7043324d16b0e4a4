//! Halve or double by the share of values near the top of f16, after PopART's automatic loss scaling.

use burn::tensor::f16;
use serde::{Deserialize, Serialize};

use super::rule::{Evidence, NextScale};
use super::{F16_MAX, schedule::Schedule};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Count {
    /// Iterations since the last update, or the start. The first of each period moves the scale.
    step: u32,
}

impl Count {
    pub(super) fn advance(&mut self, schedule: &Schedule, evidence: Evidence) -> NextScale {
        let Schedule::NearTop { share, period, .. } = *schedule else {
            return NextScale::Same;
        };
        let updates = self.step == 0;
        self.step = (self.step + 1) % period;
        match evidence {
            Evidence::Overflow => NextScale::Counted,
            Evidence::Finite(Some(found)) if updates => {
                match is_too_high(found.elements, found.above, share) {
                    true => NextScale::Lower,
                    false => NextScale::UpTo(f32::INFINITY),
                }
            }
            Evidence::Finite(_) => NextScale::Same,
        }
    }
}

/// From which scaled magnitude on a value is near the top.
pub(super) fn edge(schedule: &Schedule) -> Option<f32> {
    match *schedule {
        Schedule::NearTop { edge, .. } => {
            Some(f16::from_f32(F16_MAX as f32 * edge as f32).to_f32())
        }
        _ => None,
    }
}

/// Whether too large a share of the values is near the top. In f32, as in PopART.
fn is_too_high(elements: u64, above: u64, share: f64) -> bool {
    let (above, below) = (above as f32, elements.saturating_sub(above) as f32);
    let share = share as f32;
    above > below * (share / (1.0 - share))
}
