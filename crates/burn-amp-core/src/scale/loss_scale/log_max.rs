//! The next scale from log-normal statistics of the largest magnitude, after OpenSeq2Seq, with its bugs fixed.
//!
//! In f64; only finite steps and magnitudes above zero enter; the scale is a power of two.

use serde::{Deserialize, Serialize};

use super::{
    F16_MAX,
    built_in::Memory,
    rule::{Evidence, NextScale},
    schedule::Schedule,
};

/// Running sums, each with the weight that its start still has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
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
    pub(super) const START: Self = Self {
        mean: 0.0,
        mean_start: 1.0,
        slow_mean: 0.0,
        square: 0.0,
        slow_start: 1.0,
    };
}

impl Memory for Sums {
    const NAME: &'static str = "LogMax";

    fn advance(&mut self, schedule: &Schedule, evidence: Evidence) -> NextScale {
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

    fn is_valid(&self) -> bool {
        let shares = [self.mean_start, self.slow_start];
        let sums = [self.mean, self.slow_mean, self.square];
        shares.iter().all(|share| (0.0..=1.0).contains(share))
            && (self.mean_start == 1.0) == (self.slow_start == 1.0)
            && sums.iter().all(|sum| sum.is_finite())
    }
}

impl Sums {
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
