//! The run in f32, and when another one is off.

use burn::tensor::FloatDType;
use burn_amp_core::{AmpError, internal::observe};
use burn_amp_kernels::TensorStatus;
use std::{cmp::Ordering, collections::HashMap};

use super::compare::{Figures, Pair, compare, headroom, rms};
use super::{Compared, Trial};

/// The share of lost values from which on a gradient is said to underflow.
pub(super) const LOST: f64 = 0.25;
/// The relative difference from which on a gradient is off. A cosine of 0.87, or a norm that is half as large again.
pub(super) const OFF: f64 = 0.5;
/// The share of all gradients' root mean square below which a gradient is rounding, unless it moves with the scale: the exact gradient of an
/// attention's key bias is zero.
const NOISE: f64 = 0.02;
/// And this is rounding in f32.
const NOISE_IN_F32: f64 = 3e-7;
/// Binades that the advised scale stays below overflow, as that of `calibrate`.
const HEADROOM: f64 = 3.0;

/// The run in f32, measured.
pub(super) struct Reference {
    pub(super) trial: Trial,
    pub(super) statuses: Vec<TensorStatus>,
    /// The root mean square over all gradients.
    pub(super) rms: f64,
    /// The errors of another run in f32, with other random numbers.
    pub(super) noise: Noise,
}

/// The errors of a run in f32 that differ only by dropout and the like; zero where there is none.
#[derive(Default)]
pub(super) struct Noise {
    pub(super) loss: f64,
    pub(super) gradients: HashMap<usize, f64>,
    pub(super) values: HashMap<usize, f64>,
}

impl Noise {
    /// The difference from which on it means something.
    pub(super) fn limit(of: &HashMap<usize, f64>, index: usize) -> f64 {
        OFF.max(3.0 * of.get(&index).copied().unwrap_or(0.0))
    }
}

impl Reference {
    pub(super) fn new(trial: Trial) -> Result<Self, AmpError> {
        let statuses = observe::measure(trial.gradients.iter().map(|gradient| &gradient.values))?;
        let squares: f64 = statuses.iter().map(|status| status.norm.powi(2)).sum();
        let elements: u64 = statuses.iter().map(|status| status.elements).sum();
        Ok(Self {
            trial,
            statuses,
            rms: (squares / elements.max(1) as f64).sqrt(),
            noise: Noise::default(),
        })
    }

    pub(super) fn is_finite(&self) -> bool {
        self.trial.loss.is_finite() && self.statuses.iter().all(|status| status.non_finite == 0)
    }

    pub(super) fn compare(&self, mut trial: Trial) -> Result<Compared, AmpError> {
        // One that the loss reaches in f32 alone is zero.
        let found = std::mem::take(&mut trial.gradients).into_iter();
        let mut found: HashMap<_, _> = found.map(|found| (found.path, found.values)).collect();
        let gradients = self.trial.gradients.iter();
        trial.gradients = (gradients.clone())
            .map(|expected| observe::Flat {
                path: expected.path.clone(),
                values: (found.remove(&expected.path))
                    .unwrap_or_else(|| expected.values.zeros_like()),
            })
            .collect();
        let pairs = trial.gradients.iter().zip(gradients);
        let pairs = pairs.map(|(gradient, expected)| Pair {
            values: &gradient.values,
            scale: 1.0,
            half: None,
            expected: &expected.values,
        });
        let mut figures = compare(&pairs.collect::<Vec<_>>(), &self.statuses)?;
        let found = figures.iter_mut().zip(&trial.gradients).zip(&self.statuses);
        for ((figures, gradient), status) in found {
            if trial.dtype != FloatDType::F32 && trial.read.contains(&gradient.path) {
                // What is f32 outside was f16 inside, times the scale.
                figures.headroom = headroom(trial.dtype, status.max_abs * trial.loss_scale);
            }
        }
        Ok(Compared { trial, figures })
    }

    /// The scale that brings the largest gradient [`HEADROOM`] below overflow.
    pub(super) fn ideal_scale(&self) -> Option<f64> {
        let visits = self.trial.visits.iter();
        let at_probes = observe::measure(visits.filter_map(|visit| visit.gradient.as_ref()));
        let at_probes = at_probes.unwrap_or_default();
        let parameters = self.trial.gradients.iter().zip(&self.statuses);
        let inside = parameters.filter(|(gradient, _)| self.trial.read.contains(&gradient.path));
        let found = inside.map(|(_, status)| status).chain(&at_probes);
        let largest = found.fold(self.trial.max_abs, |max, status| max.max(status.max_abs));
        let exponent = 15.0 - HEADROOM - largest.log2().floor();
        (largest > 0.0).then(|| exponent.clamp(-24.0, 126.0).exp2())
    }

    /// Tells whether a gradient is off. `more` is the same at a higher scale.
    pub(super) fn is_off(&self, index: usize, figures: &Figures, more: Option<&Figures>) -> bool {
        let status = &self.statuses[index];
        if figures.non_finite > 0 {
            return true;
        }
        let Some(error) = figures.error else {
            return false;
        };
        let recovers = more.is_some_and(|more| {
            more.non_finite == 0
                && ((more.zeros as f64) < 0.9 * figures.zeros as f64
                    || more.error.is_some_and(|more| more < 0.5 * error))
        });
        let is_noise = rms(status) < NOISE_IN_F32 * self.rms;
        let is_lost = figures.lost > 0.99 || (figures.lost > LOST && recovers && !is_noise);
        let is_far = error > Noise::limit(&self.noise.gradients, index);
        is_lost || (is_far && (figures.error_rms > NOISE * self.rms || (recovers && !is_noise)))
    }

    /// The gradients that are off, the worst first.
    pub(super) fn off(&self, compared: &Compared, more: Option<&Compared>) -> Vec<usize> {
        let more = |index: usize| more.and_then(|more| more.figures.get(index));
        let mut off: Vec<_> = (0..self.statuses.len())
            .filter(|index| self.is_off(*index, &compared.figures[*index], more(*index)))
            .collect();
        let badness = |index: &usize| {
            let figures = &compared.figures[*index];
            let error = figures.error.unwrap_or(f64::INFINITY);
            [figures.non_finite as f64, figures.lost, error]
        };
        off.sort_by(|a, b| {
            badness(b)
                .partial_cmp(&badness(a))
                .unwrap_or(Ordering::Equal)
        });
        off
    }

    pub(super) fn is_right(&self, compared: &Compared, more: Option<&Compared>) -> bool {
        self.is_finite() && !self.is_forward_off(compared) && self.off(compared, more).is_empty()
    }

    /// Tells whether the loss is another one.
    pub(super) fn is_forward_off(&self, compared: &Compared) -> bool {
        let (loss, expected) = (compared.trial.loss, self.trial.loss);
        let limit = (0.25 * expected.abs().max(1e-6)).max(3.0 * self.noise.loss);
        !loss.is_finite() || (loss - expected).abs() > limit
    }

    pub(super) fn paths(&self, indices: &[usize]) -> Vec<String> {
        let gradients = &self.trial.gradients;
        (indices.iter().take(16))
            .map(|index| gradients[*index].path.clone())
            .collect()
    }
}
