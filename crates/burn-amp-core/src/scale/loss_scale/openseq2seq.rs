//! OpenSeq2Seq's `LogMaxScaler` as it is, in f32, with its bugs.
//!
//! An overflow enters as the magnitude 2^(2^`log_max`), and pins the scale to its lowest value. A gradient that is all zero makes
//! it NaN for ever.

use serde::{Deserialize, Serialize};
use std::error::Error;

use super::rule::{Evidence, NextScale, Rule};

#[derive(Clone, Debug)]
pub(super) struct OpenSeq2Seq {
    betas: [f64; 2],
    /// Standard deviations above the mean.
    std_dev: f64,
    /// What an overflow enters as.
    log_max: f64,
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sums {
    #[serde(with = "crate::values::number::single")]
    x_hat: f32,
    #[serde(with = "crate::values::number::single")]
    slow_x_hat: f32,
    #[serde(with = "crate::values::number::single")]
    xsquared_hat: f32,
    b1_correction: f32,
    b2_correction: f32,
}

impl OpenSeq2Seq {
    /// From the decays of mean and variance, the number of standard deviations above the mean, and what an overflow enters as.
    pub(super) fn new([beta1, beta2, std_dev]: [f64; 3], log_max: f64) -> Self {
        Self {
            betas: [beta1, beta2],
            std_dev,
            log_max,
            sums: Sums {
                x_hat: 0.0,
                slow_x_hat: 0.0,
                xsquared_hat: 0.0,
                b1_correction: 1.0,
                b2_correction: 1.0,
            },
        }
    }
}

impl Rule for OpenSeq2Seq {
    fn name(&self) -> &str {
        "OpenSeq2SeqLogMax"
    }

    fn advance(&mut self, _scale: f32, evidence: Evidence) -> NextScale {
        let x = match evidence {
            Evidence::Finite(None) => return NextScale::Same,
            Evidence::Finite(Some(measures)) => (measures.max_abs as f32).ln() / 2f32.ln(),
            Evidence::Overflow => self.log_max.exp2() as f32,
        };
        NextScale::Exactly(self.sums.add(x, self.betas, self.std_dev))
    }

    fn state(&self) -> String {
        serde_json::to_string(&self.sums).expect("sums are plain data")
    }

    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.sums = serde_json::from_str(state)?;
        let corrections = [self.sums.b1_correction, self.sums.b2_correction];
        match corrections.iter().all(|share| (0.0..=1.0).contains(share)) {
            true => Ok(()),
            false => Err(format!("no run has {:?}", self.sums).into()),
        }
    }
}

impl Sums {
    /// Takes in a logarithm. The scale that follows from it.
    fn add(&mut self, x: f32, [beta1, beta2]: [f64; 2], std_dev: f64) -> f32 {
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
