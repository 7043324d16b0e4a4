//! OpenSeq2Seq's `LogMaxScaler` as it is, in f32, with its faults.
//!
//! An overflow enters as the magnitude 2^(2^`log_max`), and pins the scale to its lowest value. A gradient that is all zero makes
//! it NaN for ever.

use serde::{Deserialize, Deserializer, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenSeq2Seq {
    #[serde(deserialize_with = "nan_if_null")]
    x_hat: f32,
    #[serde(deserialize_with = "nan_if_null")]
    slow_x_hat: f32,
    #[serde(deserialize_with = "nan_if_null")]
    xsquared_hat: f32,
    b1_correction: f32,
    b2_correction: f32,
}

impl Default for OpenSeq2Seq {
    fn default() -> Self {
        Self {
            x_hat: 0.0,
            slow_x_hat: 0.0,
            xsquared_hat: 0.0,
            b1_correction: 1.0,
            b2_correction: 1.0,
        }
    }
}

impl OpenSeq2Seq {
    /// `x` of a clean step.
    pub(super) fn log2(max_abs: f64) -> f32 {
        (max_abs as f32).ln() / 2f32.ln()
    }

    /// The next scale, before it is clamped.
    pub(super) fn next(&mut self, x: f32, [beta1, beta2, std_dev]: [f64; 3]) -> f32 {
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

    pub(super) fn is_valid(&self) -> bool {
        let corrections = [self.b1_correction, self.b2_correction];
        corrections.iter().all(|share| (0.0..=1.0).contains(share))
    }
}

/// JSON has no NaN: `null` is written for it.
pub(super) fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f32::NAN))
}
