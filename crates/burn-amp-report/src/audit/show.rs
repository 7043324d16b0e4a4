//! The figures that an audit shows.

use burn::tensor::{DType, Tensor};
use burn_amp_core::{AmpError, internal::observe};
use burn_amp_kernels::{ExponentHistogram, TensorStatus};
use std::collections::BTreeMap;

use super::compare::{Figures, Pair, compare, finite_norm};
use super::reference::{LOST, OFF, Reference};
use super::{
    Audit, Compared, DUMPED, Dump, Format, Layer, Parameter, Passed, Reproduction, Run,
    trace::Visit,
};
use crate::place::{by_exponent, dtype_name};

/// Takes a tensor of a visit, what passed or its gradient, and what it is multiplied by.
pub(super) type Of = fn(&Visit) -> Option<(&Tensor<1>, f64)>;

pub(super) fn value(visit: &Visit) -> Option<(&Tensor<1>, f64)> {
    Some((visit.value.as_ref()?, 1.0))
}

pub(super) fn gradient(visit: &Visit) -> Option<(&Tensor<1>, f64)> {
    Some((visit.gradient.as_ref()?, visit.scale))
}

/// The tensors that passed the probes of a run, against the same in f32, by the number of the visit.
pub(super) fn passed(
    reference: &Reference,
    run: &Compared,
    of: Of,
) -> Result<BTreeMap<usize, Figures>, AmpError> {
    let pairs = reference.trial.visits.iter().zip(&run.trial.visits);
    let found = pairs.enumerate().filter_map(|(index, (expected, visit))| {
        let is_same = expected.name == visit.name && expected.shape == visit.shape;
        let ((expected, _), (values, scale)) = (of(expected)?, of(visit)?);
        let half = observe::is_half(visit.dtype).then(|| visit.dtype.into());
        let pair = Pair {
            values,
            scale,
            half,
            expected,
        };
        is_same.then_some((index, pair))
    });
    let (indices, pairs): (Vec<_>, Vec<_>) = found.unzip();
    let statuses = observe::measure(pairs.iter().map(|pair| pair.expected))?;
    let figures = compare(&pairs, &statuses)?;
    Ok(indices.into_iter().zip(figures).collect())
}

/// The figures of all runs at the probes.
pub(super) fn layers(reference: &Reference, runs: &[Compared]) -> Result<Vec<Layer>, AmpError> {
    let visits = &reference.trial.visits;
    let shown = |of: Of| -> Result<Vec<Option<Passed>>, AmpError> {
        let tensors = visits.iter().filter_map(|visit| Some(of(visit)?.0));
        let mut statuses = observe::measure(tensors)?.into_iter();
        let found = runs.iter().map(|run| passed(reference, run, of));
        let found: Vec<_> = found.collect::<Result<_, _>>()?;
        let passed = |(index, visit): (usize, &Visit)| {
            let status = of(visit).and_then(|_| statuses.next())?;
            let figures = found.iter().map(|run| run.get(&index).copied());
            Some(Passed {
                norm: finite_norm(&status),
                max_abs: status.max_abs,
                figures: figures.map(Option::unwrap_or_default).collect(),
            })
        };
        Ok(visits.iter().enumerate().map(passed).collect())
    };
    let found = shown(value)?.into_iter().zip(shown(gradient)?);
    let now = &runs[1].trial.visits;
    let layer = |(index, (value, gradient)): (usize, (Option<Passed>, Option<Passed>))| {
        let visit = now.get(index);
        if visits[index].is_output {
            return None;
        }
        Some(Layer {
            name: visits[index].name.clone(),
            dtype: visit.map_or("?".to_string(), |visit| dtype_name(visit.dtype)),
            value: value?,
            gradient,
        })
    };
    Ok(found.enumerate().filter_map(layer).collect())
}

/// Values of the gradients that are off: of the worst parameters, and around the probe where it begins on the way back.
pub(super) fn reproduction(
    reference: &Reference,
    run: &Compared,
    device: &str,
) -> Result<Reproduction, AmpError> {
    let mut tensors = Vec::new();
    for index in reference.off(run, None).into_iter().take(3) {
        let found = &run.trial.gradients[index];
        let name = format!("gradient of parameter {}", found.path);
        let shape = vec![reference.statuses[index].elements as usize];
        let expected = &reference.trial.gradients[index].values;
        let values = (&found.values, 1.0);
        tensors.push(Dump::new(name, DType::F32, shape, values, expected));
    }
    let found = passed(reference, run, gradient)?;
    let is_off =
        |figures: &Figures| figures.error.is_some_and(|error| error > OFF) || figures.lost > LOST;
    let first = found.iter().rev().find(|(_, figures)| is_off(figures));
    let visits = reference.trial.visits.iter().zip(&run.trial.visits);
    // There may be no other behind it.
    let first = first.map_or(usize::MAX, |(first, _)| *first);
    for (expected, visit) in visits.skip(first).take(2) {
        for (what, of) in [("value", value as Of), ("gradient", gradient)] {
            if let (Some((expected, _)), Some(values)) = (of(expected), of(visit)) {
                let name = format!("{what} at probe {}", visit.name);
                let (dtype, shape) = (visit.dtype, visit.shape.clone());
                tensors.push(Dump::new(name, dtype, shape, values, expected));
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
    /// Keeps the figures.
    pub(super) fn show(
        &mut self,
        reference: &Reference,
        runs: &[Compared],
    ) -> Result<(), AmpError> {
        let next = |index: usize| (index < 2).then(|| &runs[index + 1]);
        let shown = runs.iter().enumerate().map(|(index, run)| Run {
            name: run.trial.name(),
            loss_scale: run.trial.loss_scale,
            loss: run.trial.loss,
            is_right: reference.is_right(run, next(index)),
        });
        self.runs.extend(shown);
        let read = &runs[1].trial.read;
        let found = reference.trial.gradients.iter().zip(&reference.statuses);
        let parameters = found
            .enumerate()
            .map(|(index, (gradient, status))| Parameter {
                path: gradient.path.clone(),
                elements: status.elements,
                norm: finite_norm(status),
                max_abs: status.max_abs,
                zeros: status.zeros,
                is_half: read.contains(&gradient.path),
                figures: runs.iter().map(|run| run.figures[index]).collect(),
            });
        self.parameters = parameters.collect();
        self.layers = layers(reference, runs)?;
        self.exponents = by_exponent(&count(reference, |_| self.loss_scale)?);
        self.formats = formats(reference, runs)?;
        Ok(())
    }
}

/// Gradients in f32 by exponent, each times a factor.
pub(super) fn count(
    reference: &Reference,
    factor: impl Fn(&TensorStatus) -> f64,
) -> Result<ExponentHistogram, AmpError> {
    let found = reference.trial.gradients.iter().zip(&reference.statuses);
    let scaled = found.map(|(found, status)| found.values.clone().mul_scalar(factor(status)));
    observe::count(scaled)
}

/// Counts what narrow formats lose: those of 16 bits were tried; the others are counted, each parameter with a scale of its own that brings its largest
/// gradient to the top.
pub(super) fn formats(reference: &Reference, runs: &[Compared]) -> Result<Vec<Format>, AmpError> {
    let statuses = &reference.statuses;
    let nonzero = |status: &TensorStatus| status.elements - status.zeros;
    let values: u64 = statuses.iter().map(nonzero).sum();
    let share = |lost: f64| lost / values.max(1) as f64;
    let measured = |run: &Compared| {
        let found = run.figures.iter().zip(statuses);
        let lost = found.map(|(figures, status)| figures.lost * nonzero(status) as f64);
        Format {
            name: dtype_name(run.trial.dtype.into()),
            lost: share(lost.sum()),
            is_measured: true,
        }
    };
    let mut formats = vec![measured(&runs[1])];
    formats.extend(runs.get(3).map(measured));
    // The largest has exponent 15, as 57344 has, the largest of E5M2.
    let to_top = |status: &TensorStatus| match status.max_abs > 0.0 {
        true => 2f64.powi((15 - status.max_abs.log2().floor() as i32).clamp(-120, 120)),
        false => 1.0,
    };
    let counts = count(reference, to_top)?;
    // E5M2 reaches down to 2^-16. E4M3 reaches from 2^8, that of 448, to 2^-9: 17 binades.
    for (name, lowest) in [("f8 E5M2", -16), ("f8 E4M3", 15 - 17)] {
        formats.push(Format {
            name: name.to_string(),
            lost: share(counts.below_exponent(lowest) as f64),
            is_measured: false,
        });
    }
    Ok(formats)
}
