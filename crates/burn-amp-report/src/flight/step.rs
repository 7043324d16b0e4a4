//! One step of a flight: what its optimizer has read, and what passed the probes.

use burn_amp_kernels::{TensorStatus, UnreadEvent};
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, collections::BTreeMap, fs, io, path::Path};

use crate::error::ReportError;

#[cfg(test)]
thread_local! {
    /// The number of times that this thread has waited for a device.
    pub(super) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A tensor and its gradient, which were measured on their way back.
pub(super) struct Passed {
    pub(super) name: String,
    /// The place on the way forward.
    pub(super) order: u32,
    /// The factor of gradients there.
    pub(super) scale: f64,
    pub(super) dtype: String,
    pub(super) event: UnreadEvent,
}

/// A parameter whose gradient is not finite.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Overflow {
    pub(super) parameter: String,
    pub(super) values: u64,
}

/// One of the last steps.
#[derive(Serialize)]
pub(super) struct Step {
    #[serde(flatten)]
    pub(super) host: Host,
    /// The readings of the probes, in the order of the forward pass.
    pub(super) probes: Vec<Probed>,
    /// The readings that are on the device still.
    #[serde(skip)]
    pub(super) passed: Vec<Passed>,
}

/// The numbers of a step that the optimizer has read anyway: a line of `steps.jsonl`, in which infinities and NaN are null.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) step: u64,
    pub(crate) outcome: String,
    /// The loss scale by which its gradients were multiplied.
    pub(crate) loss_scale: Option<f64>,
    /// The number of gradient values that were measured.
    #[serde(skip)]
    pub(super) elements: u64,
    pub(crate) norm: Option<f64>,
    pub(super) max_abs: Option<f64>,
    pub(crate) zero_share: Option<f64>,
    /// Since the step before; none for the first.
    pub(crate) seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) notes: BTreeMap<String, Option<f64>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) overflows: Vec<Overflow>,
    /// Tells whether the model's output was finite, where the loss is the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) blamed_loss: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// The number of unscaled gradients by exponent, of those that occur.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) exponents: Vec<(i32, u64)>,
}

impl Host {
    /// Tells whether it is a skip as the metric of a `Learner` counts them: for an overflow, or because a hook rejected it.
    pub(crate) fn is_skipped(&self) -> bool {
        matches!(self.outcome.as_str(), "skipped" | "guarded")
    }

    /// Takes in the call of an optimizer, in an iteration of several. It is skipped if one of them is.
    pub(super) fn join(&mut self, other: Self) {
        fn of<T>(one: Option<T>, other: Option<T>, both: impl FnOnce(T, T) -> T) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(both(one, other)),
                (one, other) => one.or(other),
            }
        }
        let rank = |outcome: &str| match outcome {
            "skipped" => 4,
            "guarded" => 3,
            "stepped" => 2,
            "" => 0,
            _ => 1,
        };
        if rank(&other.outcome) > rank(&self.outcome) {
            self.outcome = other.outcome;
        }
        let sizes = [self.elements, other.elements].map(|count| count as f64);
        let all = (sizes[0] + sizes[1]).max(1.0);
        self.zero_share = of(self.zero_share, other.zero_share, |one, other| {
            (one * sizes[0] + other * sizes[1]) / all
        });
        self.elements += other.elements;
        self.loss_scale = self.loss_scale.or(other.loss_scale);
        self.norm = of(self.norm, other.norm, f64::hypot);
        self.max_abs = of(self.max_abs, other.max_abs, f64::max);
        self.seconds = of(self.seconds, other.seconds, |one, other| one + other);
        self.notes.extend(other.notes);
        self.overflows.extend(other.overflows);
        self.overflows
            .sort_by_key(|overflow| Reverse(overflow.values));
        self.blamed_loss = self.blamed_loss.or(other.blamed_loss);
        self.error = other.error.or(self.error.take());
        for (exponent, count) in other.exponents {
            let known = self
                .exponents
                .iter_mut()
                .find(|(known, _)| *known == exponent);
            match known {
                Some((_, sum)) => *sum += count,
                None => self.exponents.push((exponent, count)),
            }
        }
    }
}

/// The contents of a `steps.jsonl`.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) steps: Vec<Host>,
    /// The number of steps of which it has no line that can be read.
    pub(crate) missing: u64,
}

/// The steps in a `steps.jsonl`; none where there is no file. A run that was killed leaves half a line: it makes that step again if it goes on.
pub(crate) fn read_steps(path: &Path) -> Result<Recorded, ReportError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recorded::default()),
        Err(error) => return Err(ReportError::file(path, error)),
    };
    let (mut recorded, mut last, mut is_cut) = (Recorded::default(), 0, false);
    // It may be cut inside a character.
    let lines = bytes.split(|byte| *byte == b'\n');
    for line in lines.filter(|line| !line.is_empty()) {
        let step: Option<Host> = serde_json::from_slice(line).ok();
        is_cut = step.is_none();
        if let Some(step) = step {
            recorded.missing += step.step.saturating_sub(last + 1);
            last = step.step;
            recorded.steps.push(step);
        }
    }
    recorded.missing += u64::from(is_cut);
    Ok(recorded)
}

/// The reading of a probe.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Probed {
    pub(super) name: String,
    /// The place on the way forward, from 0.
    pub(super) order: u32,
    pub(super) dtype: String,
    pub(super) value: Measures,
    /// Unscaled.
    pub(super) gradient: Measures,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Measures {
    pub(super) max_abs: f64,
    /// A share from 0 to 1.
    pub(super) zeros: f64,
    pub(super) non_finite: u64,
}

impl Measures {
    fn of(status: &TensorStatus, scale: f64) -> Self {
        Self {
            max_abs: status.max_abs / scale,
            zeros: status.zeros as f64 / status.elements.max(1) as f64,
            non_finite: status.non_finite,
        }
    }
}

impl Step {
    pub(super) fn new(step: u64) -> Self {
        Self {
            host: Host {
                step,
                ..Host::default()
            },
            probes: Vec::new(),
            passed: Vec::new(),
        }
    }

    pub(super) fn is(&self, outcome: &str) -> bool {
        self.host.outcome == outcome
    }

    /// Reads what is on the device still.
    pub(super) fn read(&mut self) {
        let read = self.passed.drain(..).filter_map(Passed::read);
        self.probes.extend(read);
        self.probes.sort_by_key(|seen| seen.order);
    }
}

impl Passed {
    fn read(self) -> Option<Probed> {
        #[cfg(test)]
        READS.set(READS.get() + 1);
        let (gradient, value) = self.event.read_measures()?;
        Some(Probed {
            name: self.name,
            order: self.order,
            dtype: self.dtype,
            value: Measures::of(&value?, 1.0),
            gradient: Measures::of(&gradient, self.scale),
        })
    }
}
