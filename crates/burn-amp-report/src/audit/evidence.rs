//! Why no loss scale helps, and what tells range and rounding from a fault of the backend.

use burn::tensor::FloatDType;
use burn_amp_core::{AmpError, internal::observe::measure};

use super::compare::{Figures, Pair, compare, rms};
use super::reference::Reference;
use super::show::{passed, value};
use super::{Compared, Verdict};

/// The units in the last place from which on a value of the forward pass is another one. A healthy network is off by a few.
const LOST_DIGITS: f64 = 64.0;
/// The relative difference up to which gradients in both half precisions are the same.
const SAME: f64 = 0.25;

const AMPLIFIED: &str = "What leaves `autocast` is that of f32 but for rounding, and the loss amplifies it, as where nearly equal values are \
                         subtracted and divided by a small number: compute what the loss subtracts without `autocast`.";

/// The note on a run that is right as far as its gradients are.
const FORWARD_IS_OFF: &str = "The forward pass differs from that in f32 by more than its last digits, which no loss scale mends: see the loss and the probes.";

/// The places where the forward pass of a run is not that in f32.
#[derive(Default)]
struct Forward {
    /// Tells whether a probe, or what leaves `autocast`, is off.
    is_off: bool,
    /// The first probe that is, and the first with values that are infinite or NaN.
    off: Option<String>,
    infinite: Option<String>,
}

impl Forward {
    fn of(reference: &Reference, run: &Compared) -> Result<Self, AmpError> {
        let lost = lost_digits(run);
        let mut forward = Self::default();
        for (index, figures) in passed(reference, run, value)? {
            let noise = reference.noise.values.get(&index);
            let limit = lost.max(3.0 * noise.copied().unwrap_or(0.0));
            let is_infinite = figures.non_finite > 0;
            if !is_infinite && figures.error.is_none_or(|error| error <= limit) {
                continue;
            }
            forward.is_off = true;
            let visit = &run.trial.visits[index];
            let probe = (!visit.is_output).then(|| visit.name.clone());
            forward.infinite = (forward.infinite).or(probe.clone().filter(|_| is_infinite));
            forward.off = forward.off.or(probe);
        }
        Ok(forward)
    }

    /// The first probe at which it shows.
    fn begin(self, loss_is_finite: bool) -> Option<String> {
        match loss_is_finite {
            true => self.off,
            false => self.infinite,
        }
    }
}

/// The relative difference from which on a value is another one.
fn lost_digits(run: &Compared) -> f64 {
    let unit = match run.trial.dtype {
        FloatDType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-11),
    };
    LOST_DIGITS * unit
}

/// Tells whether the loss is another one, if only by digits that were lost.
fn is_loss_off(reference: &Reference, run: &Compared) -> bool {
    let (loss, expected) = (run.trial.loss, reference.trial.loss);
    let limit = lost_digits(run) * expected.abs().max(1e-6);
    !loss.is_finite() || (loss - expected).abs() > limit.max(3.0 * reference.noise.loss)
}

/// Remarks on a run whose gradients are right, or would be at another scale.
pub(super) fn of_forward(
    reference: &Reference,
    run: &Compared,
) -> Result<Option<&'static str>, AmpError> {
    let is_off = Forward::of(reference, run)?.is_off;
    Ok(is_off.then_some(FORWARD_IS_OFF))
}

/// Explains why no scale helps, and what else is to be known. `best` is the run at the scale that is most likely to.
pub(super) fn explain(
    reference: &Reference,
    runs: &[Compared],
    best: Option<&Compared>,
    parameters: Vec<String>,
    in_f32: Vec<String>,
) -> Result<(Verdict, Option<&'static str>), AmpError> {
    let now = &runs[1];
    let forward = Forward::of(reference, now)?;
    if forward.is_off || is_loss_off(reference, now) {
        let note = (!forward.is_off).then_some(AMPLIFIED);
        let at = forward.begin(now.trial.loss.is_finite());
        return Ok((Verdict::ForwardOverflow { at, in_f32 }, note));
    }
    let tried = best.unwrap_or(now);
    let off = reference.off(tried, None);
    // What is lost is below the range of f16 at the highest scale that the others allow.
    let is_tiny =
        |index: &usize| rms(&reference.statuses[*index]) * tried.trial.loss_scale < 2f64.powi(-16);
    let verdict = if off.iter().any(|index| tried.figures[*index].non_finite > 0) {
        of_range(true, None, parameters, in_f32)
    } else if tried.trial.dtype == FloatDType::F16 && !off.is_empty() && off.iter().all(is_tiny) {
        of_range(false, None, reference.paths(&off), in_f32)
    } else if agrees(reference, tried, runs.get(3), &off, !in_f32.is_empty())? {
        Verdict::Backend { parameters, in_f32 }
    } else {
        of_range(true, None, parameters, in_f32)
    };
    Ok((verdict, None))
}

/// Tells whether the other half precision, whose forward pass is right too, gives the same wrong gradients. One format has the range of f32, the
/// other more digits: so neither explains it. Zeros are the same whatever has lost them, and count where a layer was found that loses them.
fn agrees(
    reference: &Reference,
    run: &Compared,
    other: Option<&Compared>,
    off: &[usize],
    has_layer: bool,
) -> Result<bool, AmpError> {
    let Some(other) = other.filter(|other| !other.overflows() && !off.is_empty()) else {
        return Ok(false);
    };
    if is_loss_off(reference, other) || Forward::of(reference, other)?.is_off {
        return Ok(false);
    }
    let pairs = off.iter().map(|index| Pair {
        values: &run.trial.gradients[*index].values,
        scale: 1.0,
        half: None,
        expected: &other.trial.gradients[*index].values,
    });
    let pairs: Vec<_> = pairs.collect();
    let statuses = measure(pairs.iter().map(|pair| pair.expected))?;
    let is_same = |figures: &Figures| match figures.error {
        Some(error) => error <= SAME,
        None => has_layer && figures.error_rms == 0.0,
    };
    Ok(compare(&pairs, &statuses)?.iter().all(is_same))
}

/// Gradients above the range of f16 or below it, and the scale that helps, if one does.
pub(super) fn of_range(
    is_above: bool,
    scale: Option<f64>,
    parameters: Vec<String>,
    in_f32: Vec<String>,
) -> Verdict {
    match is_above {
        true => Verdict::BackwardOverflow {
            lower_to: scale,
            parameters,
            in_f32,
        },
        false => Verdict::Underflow {
            raise_to: scale,
            parameters,
            in_f32,
        },
    }
}
