//! What a guard knows of the steps so far: a pure value, and what a step tells it.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use super::Guard;
use crate::{error::AmpError, loss_scale::StepOutcome};

/// What `clip_grad_norm_` adds to a norm, and ZClip too.
const CLIP_EPSILON: f64 = 1e-6;

/// The statistics of a guard. [`adjust`](Self::adjust) is a deterministic function, without tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GuardState {
    guard: Guard,
    losses: Series,
    norms: Series,
    /// ZClip's, once its warm-up is over.
    average: Option<Average>,
}

/// The last values, the newest at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    #[serde(with = "crate::number::list")]
    values: VecDeque<f64>,
    /// Running sums of the values and of their squares: llm.c's, where its arithmetic is asked for.
    #[serde(with = "crate::number")]
    sum: f64,
    #[serde(with = "crate::number")]
    sum_sq: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Average {
    #[serde(with = "crate::number")]
    mean: f64,
    #[serde(with = "crate::number")]
    var: f64,
}

/// What becomes of a clean step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// It is taken as it is.
    Step,
    /// Its gradients are multiplied by a factor.
    Clip { factor: f64, reason: String },
    /// It is not taken.
    Hold { reason: String, is_finite: bool },
}

impl Decision {
    pub(crate) fn factor(&self) -> f64 {
        match self {
            Self::Step => 1.0,
            Self::Clip { factor, .. } => *factor,
            Self::Hold { .. } => 0.0,
        }
    }
}

impl GuardState {
    pub(crate) fn new(guard: Guard) -> Result<Self, AmpError> {
        guard.check()?;
        Ok(Self {
            guard,
            losses: Series::default(),
            norms: Series::default(),
            average: None,
        })
    }

    /// The state after a clean step with this loss (none if it is not known) and this norm of the gradients, and what is to
    /// become of the step.
    pub(crate) fn adjust(mut self, loss: Option<f64>, norm: f64) -> (Self, Decision) {
        if !self.guard.is_original()
            && let Some((what, value)) = not_finite(loss, norm)
        {
            let reason = format!("the {what} is {value}");
            let is_finite = false;
            return (self, Decision::Hold { reason, is_finite });
        }
        let decision = match self.guard {
            Guard::ZClip { .. } => self.clip(norm),
            Guard::SkipStep { .. } => {
                let loss = loss.and_then(|loss| self.exceeds(Kind::Loss, loss));
                let norm = self.exceeds(Kind::Norm, norm);
                loss.or(norm).unwrap_or(Decision::Step)
            }
            Guard::Outlier { .. } => {
                let loss = loss.and_then(|loss| self.is_outlier(Kind::Loss, loss));
                let norm = self.is_outlier(Kind::Norm, norm);
                loss.or(norm).unwrap_or(Decision::Step)
            }
        };
        (self, decision)
    }

    fn clip(&mut self, norm: f64) -> Decision {
        let usual = self.average;
        let limit = self.limit(norm);
        let (Some(limit), Some(usual)) = (limit.filter(|limit| norm > *limit), usual) else {
            return Decision::Step;
        };
        let factor = limit / (norm + CLIP_EPSILON);
        let reason = format!(
            "the gradient norm is {}, where {} +- {} is usual",
            rounded(norm),
            rounded(usual.mean),
            rounded(usual.var.sqrt())
        );
        match factor > 0.0 {
            true => Decision::Clip { factor, reason },
            false => Decision::Hold {
                reason,
                is_finite: norm.is_finite(),
            },
        }
    }

    /// ZClip: the limit of an outlier. Takes the norm into the averages.
    fn limit(&mut self, norm: f64) -> Option<f64> {
        let Guard::ZClip {
            alpha,
            z_thresh,
            eps,
            warmup_steps,
            falloff,
            clip_factor,
            skip_update_on_spike,
            ..
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
        let z = (norm - *mean) / (std + eps);
        let limit = (z > z_thresh)
            .then(|| (*mean + z_thresh * std * (z_thresh / z).powf(falloff)) * clip_factor);
        if limit.is_none() || !skip_update_on_spike {
            let seen = limit.unwrap_or(norm);
            *mean = alpha * *mean + (1.0 - alpha) * seen;
            *var = alpha * *var + (1.0 - alpha) * (seen - *mean).powi(2);
        }
        limit
    }

    /// OLMo-core's rule for one series, which takes the value in.
    fn exceeds(&mut self, kind: Kind, value: f64) -> Option<Decision> {
        let Guard::SkipStep {
            rolling_interval_length,
            sigma_factor,
            original,
        } = self.guard
        else {
            return None;
        };
        let length = rolling_interval_length as usize;
        // As there, in f32, so that the mean of equal values is their value.
        let value = f64::from(value as f32);
        let values = &mut self.series(kind).values;
        values.push_back(value);
        if values.len() > length + 1 {
            values.pop_front();
        }
        // One value has no standard deviation: the original takes no step then.
        let least = if original { 2 } else { 3 };
        if values.len() < least.max(length / 2) {
            return None;
        }
        let (mean, std) = self.before(kind);
        let accepted = value - mean <= sigma_factor * std || (!original && std == 0.0);
        if !accepted && !original {
            self.limit_newest(kind, mean + sigma_factor * std);
        }
        (!accepted).then(|| hold(kind, value, mean, std))
    }

    /// Keeps no more of the newest value than would have been accepted: spikes do not hide the next ones, and a new level is accepted
    /// in the end.
    fn limit_newest(&mut self, kind: Kind, limit: f64) {
        if let Some(newest) = self.series(kind).values.back_mut() {
            *newest = limit;
        }
    }

    /// Mean and unbiased standard deviation of all but the newest.
    fn before(&mut self, kind: Kind) -> (f64, f64) {
        let values = &self.series(kind).values;
        let count = values.len() - 1;
        let (mean, var) = mean_and_variance(values.iter().copied().take(count));
        (mean, (var * count as f64 / (count as f64 - 1.0)).sqrt())
    }

    /// llm.c's rule for one series.
    fn is_outlier(&mut self, kind: Kind, value: f64) -> Option<Decision> {
        let Guard::Outlier {
            window,
            skip_update_lossz,
            skip_update_gradz,
            original,
        } = self.guard
        else {
            return None;
        };
        let threshold = match kind {
            Kind::Loss => skip_update_lossz,
            Kind::Norm => skip_update_gradz,
        };
        let z = self.z_score(kind, value);
        if !(z.is_finite() && threshold != 0.0 && z > threshold) {
            return None;
        }
        // Of the others: a value with this z-score is so many of their standard deviations above their mean.
        let (mean, std) = self.before(kind);
        if !original {
            if std == 0.0 {
                return None;
            }
            let count = f64::from(window);
            let far = threshold * (count / (count - 1.0 - threshold * threshold)).sqrt();
            let std = std * ((count - 2.0) / (count - 1.0)).sqrt();
            self.limit_newest(kind, mean + far * std);
        }
        Some(hold(kind, value, mean, std))
    }

    /// The z-score of a value in the window that it enters, NaN until that is full.
    fn z_score(&mut self, kind: Kind, value: f64) -> f64 {
        let Guard::Outlier {
            window, original, ..
        } = self.guard
        else {
            return f64::NAN;
        };
        let series = self.series(kind);
        let was_full = series.values.len() == window as usize;
        let oldest = series.values.pop_front_if(|_| was_full);
        series.values.push_back(value);
        if original {
            if let Some(oldest) = oldest {
                series.sum -= oldest;
                series.sum_sq -= oldest * oldest;
            }
            series.sum += value;
            series.sum_sq += value * value;
        }
        if !was_full {
            return f64::NAN;
        }
        let (mean, var) = match original {
            true => {
                let mean = series.sum / f64::from(window);
                (mean, series.sum_sq / f64::from(window) - mean * mean)
            }
            false => mean_and_variance(series.values.iter().copied()),
        };
        let std = var.sqrt();
        let z = match std == 0.0 {
            true => 0.0,
            false => (value - mean) / std,
        };
        // It is an f32 there.
        f64::from(z as f32)
    }

    fn series(&mut self, kind: Kind) -> &mut Series {
        match kind {
            Kind::Loss => &mut self.losses,
            Kind::Norm => &mut self.norms,
        }
    }

    /// What no run can have stored, if there is something.
    fn contradiction(&self) -> Option<String> {
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
        let series = [&self.losses, &self.norms];
        let averages = self.average.iter().flat_map(|a| [a.mean, a.var]);
        let mut numbers = series.iter().flat_map(|s| s.values.iter().copied());
        let broken = numbers.any(|n| !n.is_finite()) || averages.clone().any(|n| !n.is_finite());
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

fn not_finite(loss: Option<f64>, norm: f64) -> Option<(&'static str, f64)> {
    let loss = loss.map(|loss| (Kind::Loss.name(), loss));
    let values = loss.into_iter().chain([(Kind::Norm.name(), norm)]);
    values.into_iter().find(|(_, value)| !value.is_finite())
}

fn hold(kind: Kind, value: f64, mean: f64, std: f64) -> Decision {
    Decision::Hold {
        reason: format!(
            "the {} is {}, where {} +- {} is usual",
            kind.name(),
            rounded(value),
            rounded(mean),
            rounded(std)
        ),
        is_finite: value.is_finite(),
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

/// A guard in an optimizer: its state, and the losses of the step to come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StepGuard {
    state: GuardState,
    /// The losses of the micro-batches in an open window.
    #[serde(with = "crate::number")]
    sum: f64,
    count: u32,
    /// That of the next call.
    #[serde(skip)]
    next: Option<f64>,
}

impl StepGuard {
    pub(crate) fn new(guard: Guard) -> Result<Self, AmpError> {
        Ok(Self {
            state: GuardState::new(guard)?,
            sum: 0.0,
            count: 0,
            next: None,
        })
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.state.guard
    }

    pub(crate) fn set_loss(&mut self, loss: f64) {
        self.next = Some(loss);
    }

    /// What becomes of a clean step whose gradients have this norm, and the guard after it.
    pub(crate) fn judge(&self, norm: f64) -> (Self, Decision) {
        let count = self.count + u32::from(self.next.is_some());
        let sum = self.sum + self.next.unwrap_or(0.0);
        let loss = (count > 0).then(|| sum / f64::from(count));
        let (state, decision) = self.state.clone().adjust(loss, norm);
        let next = Self {
            state,
            ..self.clone()
        };
        (next, decision)
    }

    /// A call has ended: its loss goes into the window, as its gradients, or is done with.
    pub(crate) fn end_call(&mut self, outcome: Option<StepOutcome>) {
        match outcome {
            // Refused: it may be called again.
            None => return,
            Some(StepOutcome::Accumulated) => {
                self.count = self.count.saturating_add(u32::from(self.next.is_some()));
                self.sum += self.next.unwrap_or(0.0);
            }
            Some(StepOutcome::Dropped) => {}
            Some(_) => self.drop_window(),
        }
        self.next = None;
    }

    pub(crate) fn drop_window(&mut self) {
        (self.sum, self.count) = (0.0, 0);
    }

    /// Starts again.
    pub(crate) fn reset(&mut self) {
        let guard = *self.guard();
        *self = Self::new(guard).unwrap_or_else(|_| self.clone());
    }

    /// Goes on from a stored state, unless it is that of another guard.
    pub(crate) fn restore(&mut self, stored: Option<Self>, origin: &str) {
        self.reset();
        match stored {
            Some(stored) if stored.guard() == self.guard() => *self = stored,
            Some(_) => log::warn!("{origin} holds the state of another guard: it starts again"),
            None => log::warn!("{origin} holds no state of a guard: it starts again"),
        }
    }

    /// What no run can have stored, if there is something.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let reason = "its guard has a sum of no losses".to_string();
        let broken = (self.count == 0 && self.sum != 0.0) || self.count > u32::MAX / 2;
        self.state
            .contradiction()
            .or_else(|| broken.then_some(reason))
    }
}

#[cfg(test)]
mod parity;
