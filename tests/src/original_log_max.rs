//! OpenSeq2Seq's `LogMaxScaler` as it is, bugs included, as a rule of a program's own.

use burn_amp::schedule::{Evidence, NextScale, Rule};
use serde_json::Value;
use std::error::Error;

/// In f32: an overflow enters as the magnitude 2^(2^`log_max`), and pins the scale to its lowest value; a gradient that is all zero asks for a
/// scale that is NaN, and every later one does too.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginalLogMax {
    betas: [f64; 2],
    std_dev: f64,
    log_max: f64,
    /// `x_hat`, `slow_x_hat`, `xsquared_hat`, and the corrections of both decays.
    sums: [f32; 5],
}

/// The defaults of the source.
impl Default for OriginalLogMax {
    fn default() -> Self {
        Self {
            betas: [0.99, 0.999],
            std_dev: 3.09,
            log_max: 16.0,
            sums: [0.0, 0.0, 0.0, 1.0, 1.0],
        }
    }
}

impl OriginalLogMax {
    /// The rule with the parameters of a trace.
    pub fn of(params: &Value) -> Self {
        let param = |name: &str| crate::number(&params[name]);
        Self {
            betas: [param("beta1"), param("beta2")],
            std_dev: param("overflow_std_dev"),
            log_max: param("log_max"),
            ..Self::default()
        }
    }
}

impl Rule for OriginalLogMax {
    fn name(&self) -> &str {
        "original_log_max"
    }

    fn advance(&mut self, _scale: f32, evidence: Evidence) -> NextScale {
        let x = match evidence {
            Evidence::Finite(None) => return NextScale::Same,
            Evidence::Finite(Some(measures)) => (measures.max_abs as f32).ln() / 2f32.ln(),
            Evidence::Overflow => self.log_max.exp2() as f32,
        };
        let [(b1, rest1), (b2, rest2)] = self.betas.map(|beta| (beta as f32, (1.0 - beta) as f32));
        let [
            x_hat,
            slow_x_hat,
            xsquared_hat,
            b1_correction,
            b2_correction,
        ] = &mut self.sums;
        *x_hat = b1 * *x_hat + rest1 * x;
        *b1_correction *= b1;
        let mu = *x_hat / (1.0 - *b1_correction);
        *slow_x_hat = b2 * *slow_x_hat + rest2 * x;
        *xsquared_hat = b2 * *xsquared_hat + rest2 * (x * x);
        *b2_correction *= b2;
        let slow = *slow_x_hat / (1.0 - *b2_correction);
        let variance = *xsquared_hat / (1.0 - *b2_correction) - slow * slow;
        // Unlike `max`, lets NaN pass.
        let variance = if variance < 0.0 { 0.0 } else { variance };
        NextScale::Exactly(2f32.powf(16.0 - (self.std_dev as f32 * variance.sqrt() + mu)))
    }

    fn state(&self) -> String {
        serde_json::to_string(&self.sums).unwrap()
    }

    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.sums = serde_json::from_str(state)?;
        Ok(())
    }
}
