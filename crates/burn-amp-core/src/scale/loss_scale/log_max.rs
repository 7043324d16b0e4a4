//! The next scale from log-normal statistics of the largest magnitude, after OpenSeq2Seq: with its bugs fixed, and as it is.
//!
//! Fixed, it is in f64; only finite steps and magnitudes above zero enter; the scale is a power of two. The original is in f32: an overflow enters
//! as the magnitude 2^(2^`log_max`), and pins the scale to its lowest value; a gradient that is all zero makes it NaN for ever.

use serde::{Deserialize, Serialize};

use super::rule::{Evidence, NextScale};
use super::{F16_MAX, schedule::Schedule};

/// Running sums, each with the weight that its start still has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sums {
    mean: f64,
    mean_start: f64,
    /// With the decay of the squares, for the variance.
    slow_mean: f64,
    square: f64,
    slow_start: f64,
}

impl Sums {
    pub(super) fn advance(&mut self, schedule: &Schedule, evidence: Evidence) -> NextScale {
        let [beta1, beta2, std_dev] = schedule.moments();
        let measures = match evidence {
            Evidence::Overflow => return NextScale::Counted,
            Evidence::Finite(None) => return NextScale::Same,
            Evidence::Finite(Some(measures)) => measures,
        };
        let x = measures.max_abs.log2();
        if x.is_finite() {
            self.add(x, [beta1, beta2]);
        }
        let predicted = self.predict(std_dev);
        predicted.map_or(NextScale::Same, NextScale::UpTo)
    }

    pub(super) fn is_valid(&self) -> bool {
        let shares = [self.mean_start, self.slow_start];
        let sums = [self.mean, self.slow_mean, self.square];
        shares.iter().all(|share| (0.0..=1.0).contains(share))
            && (self.mean_start == 1.0) == (self.slow_start == 1.0)
            && sums.iter().all(|sum| sum.is_finite())
    }

    pub(super) const START: Self = Self {
        mean: 0.0,
        mean_start: 1.0,
        slow_mean: 0.0,
        square: 0.0,
        slow_start: 1.0,
    };

    fn add(&mut self, x: f64, [beta1, beta2]: [f64; 2]) {
        self.mean = beta1 * self.mean + (1.0 - beta1) * x;
        self.mean_start *= beta1;
        self.slow_mean = beta2 * self.slow_mean + (1.0 - beta2) * x;
        self.square = beta2 * self.square + (1.0 - beta2) * x * x;
        self.slow_start *= beta2;
    }

    /// The highest power of two at which a magnitude so many standard deviations above the mean is still finite in f16; none
    /// before the first step.
    fn predict(&self, std_dev: f64) -> Option<f32> {
        if self.mean_start == 1.0 {
            return None;
        }
        let mean = self.mean / (1.0 - self.mean_start);
        let (slow_mean, square) = (
            self.slow_mean / (1.0 - self.slow_start),
            self.square / (1.0 - self.slow_start),
        );
        let deviation = (square - slow_mean * slow_mean).max(0.0).sqrt();
        let exponent = F16_MAX.log2() - (mean + std_dev * deviation);
        Some(2f64.powi(exponent.floor().clamp(-126.0, 127.0) as i32) as f32)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OriginalSums {
    #[serde(with = "crate::values::number::single")]
    x_hat: f32,
    #[serde(with = "crate::values::number::single")]
    slow_x_hat: f32,
    #[serde(with = "crate::values::number::single")]
    xsquared_hat: f32,
    b1_correction: f32,
    b2_correction: f32,
}

impl OriginalSums {
    pub(super) fn advance(&mut self, schedule: &Schedule, evidence: Evidence) -> NextScale {
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

    pub(super) fn is_valid(&self) -> bool {
        let corrections = [self.b1_correction, self.b2_correction];
        corrections.iter().all(|share| (0.0..=1.0).contains(share))
    }

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
