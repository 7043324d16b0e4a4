//! What a guard knows of the steps so far: a pure value. No tensors in here.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use super::Guard;
use burn_amp_core::{AmpError, hook::Verdict, internal::number};

/// What `clip_grad_norm_` adds to a norm, and ZClip too.
const CLIP_EPSILON: f64 = 1e-6;

/// The statistics of a guard. [`judge`](Self::judge) is deterministic, and needs no tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GuardState {
    pub(super) guard: Guard,
    losses: Series,
    norms: Series,
    /// ZClip's, once its warm-up is over.
    average: Option<Average>,
}

/// The last values, the newest at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    #[serde(with = "number::list")]
    values: VecDeque<f64>,
    /// Running sums of the values and of their squares: llm.c's, where its arithmetic is asked for.
    #[serde(with = "number")]
    sum: f64,
    #[serde(with = "number")]
    sum_sq: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Average {
    #[serde(with = "number")]
    mean: f64,
    #[serde(with = "number")]
    var: f64,
}

impl GuardState {
    pub(super) fn new(guard: Guard) -> Result<Self, AmpError> {
        guard.check()?;
        Ok(Self {
            guard,
            losses: Series::default(),
            norms: Series::default(),
            average: None,
        })
    }

    /// Takes in a finite step with this loss (none if it is not known) and this norm of the gradients: what is to become of it.
    pub(super) fn judge(&mut self, loss: Option<f64>, norm: f64) -> Verdict {
        let mut values = [(Kind::Loss, loss), (Kind::Norm, Some(norm))].into_iter();
        let broken = values.find(|(_, value)| value.is_some_and(|value| !value.is_finite()));
        if !self.guard.is_original()
            && let Some((kind, Some(value))) = broken
        {
            let reason = format!("the {} is {value}", kind.name());
            return Verdict::Reject { reason };
        }
        if let Guard::ZClip { .. } = self.guard {
            return self.clip(norm);
        }
        // Both enter their windows, whatever the first of them says.
        let loss = loss.and_then(|loss| self.losses.reject(&self.guard, Kind::Loss, loss));
        let norm = self.norms.reject(&self.guard, Kind::Norm, norm);
        match loss.or(norm) {
            Some(reason) => Verdict::Reject { reason },
            None => Verdict::Apply,
        }
    }

    fn clip(&mut self, norm: f64) -> Verdict {
        let limit = self.limit(norm);
        let Some((limit, usual)) = limit.filter(|(limit, _)| norm > *limit) else {
            return Verdict::Apply;
        };
        let factor = limit / (norm + CLIP_EPSILON);
        let reason = usual.reason(Kind::Norm, norm);
        match factor > 0.0 {
            true => Verdict::Clip { factor, reason },
            false => Verdict::Reject { reason },
        }
    }

    /// ZClip: the limit of an outlier, and what was usual before. Takes the norm into the averages.
    fn limit(&mut self, norm: f64) -> Option<(f64, Usual)> {
        let Guard::ZClip {
            alpha,
            z_thresh,
            eps,
            warmup_steps,
            falloff,
            clip_factor,
            skip_update_on_spike,
            original,
        } = self.guard
        else {
            return None;
        };
        let Some(Average { mean, var }) = &mut self.average else {
            self.norms.values.push_back(norm);
            if self.norms.values.len() >= warmup_steps as usize {
                let (mean, var) = mean_and_variance(self.norms.values.iter().copied());
                self.average = Some(Average { mean, var });
                self.norms.values.clear();
            }
            return None;
        };
        let std = var.sqrt();
        let usual = Usual { mean: *mean, std };
        let z = (norm - *mean) / (std + eps);
        let limit = (z > z_thresh)
            .then(|| (*mean + z_thresh * std * (z_thresh / z).powf(falloff)) * clip_factor)
            // Where all norms were zero, nothing is usual yet.
            .filter(|limit| original || *limit > 0.0);
        if limit.is_none() || !skip_update_on_spike {
            let seen = limit.unwrap_or(norm);
            *mean = alpha * *mean + (1.0 - alpha) * seen;
            *var = alpha * *var + (1.0 - alpha) * (seen - *mean).powi(2);
        }
        Some((limit?, usual))
    }

    /// What no run can have stored, if there is something.
    pub(super) fn contradiction(&self) -> Option<String> {
        if let Err(error) = self.guard.check() {
            return Some(error.to_string());
        }
        let capacity = match self.guard {
            Guard::ZClip { .. } if self.average.is_some() => 0,
            Guard::ZClip { warmup_steps, .. } => warmup_steps - 1,
            Guard::SkipStep {
                rolling_interval_length,
                ..
            } => rolling_interval_length + 1,
            Guard::Outlier { window, .. } => window,
        };
        let lengths = [self.losses.values.len(), self.norms.values.len()];
        if let Some(length) = lengths.into_iter().find(|len| *len > capacity as usize) {
            return Some(format!(
                "its guard has {length} values, and at most {capacity}"
            ));
        }
        let values = self.losses.values.iter().chain(&self.norms.values);
        let averages = self.average.iter().flat_map(|a| [a.mean, a.var]);
        let broken = values.copied().chain(averages).any(|n| !n.is_finite());
        let negative = self.average.is_some_and(|average| average.var < 0.0);
        (!self.guard.is_original() && (broken || negative))
            .then(|| "its guard has values that are not finite, or a negative variance".to_string())
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Loss,
    Norm,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Norm => "gradient norm",
        }
    }
}

/// What was usual, where a value is not.
struct Usual {
    mean: f64,
    std: f64,
}

impl Usual {
    fn reason(&self, kind: Kind, value: f64) -> String {
        format!(
            "the {} is {}, where {} +- {} is usual",
            kind.name(),
            rounded(value),
            rounded(self.mean),
            rounded(self.std)
        )
    }
}

impl Series {
    /// The rules that reject steps: takes a value in. Why its step is rejected, if it is.
    fn reject(&mut self, guard: &Guard, kind: Kind, mut value: f64) -> Option<String> {
        let usual = match *guard {
            Guard::ZClip { .. } => return None,
            Guard::SkipStep {
                rolling_interval_length,
                sigma_factor,
                original,
            } => {
                // As there, in f32, so that the mean of equal values is their value.
                let rounded = value as f32;
                value = f64::from(match original {
                    true => rounded,
                    // A finite value stays finite.
                    false => rounded.clamp(f32::MIN, f32::MAX),
                });
                let length = rolling_interval_length as usize;
                self.exceeds(value, length, sigma_factor, original)?
            }
            Guard::Outlier {
                window,
                skip_update_lossz,
                skip_update_gradz,
                original,
            } => {
                let threshold = match kind {
                    Kind::Loss => skip_update_lossz,
                    Kind::Norm => skip_update_gradz,
                };
                self.is_outlier(value, window, threshold, original)?
            }
        };
        Some(usual.reason(kind, value))
    }

    /// OLMo-core's rule: takes a value in; what was usual before, if the value exceeds it.
    fn exceeds(
        &mut self,
        value: f64,
        length: usize,
        sigma_factor: f64,
        original: bool,
    ) -> Option<Usual> {
        self.values.push_back(value);
        if self.values.len() > length + 1 {
            self.values.pop_front();
        }
        // One value has no standard deviation: the original takes no step then.
        let least = if original { 2 } else { 3 };
        if self.values.len() < least.max(length / 2) {
            return None;
        }
        let usual = self.before();
        let Usual { mean, std } = usual;
        if value - mean <= sigma_factor * std || (!original && std == 0.0) {
            return None;
        }
        if !original {
            self.limit_newest(mean + sigma_factor * std);
        }
        Some(usual)
    }

    /// llm.c's rule: takes a value in; what the others of the window are, if it is far from them.
    fn is_outlier(
        &mut self,
        value: f64,
        window: u32,
        threshold: f64,
        original: bool,
    ) -> Option<Usual> {
        let z = self.z_score(value, window, original);
        if !(z.is_finite() && threshold != 0.0 && z > threshold) {
            return None;
        }
        // Of the others: a value with this z-score is so many of their standard deviations above their mean.
        let usual = self.before();
        if !original {
            if usual.std == 0.0 {
                return None;
            }
            let count = f64::from(window);
            let far = threshold * (count / (count - 1.0 - threshold * threshold)).sqrt();
            let std = usual.std * ((count - 2.0) / (count - 1.0)).sqrt();
            self.limit_newest(usual.mean + far * std);
        }
        Some(usual)
    }

    /// The z-score of a value in the window that it enters, NaN until that is full.
    fn z_score(&mut self, value: f64, window: u32, original: bool) -> f64 {
        let was_full = self.values.len() == window as usize;
        let oldest = self.values.pop_front_if(|_| was_full);
        self.values.push_back(value);
        if original {
            if let Some(oldest) = oldest {
                self.sum -= oldest;
                self.sum_sq -= oldest * oldest;
            }
            self.sum += value;
            self.sum_sq += value * value;
        }
        if !was_full {
            return f64::NAN;
        }
        let (mean, var) = match original {
            true => {
                let mean = self.sum / f64::from(window);
                (mean, self.sum_sq / f64::from(window) - mean * mean)
            }
            false => mean_and_variance(self.values.iter().copied()),
        };
        let std = var.sqrt();
        let z = match std == 0.0 {
            true => 0.0,
            false => (value - mean) / std,
        };
        // It is an f32 there.
        f64::from(z as f32)
    }

    /// Mean and unbiased standard deviation of all but the newest.
    fn before(&self) -> Usual {
        let count = self.values.len() - 1;
        let (mean, var) = mean_and_variance(self.values.iter().copied().take(count));
        let std = (var * count as f64 / (count as f64 - 1.0)).sqrt();
        Usual { mean, std }
    }

    /// Keeps no more of the newest value than would have been accepted: spikes do not hide the next ones, and a new level is accepted
    /// in the end.
    fn limit_newest(&mut self, limit: f64) {
        if let Some(newest) = self.values.back_mut() {
            *newest = limit;
        }
    }
}

/// For the log: as many digits as one wants to read.
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

#[cfg(test)]
#[path = "../../tests/units/guard_parity.rs"]
mod parity;
