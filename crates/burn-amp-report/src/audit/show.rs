//! The figures that an audit shows.

use burn::tensor::{DType, Device, Tensor};
use burn_amp::AmpError;
use burn_amp_kernels::{ExponentHistogram, TensorList, TensorStatus, histogram};
use std::collections::HashMap;

use super::{
    Audit, Compared, DUMPED, Dump, Format, Layer, Parameter, Passed, Reproduction, Run, Verdict,
    compare::{Figures, Side, compare, finite_norm, measure},
    reference::{LOST, OFF, Reference},
    trace::Visit,
};

/// Takes a tensor of a visit: what passed, or its gradient.
pub(super) type Of = fn(&Visit) -> Option<&Tensor<1>>;

pub(super) fn value(visit: &Visit) -> Option<&Tensor<1>> {
    visit.value.as_ref()
}

pub(super) fn gradient(visit: &Visit) -> Option<&Tensor<1>> {
    visit.gradient.as_ref()
}

/// What passed the probes of a run, against the same in f32: with the number of the visit.
pub(super) fn passed(
    reference: &Reference,
    run: &Compared,
    of: Of,
    is_gradient: bool,
) -> Result<Vec<(usize, Figures)>, AmpError> {
    let pairs = reference.trial.visits.iter().zip(&run.trial.visits);
    let found = pairs.enumerate().filter_map(|(index, (expected, visit))| {
        let is_same = expected.name == visit.name && expected.shape == visit.shape;
        let (expected, values) = (of(expected)?, of(visit)?);
        is_same.then_some((index, expected, visit, values))
    });
    let found: Vec<_> = found.collect();
    let sides: Vec<_> = (found.iter())
        .map(|(_, _, visit, values)| Side {
            values,
            scale: if is_gradient { visit.scale } else { 1.0 },
            half: matches!(visit.dtype, DType::F16 | DType::BF16).then(|| visit.dtype.into()),
        })
        .collect();
    let statuses = measure(found.iter().map(|(_, expected, ..)| *expected))?;
    let references: Vec<_> = (found.iter().zip(statuses))
        .map(|((_, expected, ..), status)| (*expected, status))
        .collect();
    let figures = compare(&sides, &references)?;
    let indices = found.into_iter().map(|(index, ..)| index);
    Ok(indices.zip(figures).collect())
}

/// What all runs have shown at the probes.
pub(super) fn layers(reference: &Reference, runs: &[Compared]) -> Result<Vec<Layer>, AmpError> {
    let visits = &reference.trial.visits;
    let shown = |of: Of, is_gradient: bool| -> Result<Vec<Option<Passed>>, AmpError> {
        let mut statuses = measure(visits.iter().filter_map(of))?.into_iter();
        let mut shown: Vec<_> = (visits.iter())
            .map(|visit| {
                let status = of(visit).and_then(|_| statuses.next())?;
                Some(Passed {
                    norm: finite_norm(&status),
                    max_abs: status.max_abs,
                    figures: Vec::new(),
                })
            })
            .collect();
        for run in runs {
            let found = passed(reference, run, of, is_gradient)?;
            let mut found: HashMap<usize, Figures> = found.into_iter().collect();
            for (index, passed) in shown.iter_mut().enumerate() {
                if let Some(passed) = passed {
                    passed
                        .figures
                        .push(found.remove(&index).unwrap_or_default());
                }
            }
        }
        Ok(shown)
    };
    let gradients = shown(gradient, true)?;
    let pairs = shown(value, false)?.into_iter().zip(gradients);
    let now = &runs[1].trial.visits;
    let layer = |(index, (value, gradient)): (usize, (Option<Passed>, Option<Passed>))| {
        Some(Layer {
            name: visits[index].name.clone(),
            dtype: now
                .get(index)
                .map_or("?".to_string(), |visit| dtype_name(visit.dtype)),
            value: value?,
            gradient,
        })
    };
    Ok(pairs.enumerate().filter_map(layer).collect())
}

pub(super) fn dtype_name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

/// Values of the gradients that are off: of the worst parameters, and around the probe where it begins on the way back.
pub(super) fn reproduction(
    reference: &Reference,
    run: &Compared,
    device: &str,
) -> Result<Reproduction, AmpError> {
    let mut tensors = Vec::new();
    for index in reference.off(run, None).into_iter().take(3) {
        let (found, expected) = (
            &run.trial.gradients[index],
            &reference.trial.gradients[index],
        );
        tensors.push(Dump::new(
            format!("gradient of parameter {}", found.path),
            DType::F32,
            vec![reference.statuses[index].elements as usize],
            (&found.values, 1.0),
            &expected.values,
        ));
    }
    let found = passed(reference, run, gradient, true)?;
    let is_off =
        |figures: &Figures| figures.error.is_some_and(|error| error > OFF) || figures.lost > LOST;
    let first = found.iter().rev().find(|(_, figures)| is_off(figures));
    if let Some((first, _)) = first {
        for index in [*first, first + 1] {
            let visits = reference
                .trial
                .visits
                .get(index)
                .zip(run.trial.visits.get(index));
            let Some((expected, visit)) = visits else {
                continue;
            };
            for (what, of, scale) in [
                ("value", value as Of, 1.0),
                ("gradient", gradient as Of, visit.scale),
            ] {
                if let (Some(expected), Some(values)) = (of(expected), of(visit)) {
                    let name = format!("{what} at probe {}", visit.name);
                    let shape = visit.shape.clone();
                    tensors.push(Dump::new(
                        name,
                        visit.dtype,
                        shape,
                        (values, scale),
                        expected,
                    ));
                }
            }
        }
    }
    Ok(Reproduction {
        device: device.to_string(),
        loss_scale: run.trial.loss_scale,
        tensors,
    })
}

impl Dump {
    fn new(
        name: String,
        dtype: DType,
        shape: Vec<usize>,
        (values, scale): (&Tensor<1>, f64),
        expected: &Tensor<1>,
    ) -> Self {
        let read = |tensor: &Tensor<1>, scale: f64| {
            let count = tensor.dims()[0].min(DUMPED);
            let data = tensor.clone().slice(0..count).into_data();
            let value = |value: f64| (value.is_finite()).then_some((value / scale) as f32);
            data.iter::<f64>().map(value).collect()
        };
        Self {
            name,
            dtype: dtype_name(dtype),
            shape,
            values: read(values, scale),
            in_f32: read(expected, 1.0),
        }
    }
}

impl Audit {
    pub(super) fn judged(&mut self, verdict: Verdict) {
        self.advice = match self.note {
            Some(note) => format!("{verdict} {note}"),
            None => verdict.to_string(),
        };
        self.verdict = verdict;
    }

    /// Keeps the figures.
    pub(super) fn show(
        &mut self,
        reference: &Reference,
        runs: &[Compared],
        layers: Vec<Layer>,
        present: f64,
    ) -> Result<(), AmpError> {
        let next = |index: usize| (index < 2).then(|| &runs[index + 1]);
        self.runs
            .extend(runs.iter().enumerate().map(|(index, run)| Run {
                name: run.trial.name(),
                loss_scale: run.trial.loss_scale,
                loss: run.trial.loss,
                is_right: reference.is_right(run, next(index)),
            }));
        let read = &runs[1].trial.read;
        self.parameters = (reference
            .trial
            .gradients
            .iter()
            .zip(&reference.statuses)
            .enumerate())
        .map(|(index, (gradient, status))| Parameter {
            path: gradient.path.clone(),
            elements: status.elements,
            norm: finite_norm(status),
            max_abs: status.max_abs,
            zeros: status.zeros,
            is_half: read.contains(&gradient.path),
            figures: runs.iter().map(|run| run.figures[index]).collect(),
        })
        .collect();
        self.layers = layers;
        let counts = count(reference, |_| present)?;
        self.exponents = counts.iter().collect();
        self.formats = formats(reference, runs)?;
        Ok(())
    }
}

/// Gradients in f32 by exponent, each times a factor.
pub(super) fn count(
    reference: &Reference,
    factor: impl Fn(&TensorStatus) -> f64,
) -> Result<ExponentHistogram, AmpError> {
    let mut lists: Vec<(Device, TensorList)> = Vec::new();
    for (gradient, status) in reference.trial.gradients.iter().zip(&reference.statuses) {
        let device = gradient.values.device();
        if !lists.iter().any(|(other, _)| *other == device) {
            lists.push((device.clone(), TensorList::new()));
        }
        let scaled = gradient.values.clone().mul_scalar(factor(status));
        if let Some((_, list)) = lists.iter_mut().find(|(other, _)| *other == device) {
            list.push(scaled);
        }
    }
    let mut counts = ExponentHistogram::default();
    for (_, list) in lists {
        counts = counts + histogram(list)?.read();
    }
    Ok(counts)
}

/// What narrower formats lose: bf16 was tried; the others are counted, each parameter with a scale of its own that brings its largest
/// gradient to the top.
pub(super) fn formats(reference: &Reference, runs: &[Compared]) -> Result<Vec<Format>, AmpError> {
    let values: u64 = reference
        .statuses
        .iter()
        .map(|status| status.elements - status.zeros)
        .sum();
    let share = |lost: f64| lost / values.max(1) as f64;
    let lost = |run: &Compared| {
        let of = |(figures, status): (&Figures, &TensorStatus)| {
            figures.lost * (status.elements - status.zeros) as f64
        };
        share(run.figures.iter().zip(&reference.statuses).map(of).sum())
    };
    let measured = |name, run: &Compared| Format {
        name,
        lost: lost(run),
        is_measured: true,
    };
    let mut formats = vec![measured("f16", &runs[1])];
    formats.extend(runs.get(3).map(|run| measured("bf16", run)));
    // The largest has exponent 15, as 57344 has, the largest of E5M2.
    let to_top = |status: &TensorStatus| match status.max_abs > 0.0 {
        true => 2f64.powi((15 - status.max_abs.log2().floor() as i32).clamp(-120, 120)),
        false => 1.0,
    };
    let counts = count(reference, to_top)?;
    // E5M2 reaches down to 2^-16. E4M3 reaches from 2^8, that of 448, to 2^-9: 17 binades.
    for (name, lowest) in [("f8 E5M2", -16), ("f8 E4M3", 15 - 17)] {
        formats.push(Format {
            name,
            lost: share(counts.below_exponent(lowest) as f64),
            is_measured: false,
        });
    }
    Ok(formats)
}
