//! A rule of the loss scale that burn-amp does not know, for runs in which a user's rule is to move it.

use burn_amp::schedule::{Evidence, NextScale, Rule};
use std::error::Error;

/// Log-max as `Schedule::LogMax` has it, with its defaults: all that it needs is in reach.
#[derive(Clone, Debug, PartialEq)]
pub struct LogMaxAgain {
    /// The mean; the mean with the decay of the squares; the squares; and what the starts still weigh.
    sums: [f64; 5],
}

impl Default for LogMaxAgain {
    fn default() -> Self {
        let sums = [0.0, 0.0, 0.0, 1.0, 1.0];
        Self { sums }
    }
}

impl Rule for LogMaxAgain {
    fn name(&self) -> &str {
        "log_max_again"
    }

    fn advance(&mut self, _scale: f32, evidence: Evidence) -> NextScale {
        let measures = match evidence {
            Evidence::Overflow => return NextScale::Counted,
            Evidence::Finite(Some(measures)) => measures,
            _ => return NextScale::Same,
        };
        let x = measures.max_abs.log2();
        let [mean, slow_mean, square, start, slow_start] = &mut self.sums;
        if x.is_finite() {
            *mean = 0.99 * *mean + (1.0 - 0.99) * x;
            *start *= 0.99;
            *slow_mean = 0.999 * *slow_mean + (1.0 - 0.999) * x;
            *square = 0.999 * *square + (1.0 - 0.999) * x * x;
            *slow_start *= 0.999;
        }
        if *start == 1.0 {
            return NextScale::Same;
        }
        let rest = 1.0 - *slow_start;
        let (slow_mean, square) = (*slow_mean / rest, *square / rest);
        let deviation = (square - slow_mean * slow_mean).max(0.0).sqrt();
        let exponent = 65504f64.log2() - (*mean / (1.0 - *start) + 3.09 * deviation);
        NextScale::UpTo(2f64.powi(exponent.floor().clamp(-126.0, 127.0) as i32) as f32)
    }

    fn state(&self) -> String {
        serde_json::to_string(&self.sums).unwrap()
    }

    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.sums = serde_json::from_str(state)?;
        Ok(())
    }
}
