//! The factor of a part of a network, from the statistics of its gradients: AdaLoss (Zhao et al., "Adaptive Loss Scaling", 2019).
//!
//! Pure functions. The bounds and their order are those of the authors' program (github.com/kumasento/ada-loss).

use std::f64::consts::{PI, SQRT_2};

/// Magnitudes that f16 holds, as the authors' program has them.
const MIN: f64 = 6e-8;
const MAX: f64 = 65504.0;

/// What was seen of the gradient where it came to the part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Statistics {
    pub(crate) elements: u64,
    /// The sum of their squares.
    pub(crate) squares: f64,
    pub(crate) max_abs: f64,
    /// The product of the factors of the parts around.
    pub(crate) around: f64,
}

impl Statistics {
    /// Those of both as one gradient.
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            elements: self.elements + other.elements,
            squares: self.squares + other.squares,
            max_abs: self.max_abs.max(other.max_abs),
            around: self.around.max(other.around),
        }
    }

    /// The standard deviation of a gradient whose mean is zero.
    fn sigma(&self) -> f64 {
        match self.elements {
            0 => 0.0,
            elements => (self.squares / elements as f64).sqrt(),
        }
    }
}

/// The settings of the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AdaLoss {
    /// The share of values that may underflow.
    pub(crate) underflow_share: f64,
    /// The largest product of the factors of a part and of those around it.
    pub(crate) total_limit: f64,
}

/// The authors' defaults.
impl Default for AdaLoss {
    fn default() -> Self {
        Self {
            underflow_share: 1e-3,
            total_limit: 1024.0,
        }
    }
}

/// The largest factor of one part, in the authors' program.
pub(crate) const LIMIT: f64 = 16.0;

impl AdaLoss {
    /// The largest power of two, up to `limit`, that is no more than what the statistics ask for. None if there are none.
    pub(crate) fn factor(&self, statistics: &Statistics, limit: f32) -> Option<f32> {
        let sigma = statistics.sigma();
        let quantile = quantile(self.underflow_share);
        let wanted = wanted(
            [MIN, MAX],
            quantile,
            sigma as f32,
            statistics.max_abs as f32,
        );
        let total = self.total_limit / statistics.around;
        let bound = bound(limit.into(), total, wanted);
        (statistics.elements > 0 && bound.is_normal()).then(|| power_of_two(bound))
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

/// `wanted`, limited for one part and for all parts that are around each other.
fn bound(limit: f64, total: f64, wanted: f32) -> f32 {
    limit.min(total.min(wanted.into())) as f32
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
    use std::collections::HashMap;

    use burn_amp_tests::{number, optional};

    use super::{AdaLoss, Statistics, bound, power_of_two, quantile, wanted};

    /// All traces of the authors' program, of one kind.
    fn traces(kind: &str) -> Vec<Value> {
        let traces = burn_amp_tests::traces("adaloss").into_iter();
        let traces = traces.map(|(_, trace): (_, Value)| trace);
        let traces: Vec<_> = traces.filter(|trace| trace["kind"] == kind).collect();
        assert!(!traces.is_empty());
        traces
    }

    /// The power of two that the authors' program makes of a scale: by a logarithm in f32.
    fn by_logarithm(value: f32) -> f64 {
        let log2 = f64::from(value).log2() as f32;
        f64::from(log2.floor()).exp2()
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
            let mut cache = HashMap::new();
            for (row, layer) in trace["layer"].as_array().unwrap().iter().enumerate() {
                let at = format!("{}, row {row}", trace["id"]);
                let column = |name: &str| optional(&trace[name][row]);
                let Some(unbound) = column("unbound") else {
                    continue;
                };
                let (sigma, max_abs) = (column("sigma").unwrap(), column("max_abs").unwrap());
                let updating = trace["updating"][row] == 1 || trace["updating"][row] == true;
                // Ours learns nothing from values that are not finite: the step was skipped.
                let finite = sigma.is_finite() && max_abs.is_finite();
                if updating && finite && !flag("lognormal") {
                    let ours = wanted(
                        [param("u_min"), param("u_max")],
                        quantile_of,
                        sigma as f32,
                        max_abs as f32,
                    );
                    let same = (f64::from(ours) - unbound).abs() <= 3e-6 * unbound.abs();
                    assert!(
                        same || f64::from(ours) == unbound,
                        "{at}: {ours}, and not {unbound}"
                    );
                }
                match updating {
                    true => drop(cache.insert(layer.to_string(), unbound.to_bits())),
                    false => assert_eq!(cache[&layer.to_string()], unbound.to_bits(), "{at}"),
                }
                let raises = !matches!(&trace["raises"][row], Value::Null | Value::Bool(false))
                    && trace["raises"][row] != 0;
                if raises {
                    assert!(!unbound.is_finite(), "{at}");
                    continue;
                }
                let previous = column("prev_scale").unwrap();
                let mut scale = unbound as f32;
                if flag("use_bound") {
                    let total = param("accum_upper_bound") / previous;
                    scale = bound(param("scale_upper_bound"), total, scale);
                    assert_eq!(f64::from(scale), column("bound").unwrap(), "{at}");
                }
                let mut last = f64::from(scale);
                if flag("power_of_two") {
                    last = by_logarithm(scale);
                    assert_eq!(cast(&trace, last), column("power_of_two").unwrap(), "{at}");
                    let ours = power_of_two(scale);
                    assert!(ours <= scale && scale < 2.0 * ours, "{at}");
                    assert!(last > f64::from(scale) || f64::from(ours) == last, "{at}");
                }
                let last = cast(&trace, last);
                assert_eq!(last, column("final").unwrap(), "{at}");
                assert_eq!(
                    cast(&trace, last * previous),
                    column("cumulative").unwrap(),
                    "{at}"
                );
            }
        }
    }

    /// Theirs is more than the scale just below a power of two; ours never is.
    #[test]
    fn parity_adaloss_power_of_two() {
        let mut exceeded = 0;
        for trace in traces("power_of_two") {
            let scales = trace["scale_in"].as_array().unwrap();
            for (row, scale) in scales.iter().enumerate() {
                let scale = number(scale) as f32;
                let theirs = f16::from_f64(by_logarithm(scale)).to_f64();
                assert_eq!(theirs, number(&trace["power_of_two"][row]), "{scale}");
                let ours = power_of_two(scale);
                assert!(ours <= scale && scale < 2.0 * ours, "{scale}");
                exceeded += usize::from(theirs > f64::from(scale));
                let in_f16 = f16::from_f32(ours).to_f64();
                assert!(theirs == in_f16 || theirs > f64::from(scale), "{scale}");
            }
        }
        assert!(exceeded > 0);
    }

    /// Where branches meet, theirs need a common scale. Ours take their factors back before they meet.
    #[test]
    fn parity_adaloss_rescaling() {
        for trace in traces("rescaling") {
            let max = number(&trace["params"]["u_max"]);
            for (row, scales) in trace["scales"].as_array().unwrap().iter().enumerate() {
                let numbers = |values: &Value| -> Vec<f64> {
                    let values = values.as_array().unwrap();
                    values.iter().map(number).collect()
                };
                let (scales, max_abs) = (numbers(scales), numbers(&trace["max_abs"][row]));
                let plain = (max_abs.iter().zip(&scales)).map(|(max_abs, scale)| max_abs / scale);
                let plain = plain.fold(0.0, f64::max);
                let fits = |scale: &f64| plain * scale < max;
                let largest = scales.iter().copied().filter(fits).reduce(f64::max);
                let target = largest.or_else(|| {
                    let mut scale = scales.iter().copied().reduce(f64::min)?;
                    while !fits(&scale) && scale >= 0.125 {
                        scale /= 2.0;
                    }
                    fits(&scale).then_some(scale)
                });
                assert_eq!(
                    target,
                    optional(&trace["target"][row]),
                    "{}, row {row}",
                    trace["id"]
                );
            }
        }
    }

    #[test]
    fn nothing_is_learned_from_nothing() {
        let adaloss = AdaLoss::default();
        let seen = |elements, squares, max_abs| Statistics {
            elements,
            squares,
            max_abs,
            around: 1.0,
        };
        assert_eq!(adaloss.factor(&seen(0, 0.0, 0.0), 16.0), None);
        assert_eq!(adaloss.factor(&seen(4, 0.0, 0.0), 16.0), Some(1.0));
        assert_eq!(
            adaloss.factor(&seen(4, f64::INFINITY, 1.0), 16.0),
            Some(1.0)
        );
        // As far as the largest value goes.
        assert_eq!(adaloss.factor(&seen(1 << 40, 1e-9, 1e4), 16.0), Some(4.0));
        let both = seen(4, 1.0, 0.5).join(seen(12, 3.0, 1.0));
        assert_eq!(both, seen(16, 4.0, 1.0));
    }
}
