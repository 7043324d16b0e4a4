//! The next scale from log-normal statistics of the largest magnitude, after OpenSeq2Seq, with its bugs fixed.
//!
//! It computes in f64; only finite steps and magnitudes above zero enter; the scale is a power of two. In the original an overflow pins the scale to
//! its lowest value, and a gradient that is all zero makes it NaN for ever.

use serde::{Deserialize, Serialize};

use super::F16_MAX;
use super::rule::{Evidence, NextScale};
use crate::error::{AmpError, in_range};
use crate::settings;

settings! {
    /// The settings of [`Schedule::LogMax`](crate::Schedule::LogMax).
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    LogMax:
    /// The decay of the mean. At least 0 and below 1; default 0.99.
    #[serde(with = "crate::values::number")]
    beta1, with_beta1: f64 = 0.99,
    /// The decay of the variance. At least 0 and below 1; default 0.999.
    #[serde(with = "crate::values::number")]
    beta2, with_beta2: f64 = 0.999,
    /// Standard deviations above the mean. At least 0; default 3.09, which one normal value in 1000 exceeds.
    #[serde(with = "crate::values::number")]
    overflow_std_dev, with_overflow_std_dev: f64 = 3.09,
}

impl LogMax {
    pub(super) fn check(&self) -> Result<(), AmpError> {
        for (field, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            let inside = (0.0..1.0).contains(&beta);
            in_range(field, beta, inside, "at least 0 and below 1")?;
        }
        let std_dev = self.overflow_std_dev;
        let inside = std_dev.is_finite() && std_dev >= 0.0;
        in_range("overflow_std_dev", std_dev, inside, "finite and at least 0")
    }
}

/// Running sums, each with the weight that its start still has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sums {
    mean: f64,
    mean_start: f64,
    /// The mean with the decay of the squares, for the variance.
    slow_mean: f64,
    square: f64,
    slow_start: f64,
}

impl Sums {
    pub(super) fn advance(&mut self, settings: &LogMax, evidence: Evidence) -> NextScale {
        let measures = match evidence {
            Evidence::Overflow => return NextScale::Counted,
            Evidence::Finite(None) => return NextScale::Same,
            Evidence::Finite(Some(measures)) => measures,
        };
        let x = measures.max_abs.log2();
        if x.is_finite() {
            self.add(x, settings);
        }
        let predicted = self.predict(settings.overflow_std_dev);
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

    fn add(&mut self, x: f64, &LogMax { beta1, beta2, .. }: &LogMax) {
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
        let [slow_mean, square] =
            [self.slow_mean, self.square].map(|sum| sum / (1.0 - self.slow_start));
        let deviation = (square - slow_mean * slow_mean).max(0.0).sqrt();
        let exponent = F16_MAX.log2() - (mean + std_dev * deviation);
        Some(2f64.powi(exponent.floor().clamp(-126.0, 127.0) as i32) as f32)
    }
}
