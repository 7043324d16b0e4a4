//! The factor of a region from the statistics of its gradients: AdaLoss (Zhao et al., "Adaptive Loss Scaling", 2019).
//!
//! The bounds and their order are those of the authors' program (github.com/kumasento/ada-loss).

use std::error::Error;
use std::f64::consts::{PI, SQRT_2};
use std::sync::Arc;

use burn_amp_core::internal::in_range;
use burn_amp_core::schedule::{Evidence, Measures, NextScale, Rule};
use burn_amp_core::{AmpError, GradScalerConfig, Rescale};

/// Magnitudes that f16 holds, as the authors' program has them.
const MIN: f64 = 6e-8;
const MAX: f64 = 65504.0;

/// The largest factor of one region, in the authors' program.
const LIMIT: f64 = 16.0;

/// The factor of a region from the statistics of the gradient that comes to it: AdaLoss (Zhao et al., "Adaptive Loss Scaling", 2019).
///
/// After each finite step it is the factor at which the wanted share of normally distributed values would underflow, at least 1 and rounded down to a
/// power of two; less where the largest value would overflow or the limit is reached. The deviation is taken as that of a mean of zero. An
/// overflow in the region halves the factor, which is the ceiling then; that grows as PyTorch's scale does. The original has none. On devices
/// without our kernels nothing is measured, and the factor stays at 1.
///
/// A [`Rule`] that remembers nothing: [`region`](Self::region) has the authors' largest factor, and settings of your own go with
/// [`LossScale::with_rule`](burn_amp_core::LossScale::with_rule).
///
/// ```
/// use burn_amp::{GradScalerConfig, Rescale, adaptive::AdaLoss};
///
/// let trunk = AdaLoss::default().region("trunk"); // from 1, at most 16
///
/// let settings = GradScalerConfig::new().with_init_scale(1.0).with_max_scale(Some(64.0));
/// let schedule = settings.schedule()?.with_rule(AdaLoss::new(0.01, 256.0)?)?;
/// let head = Rescale::dynamic("head").with_schedule(schedule)?;
/// # let _ = (trunk, head);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaLoss {
    underflow_share: f64,
    total_limit: f64,
}

/// The authors' defaults: a share of 0.001, and a limit of 1024.
impl Default for AdaLoss {
    fn default() -> Self {
        Self {
            underflow_share: 1e-3,
            total_limit: 1024.0,
        }
    }
}

impl AdaLoss {
    /// Sets the share of values that may underflow, and the largest product of the factors of a region and of those that enclose it.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if `underflow_share` is not above 0 and at most 0.5, or `total_limit` not finite and at least 1.
    pub fn new(underflow_share: f64, total_limit: f64) -> Result<Self, AmpError> {
        let inside = underflow_share > 0.0 && underflow_share <= 0.5;
        let allowed = "above 0 and at most 0.5";
        in_range("underflow_share", underflow_share, inside, allowed)?;
        let inside = total_limit.is_finite() && total_limit >= 1.0;
        in_range("total_limit", total_limit, inside, "finite and at least 1")?;
        Ok(Self {
            underflow_share,
            total_limit,
        })
    }

    /// A region whose factor moves by this rule, from 1 and up to 16, for [`rescaled`](burn_amp_core::rescaled).
    pub fn region(self, name: impl Into<Arc<str>>) -> Rescale {
        let settings = GradScalerConfig::new()
            .with_init_scale(1.0)
            .with_max_scale(Some(LIMIT));
        let schedule = settings.schedule().and_then(|first| first.with_rule(self));
        let region = schedule.and_then(|schedule| Rescale::dynamic(name).with_schedule(schedule));
        region.expect("the settings are valid")
    }

    /// The largest power of two that is no more than what the measures ask for. None if there are none.
    fn factor(&self, measures: &Measures) -> Option<f32> {
        let sigma = sigma(measures) as f32;
        let quantile = quantile(self.underflow_share);
        let wanted = wanted([MIN, MAX], quantile, sigma, measures.max_abs as f32);
        let factor = bound(self.total_limit / measures.outer_factor, wanted);
        (measures.elements > 0 && factor.is_normal()).then(|| power_of_two(factor))
    }
}

impl Rule for AdaLoss {
    fn name(&self) -> &str {
        "AdaLoss"
    }

    fn advance(&mut self, _scale: f32, evidence: Evidence) -> NextScale {
        let measures = match evidence {
            Evidence::Overflow => return NextScale::Counted,
            Evidence::Finite(measures) => measures.unwrap_or_default(),
        };
        (self.factor(&measures)).map_or(NextScale::Same, NextScale::AtOnce)
    }

    fn state(&self) -> String {
        "null".into()
    }

    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        match state {
            "null" => Ok(()),
            _ => Err("AdaLoss remembers nothing".into()),
        }
    }
}

/// The standard deviation of a gradient whose mean is zero.
fn sigma(measures: &Measures) -> f64 {
    match measures.elements {
        0 => 0.0,
        elements => measures.norm / (elements as f64).sqrt(),
    }
}

/// The factor at which all but the wanted share of normal values, of standard deviation `sigma`, stay above the range's
/// lower end, and none leaves it at the upper one. No less than 1, unless the largest value is above the range; 1 for a gradient that is constant.
fn wanted([min, max]: [f64; 2], quantile: f64, sigma: f32, max_abs: f32) -> f32 {
    if sigma == 0.0 {
        return 1.0;
    }
    let lifted = (min / (quantile * f64::from(sigma))).max(1.0);
    let highest = (max / f64::from(max_abs)) as f32;
    lifted.min(highest.into()) as f32
}

/// `wanted`, limited for all regions that enclose each other. The limit of one region is its schedule's `max_scale`.
fn bound(total: f64, wanted: f32) -> f32 {
    total.min(wanted.into()) as f32
}

/// The largest power of two that is no more than a positive normal number.
///
/// Exact, from the exponent's bits. The authors' program takes a logarithm in f32, which rounds up just below a power of two, so that
/// the result is more than what was asked for, and infinite in f16 from 65535.996 on.
fn power_of_two(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & f32::INFINITY.to_bits())
}

/// The magnitude, in standard deviations, below which this share of normal values lies: `sqrt(2) * erfinv(share)`, for shares up to a half.
fn quantile(share: f64) -> f64 {
    let slope = 2.0 / PI.sqrt();
    let mut x = share / slope;
    for _ in 0..8 {
        x -= (erf(x) - share) / (slope * (-x * x).exp());
    }
    SQRT_2 * x
}

/// The error function, near zero, by its series.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..40 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / PI.sqrt()
}

#[cfg(test)]
mod tests {
    use burn::tensor::f16;
    use serde_json::Value;

    use burn_amp_tests::{number, optional};

    use burn_amp_core::schedule::Measures;

    use super::{AdaLoss, bound, power_of_two, quantile, wanted};

    /// All traces of the authors' program, of one kind.
    fn traces(kind: &str) -> Vec<Value> {
        let traces = burn_amp_tests::traces("adaloss").into_iter();
        let traces = traces.map(|(_, trace): (_, Value)| trace);
        let traces: Vec<_> = traces.filter(|trace| trace["kind"] == kind).collect();
        assert!(!traces.is_empty());
        traces
    }

    /// The cast of the trace's dtype.
    fn cast(trace: &Value, value: f64) -> f64 {
        match trace["params"]["dtype"].as_str() {
            Some("float32") => f64::from(value as f32),
            _ => f16::from_f64(value).to_f64(),
        }
    }

    #[test]
    fn parity_adaloss_chain() {
        for trace in traces("chain") {
            let params = &trace["params"];
            let param = |name: &str| number(&params[name]);
            let flag = |name: &str| params[name].as_bool().unwrap();
            let quantile_of = quantile(param("n_uf_threshold"));
            assert!((quantile_of / param("n_uf_sigma") - 1.0).abs() < 1e-12);
            for row in 0..trace["layer"].as_array().unwrap().len() {
                let at = format!("{}, row {row}", trace["id"]);
                let column = |name: &str| optional(&trace[name][row]);
                let Some(unbound) = column("unbound") else {
                    continue;
                };
                let (sigma, max_abs) = (column("sigma").unwrap(), column("max_abs").unwrap());
                let updating = trace["updating"][row] == 1 || trace["updating"][row] == true;
                // Ours ignores values that are not finite: the step was skipped.
                let finite = sigma.is_finite() && max_abs.is_finite();
                if updating && finite && !flag("lognormal") {
                    let range = [param("u_min"), param("u_max")];
                    let ours = wanted(range, quantile_of, sigma as f32, max_abs as f32);
                    let ours = f64::from(ours);
                    let same = (ours - unbound).abs() <= 3e-6 * unbound.abs();
                    assert!(same || ours == unbound, "{at}: {ours}, and not {unbound}");
                }
                if !unbound.is_finite() {
                    continue;
                }
                let mut scale = unbound as f32;
                if flag("use_bound") {
                    let total = param("accum_upper_bound") / column("prev_scale").unwrap();
                    let limit = param("scale_upper_bound") as f32;
                    scale = bound(total, scale).min(limit);
                    assert_eq!(f64::from(scale), column("bound").unwrap(), "{at}");
                }
                if flag("power_of_two") {
                    assert_power(scale, column("power_of_two").unwrap(), |ours| {
                        cast(&trace, ours)
                    });
                }
            }
        }
    }

    /// Ours is never more than the scale; theirs is just below a power of two, and else the same, as their dtype has it. Whether theirs is more.
    fn assert_power(scale: f32, theirs: f64, cast: impl Fn(f64) -> f64) -> bool {
        let ours = power_of_two(scale);
        assert!(ours <= scale && scale < 2.0 * ours, "{scale}");
        let is_more = theirs > f64::from(scale);
        assert!(is_more || cast(ours.into()) == theirs, "{scale}");
        is_more
    }

    #[test]
    fn parity_adaloss_power_of_two() {
        let mut exceeded = 0;
        for trace in traces("power_of_two") {
            let scales = trace["scale_in"].as_array().unwrap().iter();
            for (scale, theirs) in scales.zip(trace["power_of_two"].as_array().unwrap()) {
                let in_f16 = |ours| f16::from_f64(ours).to_f64();
                let is_more = assert_power(number(scale) as f32, number(theirs), in_f16);
                exceeded += usize::from(is_more);
            }
        }
        assert!(exceeded > 0);
    }

    #[test]
    fn no_gradients_move_no_scale() {
        let adaloss = AdaLoss::default();
        let seen = |elements, norm, max_abs| {
            let mut seen = Measures::default();
            (seen.elements, seen.norm, seen.max_abs) = (elements, norm, max_abs);
            seen
        };
        assert_eq!(adaloss.factor(&seen(0, 0.0, 0.0)), None);
        assert_eq!(adaloss.factor(&seen(4, 0.0, 0.0)), Some(1.0));
        assert_eq!(adaloss.factor(&seen(4, f64::INFINITY, 1.0)), Some(1.0));
        // As far as the largest value goes.
        assert_eq!(adaloss.factor(&seen(1 << 40, 3e-5, 1e4)), Some(4.0));
    }
}
