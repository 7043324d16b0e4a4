//! The statistics of a guard: a pure value. No tensors in here.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use super::{Guard, Outlier, SkipStep, ZClip};
use burn_amp_core::{AmpError, hook::Verdict};

/// The number that `clip_grad_norm_` adds to a norm, and ZClip too.
const CLIP_EPSILON: f64 = 1e-6;

const LOSS: &str = "loss";
const NORM: &str = "gradient norm";

/// The statistics of a guard. [`judge`](Self::judge) is deterministic, and needs no tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuardState {
    pub(super) guard: Guard,
    /// The last losses, the newest at the end.
    losses: VecDeque<f64>,
    norms: VecDeque<f64>,
    /// ZClip's, once its warm-up is over.
    average: Option<Average>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Average {
    mean: f64,
    var: f64,
}

impl GuardState {
    pub(super) fn new(guard: Guard) -> Result<Self, AmpError> {
        guard.check()?;
        Ok(Self {
            guard,
            losses: VecDeque::new(),
            norms: VecDeque::new(),
            average: None,
        })
    }

    /// Takes in a finite step with this loss (none if it is not known) and this norm of the gradients, and judges it.
    pub(super) fn judge(&mut self, loss: Option<f64>, norm: f64) -> Verdict {
        for (name, value) in [(LOSS, loss), (NORM, Some(norm))] {
            if let Some(value) = value.filter(|value| !value.is_finite()) {
                let reason = format!("the {name} is {value}");
                return Verdict::Reject { reason };
            }
        }
        let guard = self.guard;
        if let Guard::ZClip(settings) = guard {
            return self.clip(settings, norm);
        }
        // Both enter their windows, whatever the first of them says.
        let loss = loss.and_then(|loss| reject(guard, &mut self.losses, LOSS, loss));
        let norm = reject(guard, &mut self.norms, NORM, norm);
        match loss.or(norm) {
            Some(reason) => Verdict::Reject { reason },
            None => Verdict::Apply,
        }
    }

    fn clip(&mut self, settings: ZClip, norm: f64) -> Verdict {
        let limit = self.limit(settings, norm);
        let Some((limit, usual)) = limit.filter(|(limit, _)| norm > *limit) else {
            return Verdict::Apply;
        };
        let factor = limit / (norm + CLIP_EPSILON);
        let reason = usual.reason(NORM, norm);
        match factor > 0.0 {
            true => Verdict::Clip { factor, reason },
            false => Verdict::Reject { reason },
        }
    }

    /// Takes a norm into ZClip's averages. Returns the limit of an outlier, beside the usual norm before.
    fn limit(&mut self, settings: ZClip, norm: f64) -> Option<(f64, Usual)> {
        let Some(Average { mean, var }) = &mut self.average else {
            self.norms.push_back(norm);
            if self.norms.len() >= settings.warmup_steps as usize {
                let (mean, var) = mean_and_variance(self.norms.iter().copied());
                self.average = Some(Average { mean, var });
                self.norms.clear();
            }
            return None;
        };
        let (std, z_thresh) = (var.sqrt(), settings.z_thresh);
        let usual = Usual { mean: *mean, std };
        let z = (norm - *mean) / (std + settings.eps);
        let falloff = || (z_thresh / z).powf(settings.falloff);
        let limit = (z > z_thresh)
            .then(|| (*mean + z_thresh * std * falloff()) * settings.clip_factor)
            // Where all norms were zero, nothing is usual yet.
            .filter(|limit| *limit > 0.0);
        if limit.is_none() || !settings.skip_update_on_spike {
            let (alpha, seen) = (settings.alpha, limit.unwrap_or(norm));
            *mean = alpha * *mean + (1.0 - alpha) * seen;
            *var = alpha * *var + (1.0 - alpha) * (seen - *mean).powi(2);
        }
        Some((limit?, usual))
    }

    /// Names what no run can have stored, if there is something.
    pub(super) fn contradiction(&self) -> Option<String> {
        if let Err(error) = self.guard.check() {
            return Some(error.to_string());
        }
        let capacity = match self.guard {
            Guard::ZClip(_) if self.average.is_some() => 0,
            Guard::ZClip(settings) => settings.warmup_steps - 1,
            Guard::SkipStep(settings) => settings.rolling_interval_length + 1,
            Guard::Outlier(settings) => settings.window,
        };
        let lengths = [self.losses.len(), self.norms.len()];
        if let Some(length) = lengths.into_iter().find(|len| *len > capacity as usize) {
            return Some(format!(
                "its guard has {length} values, and at most {capacity}"
            ));
        }
        let values = self.losses.iter().chain(&self.norms);
        let averages = self.average.iter().flat_map(|a| [a.mean, a.var]);
        let broken = values.copied().chain(averages).any(|n| !n.is_finite());
        let negative = self.average.is_some_and(|average| average.var < 0.0);
        (broken || negative)
            .then(|| "its guard has values that are not finite, or a negative variance".to_string())
    }
}

/// Takes a value into its window. Returns why its step is rejected, if it is.
fn reject(guard: Guard, window: &mut VecDeque<f64>, name: &str, value: f64) -> Option<String> {
    let (value, usual) = match guard {
        Guard::ZClip(_) => return None,
        Guard::SkipStep(settings) => {
            // It is an f32 there, so that the mean of equal values is their value. A finite value stays finite.
            let value = f64::from((value as f32).clamp(f32::MIN, f32::MAX));
            (value, settings.exceeded(window, value)?)
        }
        Guard::Outlier(settings) => {
            let threshold = match name {
                LOSS => settings.skip_update_lossz,
                _ => settings.skip_update_gradz,
            };
            (value, settings.exceeded(window, value, threshold)?)
        }
    };
    Some(usual.reason(name, value))
}

impl SkipStep {
    /// Takes a value in. Returns what was usual before, if the value exceeds it.
    fn exceeded(&self, window: &mut VecDeque<f64>, value: f64) -> Option<Usual> {
        let length = self.rolling_interval_length as usize;
        window.push_back(value);
        if window.len() > length + 1 {
            window.pop_front();
        }
        // One value has no standard deviation.
        if window.len() < (length / 2).max(3) {
            return None;
        }
        let usual = Usual::before_newest(window);
        let far = self.sigma_factor * usual.std;
        if value - usual.mean <= far || usual.std == 0.0 {
            return None;
        }
        limit_newest(window, usual.mean + far);
        Some(usual)
    }
}

impl Outlier {
    /// Takes a value in. Returns what the others of the window are, if the value is far from them.
    fn exceeded(&self, window: &mut VecDeque<f64>, value: f64, threshold: f64) -> Option<Usual> {
        let is_full = window.len() == self.window as usize;
        window.pop_front_if(|_| is_full);
        window.push_back(value);
        if !is_full {
            return None;
        }
        let (mean, var) = mean_and_variance(window.iter().copied());
        // It is an f32 there, and 0 where all values are the same.
        let z = f64::from(((value - mean) / var.sqrt()) as f32);
        // A value with this z-score is so many standard deviations of the others above their mean.
        let usual = Usual::before_newest(window);
        if !(z.is_finite() && threshold != 0.0 && z > threshold) || usual.std == 0.0 {
            return None;
        }
        let count = f64::from(self.window);
        let far = threshold * (count / (count - 1.0 - threshold * threshold)).sqrt();
        let std = usual.std * ((count - 2.0) / (count - 1.0)).sqrt();
        limit_newest(window, usual.mean + far * std);
        Some(usual)
    }
}

/// Keeps no more of the newest value than would have been accepted: spikes do not hide the next ones, and a new level is accepted
/// in the end.
fn limit_newest(window: &mut VecDeque<f64>, limit: f64) {
    if let Some(newest) = window.back_mut() {
        *newest = limit;
    }
}

/// The usual values, from which an outlier is far.
struct Usual {
    mean: f64,
    std: f64,
}

impl Usual {
    /// The mean and the unbiased standard deviation of all values but the newest.
    fn before_newest(values: &VecDeque<f64>) -> Self {
        let count = values.len() - 1;
        let (mean, var) = mean_and_variance(values.iter().copied().take(count));
        let std = (var * count as f64 / (count as f64 - 1.0)).sqrt();
        Self { mean, std }
    }

    fn reason(&self, name: &str, value: f64) -> String {
        let [value, mean, std] = [value, self.mean, self.std].map(rounded);
        format!("the {name} is {value}, where {mean} +- {std} is usual")
    }
}

/// A number for the log: as many digits as one wants to read.
fn rounded(value: f64) -> String {
    match (1e-2..1e6).contains(&value.abs()) {
        true => format!("{value:.4}"),
        false => format!("{value:.3e}"),
    }
}

/// The mean, and the variance about it (of the whole population).
fn mean_and_variance(values: impl ExactSizeIterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let squares: f64 = values.map(|value| (value - mean).powi(2)).sum();
    (mean, squares / count)
}
