//! OpenSeq2Seq's `LogMaxScaler` as it is, in f32, with its bugs.
//!
//! An overflow enters as the magnitude 2^(2^`log_max`), and pins the scale to its lowest value. A gradient that is all zero makes
//! it NaN for ever.

use serde::{Deserialize, Serialize};

use super::{
    built_in::Memory,
    rule::{Evidence, NextScale},
    schedule::Schedule,
};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sums {
    #[serde(with = "crate::values::number::single")]
    x_hat: f32,
    #[serde(with = "crate::values::number::single")]
    slow_x_hat: f32,
    #[serde(with = "crate::values::number::single")]
    xsquared_hat: f32,
    b1_correction: f32,
    b2_correction: f32,
}

impl Memory for Sums {
    const NAME: &'static str = "OpenSeq2SeqLogMax";

    fn advance(&mut self, schedule: &Schedule, evidence: Evidence) -> NextScale {
        let Schedule::OpenSeq2SeqLogMax { log_max, .. } = *schedule else {
            return NextScale::Same;
        };
        let x = match evidence {
            Evidence::Finite(None) => return NextScale::Same,
            Evidence::Finite(Some(measures)) => (measures.max_abs as f32).ln() / 2f32.ln(),
            Evidence::Overflow => log_max.exp2() as f32,
        };
        NextScale::Exactly(self.add(x, schedule.moments()))
    }

    fn is_valid(&self) -> bool {
        let corrections = [self.b1_correction, self.b2_correction];
        corrections.iter().all(|share| (0.0..=1.0).contains(share))
    }
}

impl Sums {
    pub(super) const START: Self = Self {
        x_hat: 0.0,
        slow_x_hat: 0.0,
        xsquared_hat: 0.0,
        b1_correction: 1.0,
        b2_correction: 1.0,
    };

    /// Takes in a logarithm. The scale that follows from it.
    fn add(&mut self, x: f32, [beta1, beta2, std_dev]: [f64; 3]) -> f32 {
        let (b1, rest1) = (beta1 as f32, (1.0 - beta1) as f32);
        let (b2, rest2) = (beta2 as f32, (1.0 - beta2) as f32);
        self.x_hat = b1 * self.x_hat + rest1 * x;
        self.b1_correction *= b1;
        let mu = self.x_hat / (1.0 - self.b1_correction);
        self.slow_x_hat = b2 * self.slow_x_hat + rest2 * x;
        self.xsquared_hat = b2 * self.xsquared_hat + rest2 * (x * x);
        self.b2_correction *= b2;
        let slow = self.slow_x_hat / (1.0 - self.b2_correction);
        let variance = self.xsquared_hat / (1.0 - self.b2_correction) - slow * slow;
        // Unlike `max`, lets NaN pass.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        2f32.powf(16.0 - (std_dev as f32 * variance.sqrt() + mu))
    }
}
