//! Halve or double by the share of values near the top of f16, after PopART's automatic loss scaling.

use burn::tensor::f16;
use serde::{Deserialize, Serialize};
use std::error::Error;

use super::rule::{Evidence, NextScale, Rule};

#[derive(Clone, Debug)]
pub(super) struct NearTop {
    /// The magnitude of a scaled gradient from which on it counts as near the top.
    edge: f32,
    /// The share of values near the top that is too large.
    share: f64,
    /// The first iteration of each period moves the scale.
    period: u32,
    count: Count,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    /// Iterations since the last update, or the start.
    step: u32,
}

impl NearTop {
    /// `edge` as a share of the largest f16.
    pub(super) fn new(edge: f64, share: f64, period: u32) -> Self {
        Self {
            edge: f16::from_f32(super::F16_MAX as f32 * edge as f32).to_f32(),
            share,
            period,
            count: Count::default(),
        }
    }
}

impl Rule for NearTop {
    fn name(&self) -> &str {
        "NearTop"
    }

    fn advance(&mut self, _scale: f32, evidence: Evidence) -> NextScale {
        let updates = self.count.step == 0;
        self.count.step = (self.count.step + 1) % self.period;
        match evidence {
            Evidence::Overflow => NextScale::Counted,
            Evidence::Finite(Some(found)) if updates => {
                match is_too_high(found.elements, found.above, self.share) {
                    true => NextScale::Lower,
                    false => NextScale::UpTo(f32::INFINITY),
                }
            }
            Evidence::Finite(_) => NextScale::Same,
        }
    }

    fn count_from(&self) -> Option<f32> {
        Some(self.edge)
    }

    fn state(&self) -> String {
        serde_json::to_string(&self.count).expect("a count is plain data")
    }

    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.count = serde_json::from_str(state)?;
        Ok(())
    }
}

/// Whether too large a share of the values is near the top. In f32, as in PopART.
fn is_too_high(elements: u64, above: u64, share: f64) -> bool {
    let (above, below) = (above as f32, elements.saturating_sub(above) as f32);
    let share = share as f32;
    above > below * (share / (1.0 - share))
}
