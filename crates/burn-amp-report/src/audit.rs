//! The audit: one loss in several precisions, and what sets them apart.

mod compare;
mod minimal;
mod page;
mod table;
mod trace;
mod verdict;

use burn::{
    module::Module,
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::{AmpError, MixedPrecision, observe};
use burn_amp_kernels::{ExponentHistogram, TensorList, TensorStatus, histogram};
use serde::Serialize;
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use crate::{error::ReportError, file};
use compare::{Figures, Gradient, Side, broken_parameter, compare, gradients, measure, rms};
use minimal::minimal;
pub(crate) use trace::Trace;
use trace::Visit;
pub use verdict::Verdict;
pub(crate) use verdict::power;

/// Runs one loss and its backward pass in f32, in f16 at three loss scales, and in bf16 where the device has it, compares them, and says what is wrong.
///
/// `loss` computes a loss as the training loop does, on a typical batch, with [`autocast`](MixedPrecision::autocast) of `amp` or a clone of it
/// inside (or in the model, for a `Learner`). It runs five times with the same weights; the scales are the present one, and those two binades
/// below and above it. Where something is wrong it runs more often: at another scale, and with layers in f32, to find
/// the smallest set of those that are [`probed`](crate::probed()) that mends it.
///
/// It leaves no trace: running statistics are put back, and neither loss scale nor counters move. Seeds the device's random numbers before each run. Waits for
/// the device. While it runs, it holds the gradients of two runs more, and what passes the probes.
///
/// # Errors
///
/// [`ReportError::Amp`]: the device lacks f16 ([`AmpError::UnsupportedDType`]), and what
/// [`check`](MixedPrecision::check) refuses before there are gradients: [`AmpError::NoScope`], [`AmpError::DTypeClash`],
/// [`AmpError::NoGradients`] and those of `try_autocast`.
///
/// # Panics
///
/// Where `loss` panics for another reason.
pub fn audit<M: Module, const D: usize>(
    model: &M,
    amp: &MixedPrecision,
    loss: impl FnMut(&M) -> Tensor<D>,
) -> Result<Audit, ReportError> {
    MixedPrecision::f16().check_device_of(model)?;
    let mut bench = Bench { model, amp, loss };
    Ok(bench.audit()?)
}

/// What an [`audit`] has found. `Display` is a text table.
#[derive(Clone, Debug, Serialize)]
pub struct Audit {
    verdict: Verdict,
    /// The verdict in words.
    advice: String,
    device: String,
    /// What else is to be known.
    note: Option<&'static str>,
    /// The present loss scale.
    loss_scale: f64,
    /// How often the loss was computed.
    losses_computed: u32,
    runs: Vec<Run>,
    parameters: Vec<Parameter>,
    layers: Vec<Layer>,
    /// Gradient values in f32 by exponent, times the loss scale.
    exponents: Vec<(i32, u64)>,
    formats: Vec<Format>,
    #[serde(skip)]
    reproduction: Option<Reproduction>,
}

/// One of the runs that are compared.
#[derive(Clone, Debug, Serialize)]
struct Run {
    name: String,
    loss_scale: f64,
    loss: f64,
    /// Whether no gradient is off.
    is_right: bool,
}

#[derive(Clone, Debug, Serialize)]
struct Parameter {
    path: String,
    elements: u64,
    /// In f32.
    norm: f64,
    max_abs: f64,
    zeros: u64,
    /// Whether it is read in half precision.
    is_half: bool,
    /// Of each run after the first.
    figures: Vec<Figures>,
}

#[derive(Clone, Debug, Serialize)]
struct Layer {
    name: String,
    /// In f16.
    dtype: String,
    value: Passed,
    gradient: Option<Passed>,
}

/// What passes a probe.
#[derive(Clone, Debug, Serialize)]
struct Passed {
    norm: f64,
    max_abs: f64,
    figures: Vec<Figures>,
}

/// What another format would lose.
#[derive(Clone, Debug, Serialize)]
struct Format {
    name: &'static str,
    /// The share of the values that are not zero, from 0 to 1.
    lost: f64,
    /// Whether it was tried, or counted by exponents.
    is_measured: bool,
}

/// Values of a gradient that is off, for those who maintain the backend.
#[derive(Clone, Debug, Serialize)]
struct Reproduction {
    device: String,
    loss_scale: f64,
    tensors: Vec<Dump>,
}

#[derive(Clone, Debug, Serialize)]
struct Dump {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    /// The first [`DUMPED`] at most; in half precision without the loss scale. Not a number where there is none.
    values: Vec<Option<f32>>,
    in_f32: Vec<Option<f32>>,
}

const DUMPED: usize = 4096;

impl Audit {
    /// What is wrong, and what to do.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// All figures, as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("figures are numbers, names and lists of them")
    }

    /// Writes `audit.html` (one page, without network), `audit.json`, and for [`Verdict::Backend`] `reproduce.json`: the gradients that are
    /// off, values beside those of f32. Makes the folder. Files are written beside and renamed.
    ///
    /// # Errors
    ///
    /// [`ReportError::File`].
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), ReportError> {
        let folder = folder.as_ref();
        file::create_folder(folder)?;
        if let Some(reproduction) = &self.reproduction {
            let text = serde_json::to_string(reproduction).expect("names and numbers");
            file::write(&folder.join("reproduce.json"), &text)?;
        }
        file::write(&folder.join("audit.json"), &self.to_json())?;
        file::write(&folder.join("audit.html"), &page::render(self))
    }
}

/// From this share of lost values on, a gradient is said to underflow.
const LOST: f64 = 0.25;
/// From this relative difference on, a gradient is off. A cosine of 0.87, or a norm that is half as large again.
const OFF: f64 = 0.5;
/// What is smaller than this share of all gradients' root mean square is rounding, unless it moves with the scale: the exact gradient of an
/// attention's key bias is zero.
const NOISE: f64 = 0.02;
/// And this is rounding in f32.
const NOISE_IN_F32: f64 = 3e-7;
/// Binades that the advised scale stays below overflow, as that of `calibrate`.
const HEADROOM: i32 = 3;
const BINADES: f64 = 4.0;
const SEED: u64 = 0x5ca1e;

struct Bench<'a, M, F> {
    model: &'a M,
    amp: &'a MixedPrecision,
    loss: F,
}

/// One run, with its tensors.
struct Trial {
    dtype: FloatDType,
    loss_scale: f64,
    loss: f64,
    gradients: Vec<Gradient>,
    visits: Vec<Visit>,
    read: BTreeSet<String>,
    max_abs: f64,
    is_loss_inside: bool,
}

/// The run in f32, measured.
struct Reference {
    trial: Trial,
    statuses: Vec<TensorStatus>,
    /// The root mean square over all gradients.
    rms: f64,
    /// How far another run in f32 is off, with other random numbers.
    noise: Noise,
}

/// The errors of a run in f32 that only dropout and the like set apart; zero where there is none.
#[derive(Default)]
struct Noise {
    loss: f64,
    gradients: HashMap<usize, f64>,
    values: HashMap<usize, f64>,
}

impl Noise {
    /// From where on a difference means something.
    fn limit(of: &HashMap<usize, f64>, index: usize) -> f64 {
        OFF.max(3.0 * of.get(&index).copied().unwrap_or(0.0))
    }

    fn is_random(&self) -> bool {
        self.gradients.values().any(|error| *error > 1e-3)
    }
}

/// A run beside that in f32.
struct Compared {
    trial: Trial,
    figures: Vec<Figures>,
}

trait CheckDevice {
    fn check_device_of<M: Module>(&self, model: &M) -> Result<(), AmpError>;
}

impl CheckDevice for MixedPrecision {
    fn check_device_of<M: Module>(&self, model: &M) -> Result<(), AmpError> {
        model
            .devices()
            .iter()
            .try_for_each(|device| self.check_device(device))
    }
}

impl<M: Module, F: FnMut(&M) -> Tensor<D>, const D: usize> Bench<'_, M, F> {
    fn run(&mut self, dtype: FloatDType, loss_scale: f64, trace: Trace) -> Result<Trial, AmpError> {
        self.run_seeded(SEED, dtype, loss_scale, trace)
    }

    fn run_seeded(
        &mut self,
        seed: u64,
        dtype: FloatDType,
        loss_scale: f64,
        trace: Trace,
    ) -> Result<Trial, AmpError> {
        for device in self.model.devices() {
            device.seed(seed);
        }
        let trace = Arc::new(trace);
        let trial = observe::Trial {
            dtype,
            loss_scale,
            observer: Some(trace.clone()),
        };
        let collect = |grads: &_| trace.collect(grads);
        let tried = observe::dry_run(self.amp, trial, self.model, &mut self.loss, collect)?;
        Ok(Trial {
            dtype,
            loss_scale,
            loss: tried.loss.into_data().iter::<f64>().sum(),
            gradients: gradients(&tried.grads, self.model),
            visits: trace.take(),
            read: tried.read,
            max_abs: tried.max_abs,
            is_loss_inside: tried.is_loss_inside,
        })
    }
}

fn keeping() -> Trace {
    Trace::new(true, BTreeSet::new())
}

impl Trial {
    fn is_half(&self) -> bool {
        self.dtype != FloatDType::F32
    }

    fn name(&self) -> String {
        match self.dtype {
            FloatDType::F16 => format!("f16 at {}", power(self.loss_scale)),
            FloatDType::BF16 => "bf16".to_string(),
            _ => "f32".to_string(),
        }
    }
}

impl Reference {
    fn new(trial: Trial) -> Result<Self, AmpError> {
        let statuses = measure(trial.gradients.iter().map(|gradient| &gradient.values))?;
        let squares: f64 = statuses.iter().map(|status| status.norm.powi(2)).sum();
        let elements: u64 = statuses.iter().map(|status| status.elements).sum();
        Ok(Self {
            trial,
            statuses,
            rms: (squares / elements.max(1) as f64).sqrt(),
            noise: Noise::default(),
        })
    }

    fn is_finite(&self) -> bool {
        self.trial.loss.is_finite() && self.statuses.iter().all(|status| status.non_finite == 0)
    }

    fn compare(&self, mut trial: Trial) -> Result<Compared, AmpError> {
        // One that the loss reaches in f32 alone is zero.
        let mut found: HashMap<_, _> = std::mem::take(&mut trial.gradients)
            .into_iter()
            .map(|gradient| (gradient.path, gradient.values))
            .collect();
        trial.gradients = (self.trial.gradients.iter())
            .map(|expected| Gradient {
                path: expected.path.clone(),
                values: (found.remove(&expected.path))
                    .unwrap_or_else(|| expected.values.zeros_like()),
            })
            .collect();
        let sides: Vec<_> = (trial.gradients.iter())
            .map(|gradient| Side {
                values: &gradient.values,
                scale: 1.0,
                half: None,
            })
            .collect();
        let gradients = self.trial.gradients.iter().map(|gradient| &gradient.values);
        let references: Vec<_> = gradients.zip(self.statuses.iter().copied()).collect();
        let mut figures = compare(&sides, &references)?;
        let largest: f64 = match trial.dtype {
            FloatDType::BF16 => 2f64.powi(128),
            _ => 65520.0,
        };
        for ((figures, gradient), status) in
            (figures.iter_mut().zip(&trial.gradients)).zip(&self.statuses)
        {
            // What is f32 outside was f16 inside, times the scale.
            let max_abs = status.max_abs * trial.loss_scale;
            if trial.is_half() && trial.read.contains(&gradient.path) && max_abs > 0.0 {
                figures.headroom = Some((largest / max_abs).log2());
            }
        }
        Ok(Compared { trial, figures })
    }

    /// The scale that brings the largest gradient [`HEADROOM`] below overflow.
    fn ideal_scale(&self) -> Option<f64> {
        let at_probes = self
            .trial
            .visits
            .iter()
            .filter_map(|visit| visit.gradient.as_ref());
        let at_probes = measure(at_probes).unwrap_or_default();
        let largest = (self.statuses.iter().chain(&at_probes))
            .fold(self.trial.max_abs, |largest, status| {
                largest.max(status.max_abs)
            });
        let exponent = 15 - HEADROOM - (largest.log2().floor() as i32);
        (largest > 0.0).then(|| 2f64.powi(exponent.clamp(-24, 126)))
    }

    /// Whether a gradient is off. `more` is the same at a higher scale.
    fn is_off(&self, index: usize, figures: &Figures, more: Option<&Figures>) -> bool {
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
    fn off(&self, compared: &Compared, more: Option<&Compared>) -> Vec<usize> {
        let more = |index: usize| more.and_then(|more| more.figures.get(index));
        let mut off: Vec<_> = (0..self.statuses.len())
            .filter(|index| self.is_off(*index, &compared.figures[*index], more(*index)))
            .collect();
        let badness = |index: &usize| {
            let figures = &compared.figures[*index];
            (
                figures.non_finite as f64,
                figures.lost,
                figures.error.unwrap_or(f64::INFINITY),
            )
        };
        off.sort_by(|a, b| {
            badness(b)
                .partial_cmp(&badness(a))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        off
    }

    fn is_right(&self, compared: &Compared, more: Option<&Compared>) -> bool {
        !self.is_forward_off(compared) && self.off(compared, more).is_empty()
    }

    /// Whether the loss is another one.
    fn is_forward_off(&self, compared: &Compared) -> bool {
        let (loss, expected) = (compared.trial.loss, self.trial.loss);
        let limit = (0.25 * expected.abs().max(1e-6)).max(3.0 * self.noise.loss);
        !loss.is_finite() || (loss - expected).abs() > limit
    }

    fn paths(&self, indices: &[usize]) -> Vec<String> {
        let gradients = &self.trial.gradients;
        (indices.iter().take(16))
            .map(|index| gradients[*index].path.clone())
            .collect()
    }
}

impl<M: Module, F: FnMut(&M) -> Tensor<D>, const D: usize> Bench<'_, M, F> {
    fn audit(&mut self) -> Result<Audit, AmpError> {
        let present = match self.amp.dtype() {
            FloatDType::F16 => f64::from(self.amp.loss_scale()),
            _ => 65536.0,
        };
        let mut reference = Reference::new(self.run(FloatDType::F32, 1.0, keeping())?)?;
        let mut audit = Audit {
            verdict: Verdict::Fine,
            advice: String::new(),
            note: None,
            device: match self.model.devices().first() {
                Some(device) => format!("{:?}", device.clone().inner()),
                None => "none".to_string(),
            },
            loss_scale: present,
            losses_computed: 1,
            runs: vec![Run {
                name: "f32".to_string(),
                loss_scale: 1.0,
                loss: reference.trial.loss,
                is_right: true,
            }],
            parameters: Vec::new(),
            layers: Vec::new(),
            exponents: Vec::new(),
            formats: Vec::new(),
            reproduction: None,
        };
        let mut runs = Vec::new();
        let mut specs = vec![
            (FloatDType::F16, present / BINADES),
            (FloatDType::F16, present),
            (FloatDType::F16, present * BINADES),
        ];
        if MixedPrecision::bf16().check_device_of(self.model).is_ok() {
            specs.push((FloatDType::BF16, 1.0));
        }
        for (dtype, scale) in specs {
            let trial = match self.run(dtype, scale, keeping()) {
                Err(AmpError::HalfPrecisionLoss { .. }) => {
                    audit.judged(Verdict::LossInHalf);
                    return Ok(audit);
                }
                trial => trial?,
            };
            audit.losses_computed += 1;
            runs.push(reference.compare(trial)?);
        }
        let verdict = match reference.is_finite() {
            false => self.not_finite(&reference)?,
            true => {
                let right = |run: &Compared| reference.is_right(run, None);
                if !right(&runs[1]) && runs[1].trial.loss.is_finite() {
                    self.look_for_noise(&mut reference, &mut audit)?;
                }
                self.judge(&reference, &runs, present, &mut audit)?
            }
        };
        let layers = layers(&reference, &runs)?;
        if let Verdict::Backend { .. } = &verdict {
            audit.reproduction = Some(reproduction(&reference, &runs[1], &audit.device)?);
        }
        audit.show(&reference, &runs, layers, present)?;
        audit.judged(verdict);
        Ok(audit)
    }

    /// Devices draw other random numbers in f16 from one seed, so dropout sets the runs apart.
    fn look_for_noise(
        &mut self,
        reference: &mut Reference,
        audit: &mut Audit,
    ) -> Result<(), AmpError> {
        audit.losses_computed += 1;
        let other = self.run_seeded(SEED + 1, FloatDType::F32, 1.0, keeping())?;
        let other = reference.compare(other)?;
        let values = passed(reference, &other, value, false)?;
        let errors = |figures: &mut dyn Iterator<Item = (usize, Figures)>| {
            figures
                .filter_map(|(index, figures)| Some((index, figures.error?)))
                .collect()
        };
        reference.noise = Noise {
            loss: (other.trial.loss - reference.trial.loss).abs(),
            gradients: errors(&mut other.figures.iter().copied().enumerate()),
            values: errors(&mut values.into_iter()),
        };
        if reference.noise.is_random() {
            audit.note = Some(
                "The loss is random, as with dropout: differences are measured against those of two runs in f32.",
            );
        }
        Ok(())
    }

    fn not_finite(&self, reference: &Reference) -> Result<Verdict, AmpError> {
        let visits = &reference.trial.visits;
        let values: Vec<_> = visits
            .iter()
            .filter(|visit| visit.value.is_some())
            .collect();
        let statuses = measure(values.iter().filter_map(|visit| visit.value.as_ref()))?;
        let first = statuses.iter().position(|status| status.non_finite > 0);
        Ok(Verdict::NotFinite {
            parameter: broken_parameter(self.model)?,
            at: first.map(|first| values[first].name.clone()),
        })
    }

    fn judge(
        &mut self,
        reference: &Reference,
        runs: &[Compared],
        present: f64,
        audit: &mut Audit,
    ) -> Result<Verdict, AmpError> {
        let [low, now, high] = [&runs[0], &runs[1], &runs[2]];
        let leaking = leaking(low, now, high);
        if !leaking.is_empty() {
            return Ok(Verdict::Leak {
                parameters: reference.paths(&leaking),
            });
        }
        let off = reference.off(now, Some(high));
        if off.is_empty() && !reference.is_forward_off(now) {
            let zero = |index: &usize| reference.statuses[*index].max_abs == 0.0;
            let dead: Vec<_> = (0..reference.statuses.len()).filter(zero).collect();
            return Ok(match dead.is_empty() {
                true => Verdict::Fine,
                false => Verdict::Dead {
                    parameters: reference.paths(&dead),
                },
            });
        }
        let overflows = now.figures.iter().any(|figures| figures.non_finite > 0);
        if now.trial.is_loss_inside && overflows {
            return Ok(Verdict::LossInHalf);
        }
        if overflows && observe::is_dynamic(self.amp) && reference.is_right(low, None) {
            audit.note = Some(
                "At the present loss scale something overflows, and two binades below nothing does: a skipped step or two lower the scale.",
            );
            return Ok(Verdict::Fine);
        }
        let parameters = reference.paths(&off);
        // Another scale.
        let mut healing = None;
        let mut last = None;
        if !reference.is_forward_off(now) {
            let mut scale = reference.ideal_scale().unwrap_or(present);
            for _ in 0..4 {
                let tried = self.run(FloatDType::F16, scale, Trace::default())?;
                audit.losses_computed += 1;
                let tried = reference.compare(tried)?;
                let overflows = tried.figures.iter().any(|figures| figures.non_finite > 0);
                if reference.is_right(&tried, None) {
                    healing = Some(scale);
                }
                last = Some(tried);
                if healing.is_some() || !overflows {
                    break;
                }
                scale /= 256.0;
            }
            if healing.is_none() {
                let right = |run: &&Compared| reference.is_right(run, None);
                healing = [high, low]
                    .into_iter()
                    .find(right)
                    .map(|run| run.trial.loss_scale);
            }
        }
        if let Some(scale) = healing {
            return Ok(match overflows {
                true => Verdict::BackwardOverflow {
                    lower_to: Some(scale),
                    parameters,
                    in_f32: Vec::new(),
                },
                false => Verdict::Underflow {
                    raise_to: Some(scale),
                    parameters,
                    in_f32: Vec::new(),
                },
            });
        }
        let best = last
            .as_ref()
            .map_or(present, |tried| tried.trial.loss_scale);
        let in_f32 = self.layers_for_f32(reference, &now.trial.visits, &[present, best], audit)?;
        explain(reference, runs, last.as_ref(), parameters, in_f32)
    }

    /// The smallest set of layers that mends it in f32, at one of the scales.
    fn layers_for_f32(
        &mut self,
        reference: &Reference,
        visits: &[Visit],
        scales: &[f64],
        audit: &mut Audit,
    ) -> Result<Vec<String>, AmpError> {
        let mut layers: Vec<String> = Vec::new();
        for visit in visits.iter().filter(|visit| visit.is_layer) {
            if !layers.contains(&visit.layer) {
                layers.push(visit.layer.clone());
            }
        }
        if layers.is_empty() {
            return Ok(layers);
        }
        for scale in scales {
            let mut mends = |layers: &[String]| {
                let trace = Trace::new(false, layers.iter().cloned().collect());
                audit.losses_computed += 1;
                match self.run(FloatDType::F16, *scale, trace) {
                    Ok(trial) => Ok(reference.is_right(&reference.compare(trial)?, None)),
                    // A tensor that the layer captures is f16.
                    Err(AmpError::DTypeClash { .. }) => Ok(false),
                    Err(error) => Err(error),
                }
            };
            if mends(&layers)? {
                return minimal(&layers, &mut mends);
            }
        }
        Ok(Vec::new())
    }
}

/// Why no scale helps.
fn explain(
    reference: &Reference,
    runs: &[Compared],
    best: Option<&Compared>,
    parameters: Vec<String>,
    in_f32: Vec<String>,
) -> Result<Verdict, AmpError> {
    let now = &runs[1];
    let values = passed(reference, now, value, false)?;
    let visits = &now.trial.visits;
    let at = |index: usize| Some(visits[index].name.clone());
    let first = |test: &dyn Fn(usize, &Figures) -> bool| {
        let found = values.iter().find(|(index, figures)| test(*index, figures));
        found.map(|(index, _)| *index)
    };
    let is_infinite = |_: usize, figures: &Figures| figures.non_finite > 0;
    let is_off = |index: usize, figures: &Figures| {
        let limit = Noise::limit(&reference.noise.values, index);
        figures.error.is_some_and(|error| error > limit)
    };
    let bf16_is_right = runs.get(3).map(|bf16| reference.is_right(bf16, None));
    if !now.trial.loss.is_finite() {
        let at = first(&is_infinite).and_then(at);
        return Ok(Verdict::ForwardOverflow { at, in_f32 });
    }
    let first_off = first(&|index, figures| is_infinite(index, figures) || is_off(index, figures));
    if reference.is_forward_off(now) || first_off.is_some() {
        // bf16 has the range of f32: where it is right, f16 lacked range.
        let large = (reference.trial.visits.iter()).filter_map(|visit| visit.value.as_ref());
        let large = measure(large)?.iter().any(|status| status.max_abs > 255.0);
        return Ok(
            match bf16_is_right.unwrap_or(large) || first(&is_infinite).is_some() {
                true => Verdict::ForwardOverflow {
                    at: first_off.and_then(at),
                    in_f32,
                },
                false => Verdict::Backend { parameters, in_f32 },
            },
        );
    }
    let tried = best.unwrap_or(now);
    let off = reference.off(tried, None);
    if off.iter().any(|index| tried.figures[*index].non_finite > 0) {
        return Ok(Verdict::BackwardOverflow {
            lower_to: None,
            parameters,
            in_f32,
        });
    }
    // What is lost is below the range at the highest scale that the others allow.
    let is_tiny =
        |index: &usize| rms(&reference.statuses[*index]) * tried.trial.loss_scale < 2f64.powi(-16);
    match !off.is_empty() && off.iter().all(is_tiny) {
        true => Ok(Verdict::Underflow {
            raise_to: None,
            parameters: reference.paths(&off),
            in_f32,
        }),
        false => Ok(Verdict::Backend { parameters, in_f32 }),
    }
}

/// The gradients that grow with the scale.
fn leaking(low: &Compared, now: &Compared, high: &Compared) -> Vec<usize> {
    let grows = |index: &usize| {
        let ratio = |run: &Compared| run.figures[*index].norm_ratio;
        let (Some(low), Some(now), Some(high)) = (ratio(low), ratio(now), ratio(high)) else {
            return false;
        };
        let step = |less: f64, more: f64| (more / less - BINADES).abs() < 0.2;
        let falls = |less: f64, more: f64| (less / more - BINADES).abs() < 0.2;
        (now > 16.0 && step(low, now) && step(now, high))
            || (now < 1.0 / 16.0 && falls(low, now) && falls(now, high))
    };
    (0..now.figures.len()).filter(grows).collect()
}

/// Takes a tensor of a visit: what passed, or its gradient.
type Of = fn(&Visit) -> Option<&Tensor<1>>;

fn value(visit: &Visit) -> Option<&Tensor<1>> {
    visit.value.as_ref()
}

fn gradient(visit: &Visit) -> Option<&Tensor<1>> {
    visit.gradient.as_ref()
}

/// What passed the probes of a run, against the same in f32: with the number of the visit.
fn passed(
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
fn layers(reference: &Reference, runs: &[Compared]) -> Result<Vec<Layer>, AmpError> {
    let visits = &reference.trial.visits;
    let shown = |of: Of, is_gradient: bool| -> Result<Vec<Option<Passed>>, AmpError> {
        let mut statuses = measure(visits.iter().filter_map(of))?.into_iter();
        let mut shown: Vec<_> = (visits.iter())
            .map(|visit| {
                let status = of(visit).and_then(|_| statuses.next())?;
                Some(Passed {
                    norm: status.norm,
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

fn dtype_name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

/// Values of the gradients that are off: of the worst parameters, and around the probe where it begins on the way back.
fn reproduction(
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
    fn judged(&mut self, verdict: Verdict) {
        self.advice = match self.note {
            Some(note) => format!("{verdict} {note}"),
            None => verdict.to_string(),
        };
        self.verdict = verdict;
    }

    /// Keeps the figures.
    fn show(
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
            norm: status.norm,
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
fn count(
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
fn formats(reference: &Reference, runs: &[Compared]) -> Result<Vec<Format>, AmpError> {
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
