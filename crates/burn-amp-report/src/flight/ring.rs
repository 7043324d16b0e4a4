//! The last steps, on the device until they are asked for.

use burn::tensor::Tensor;
use burn_amp::{
    StepOutcome, UnscaledGradients,
    observe::{self, Observer, Stepped},
};
use burn_amp_kernels::{Crossing, ExponentHistogram, TensorStatus, Watch, watched_cast};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use super::page;
use crate::{error::ReportError, file};

/// Steps that are kept.
pub(super) const STEPS: usize = 21;
/// Tensors that are remembered of one step: of graphs that nobody steps on, the oldest are forgotten.
const MAX_PASSED: usize = 4096;
/// Skips in a row that are worth a page.
const REPEATED: u64 = 2;

/// What a recorder keeps.
pub(crate) struct Ring {
    folder: PathBuf,
    /// What passes the probes between two steps, shared with the graphs.
    passed: Arc<Mutex<VecDeque<Passed>>>,
    state: Mutex<State>,
    count_every: AtomicU32,
}

struct State {
    steps: VecDeque<Step>,
    /// Steps so far.
    count: u64,
    loss_scale: f64,
    skips_in_a_row: u64,
    /// Whether the last step was held back by a guard, or refused.
    was_guarded: bool,
    has_failed: bool,
    /// Probes of the step that is under way, by name.
    names: HashMap<String, u32>,
    /// How many probes were passed on the way forward.
    order: u32,
    /// Of the step that is under way.
    overflows: Vec<Overflow>,
    notes: BTreeMap<String, f64>,
    blamed_loss: Option<bool>,
    exponents: Option<ExponentHistogram>,
    log: File,
    last: Instant,
    written: Vec<PathBuf>,
}

/// A tensor and its gradient, which were measured on their way back.
struct Passed {
    name: Arc<str>,
    /// The place on the way forward.
    order: u32,
    /// What gradients are multiplied by there.
    scale: f64,
    dtype: String,
    crossing: Crossing,
}

/// A parameter whose gradient is not finite.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Overflow {
    pub(super) parameter: String,
    pub(super) values: u64,
}

struct Step {
    host: Host,
    passed: Passage,
}

/// What came by in one step.
enum Passage {
    OnDevice(Vec<Passed>),
    Read(Vec<Seen>),
}

/// The numbers of a step that the optimizer has read anyway.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Host {
    pub(super) step: u64,
    pub(super) outcome: String,
    /// That its gradients were multiplied by.
    pub(super) loss_scale: f64,
    pub(super) norm: Option<f64>,
    pub(super) max_abs: Option<f64>,
    pub(super) zero_share: Option<f64>,
    /// Since the step before; none for the first.
    pub(super) seconds: Option<f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) notes: BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) overflows: Vec<Overflow>,
    /// Where the loss is to blame: whether the model's output was finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) blamed_loss: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// By exponent, of those that occur; unscaled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) exponents: Vec<(i32, u64)>,
}

/// What a probe has seen, read.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Seen {
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
    /// From 0 to 1.
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

/// One of the last steps, read.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Known {
    #[serde(flatten)]
    pub(super) host: Host,
    /// In the order of the way forward.
    pub(super) probes: Vec<Seen>,
}

impl Ring {
    pub(super) fn new(folder: &Path, loss_scale: f32) -> Result<Self, ReportError> {
        let path = folder.join("steps.jsonl");
        let count = crate::run::last_step(&path)?;
        let open = || {
            let mut log = OpenOptions::new().create(true).append(true).open(&path)?;
            if log.metadata()?.len() > 0 {
                // A run that was killed may have left half a line.
                log.write_all(b"\n")?;
            }
            io::Result::Ok(log)
        };
        let log = open().map_err(|error| ReportError::file(&path, error))?;
        Ok(Self {
            folder: folder.to_path_buf(),
            passed: Arc::default(),
            count_every: AtomicU32::new(0),
            state: Mutex::new(State {
                steps: VecDeque::with_capacity(STEPS),
                count,
                loss_scale: loss_scale.into(),
                skips_in_a_row: 0,
                was_guarded: false,
                has_failed: false,
                names: HashMap::new(),
                order: 0,
                overflows: Vec::new(),
                notes: BTreeMap::new(),
                blamed_loss: None,
                exponents: None,
                log,
                last: Instant::now(),
                written: Vec::new(),
            }),
        })
    }

    pub(super) fn count_every(&self, steps: u32) {
        self.count_every.store(steps, Ordering::Relaxed);
    }

    pub(super) fn note(&self, name: &str, value: f64) {
        self.state().notes.insert(name.to_string(), value);
    }

    pub(super) fn written(&self) -> Vec<PathBuf> {
        self.state().written.clone()
    }

    /// Measures a tensor and its gradient on the way back.
    pub(crate) fn probe<const D: usize>(&self, name: &str, x: Tensor<D>) -> Tensor<D> {
        if !x.is_tracked() {
            return x;
        }
        let dtype = x.dtype();
        let scale = match dtype {
            burn::tensor::DType::F16 | burn::tensor::DType::BF16 => observe::scale_here(),
            _ => 1.0,
        };
        let (name, order): (Arc<str>, u32) = {
            let mut state = self.state();
            let times = match state.names.get_mut(name) {
                Some(times) => {
                    *times += 1;
                    *times
                }
                None => {
                    state.names.insert(name.to_string(), 1);
                    1
                }
            };
            state.order += 1;
            let name = match times {
                1 => name.into(),
                times => format!("{name} ({times})").into(),
            };
            (name, state.order - 1)
        };
        let passed = self.passed.clone();
        let watch = Watch::new(move |crossing| {
            let mut passed = passed.lock().unwrap_or_else(PoisonError::into_inner);
            if passed.len() == MAX_PASSED {
                passed.pop_front();
            }
            passed.push_back(Passed {
                name: name.clone(),
                order,
                scale,
                dtype: format!("{dtype:?}").to_lowercase(),
                crossing,
            });
        });
        watched_cast(x, dtype.into(), 1.0, &watch)
    }

    /// Reads the last steps and writes them down.
    pub(super) fn write(&self, why: &str) -> Result<PathBuf, ReportError> {
        let mut state = self.state();
        state.write(&self.folder, why)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half written by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, folder: &Path, why: &str) -> Result<PathBuf, ReportError> {
        let known: Vec<Known> = self.steps.iter_mut().map(Step::known).collect();
        let step = self.count;
        let flight = page::Flight::of(step, why, known);
        let path = folder.join(format!("flight-{step}.json"));
        file::write(&path, &flight.to_json())?;
        let path = folder.join(format!("flight-{step}.html"));
        file::write(&path, &flight.render())?;
        if !self.written.contains(&path) {
            self.written.push(path.clone());
        }
        Ok(path)
    }
}

impl Step {
    fn known(&mut self) -> Known {
        if let Passage::OnDevice(passed) = &mut self.passed {
            let mut seen: Vec<Seen> = passed.drain(..).filter_map(Passed::read).collect();
            seen.sort_by_key(|seen| seen.order);
            self.passed = Passage::Read(seen);
        }
        Known {
            host: self.host.clone(),
            probes: match &self.passed {
                Passage::Read(seen) => seen.clone(),
                Passage::OnDevice(_) => Vec::new(),
            },
        }
    }
}

impl Passed {
    fn read(self) -> Option<Seen> {
        #[cfg(test)]
        tests::READS.set(tests::READS.get() + 1);
        let (gradient, value) = self.crossing.read_measures()?;
        Some(Seen {
            name: self.name.to_string(),
            order: self.order,
            dtype: self.dtype,
            value: Measures::of(&value?, 1.0),
            gradient: Measures::of(&gradient, self.scale),
        })
    }
}

impl Observer for Ring {
    fn tested(&self, grads: &UnscaledGradients) {
        let mut state = self.state();
        let overflows = observe::overflows(grads).into_iter();
        let overflows = overflows.map(|(parameter, values)| Overflow { parameter, values });
        state.overflows = overflows.collect();
        state
            .overflows
            .sort_by_key(|overflow| std::cmp::Reverse(overflow.values));
        state.blamed_loss = observe::is_loss_the_cause(grads);
        let every = u64::from(self.count_every.load(Ordering::Relaxed));
        if every > 0 && state.count.is_multiple_of(every) {
            // A device that lacks the dtype has refused the step before.
            state.exponents = observe::histogram(grads).ok();
        }
    }

    fn stepped(&self, step: Stepped<'_>) {
        // Inside a window nothing is over yet.
        if step.outcome == Some(StepOutcome::Accumulated) && step.error.is_none() {
            return;
        }
        let passed = {
            let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *passed)
        };
        let mut state = self.state();
        state.count += 1;
        state.order = 0;
        state.names.clear();
        let is_first = state.steps.is_empty();
        let now = Instant::now();
        let seconds = now.duration_since(std::mem::replace(&mut state.last, now));
        let exponents = state.exponents.take();
        let exponents = exponents.iter().flat_map(|counts| {
            let below = (ExponentHistogram::MIN_EXPONENT - 1, counts.below());
            std::iter::once(below).chain(counts.iter())
        });
        let host = Host {
            step: state.count,
            outcome: match step.outcome {
                Some(outcome) => format!("{outcome:?}").to_lowercase(),
                None => "refused".to_string(),
            },
            loss_scale: std::mem::replace(&mut state.loss_scale, step.loss_scale.into()),
            norm: step.status.map(|status| status.norm()),
            max_abs: step.status.map(|status| status.max_abs()),
            zero_share: step.status.map(|status| status.zero_share()),
            seconds: (!is_first).then_some(seconds.as_secs_f64()),
            notes: std::mem::take(&mut state.notes),
            overflows: std::mem::take(&mut state.overflows),
            blamed_loss: state.blamed_loss.take(),
            error: step.error.map(ToString::to_string),
            exponents: exponents.filter(|(_, count)| *count > 0).collect(),
        };
        let mut line = serde_json::to_vec(&host).expect("names and numbers");
        line.push(b'\n');
        // A full disk must not end a training: the flight itself says so when it is written.
        let logged = state.log.write_all(&line);
        if let Err(error) = logged {
            log::warn!("{}: {error}", self.folder.display());
        }
        if state.steps.len() == STEPS {
            state.steps.pop_front();
        }
        state.steps.push_back(Step {
            host,
            passed: Passage::OnDevice(passed.into()),
        });
        if let Some(why) = state.why(&step) {
            match state.write(&self.folder, &why) {
                Ok(path) => log::warn!("{why}: the last steps are in {}", path.display()),
                Err(error) => log::warn!("the last steps cannot be written: {error}"),
            }
        }
    }
}

impl State {
    /// Why the last steps are to be written, if they are.
    fn why(&mut self, step: &Stepped<'_>) -> Option<String> {
        let is_skip = step.outcome == Some(StepOutcome::Skipped);
        self.skips_in_a_row = match is_skip {
            true => self.skips_in_a_row + 1,
            false => 0,
        };
        let is_guarded = step.outcome == Some(StepOutcome::Guarded);
        let had_failed = std::mem::replace(&mut self.has_failed, step.error.is_some());
        let was_guarded = std::mem::replace(&mut self.was_guarded, is_guarded);
        if let Some(error) = step.error {
            return (!had_failed).then(|| format!("the run cannot go on: {error}"));
        }
        if is_guarded {
            return (!was_guarded).then(|| "the guard held a step back".to_string());
        }
        (self.skips_in_a_row == REPEATED).then(|| "two steps in a row were skipped".to_string())
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::LinearConfig,
        optim::{GradientsParams, SgdConfig},
        tensor::{Device, Tensor},
    };
    use burn_amp::{MixedPrecision, ScaledOptimizer};

    use super::STEPS;
    use crate::{FlightRecorder, probe};

    thread_local! {
        /// How often this thread has waited for a device.
        pub(super) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn a_clean_step_reads_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::flex().autodiff();
        let amp = MixedPrecision::f16();
        let recorder = FlightRecorder::new(folder.path(), &amp).unwrap();
        let linear = LinearConfig::new(4, 4).init(&device);
        let mut model = linear.apply_reparameterization(amp.clone());
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
        for _ in 0..2 * STEPS {
            let output = amp.autocast(Tensor::<2>::ones([2, 4], &device), |x| {
                let x = probe("output", model.forward(x));
                // Of a tensor that needs no gradient nothing is to be seen.
                probe("constant", x.clone().detach()) + x
            });
            let grads = GradientsParams::from_grads(output.mean().backward(), &model);
            model = optim.step(0.1, model, grads);
        }
        assert_eq!(READS.get(), 0);
        recorder.write().unwrap();
        assert_eq!(READS.get(), STEPS);
        recorder.write().unwrap();
        assert_eq!(READS.get(), STEPS, "what was read is kept");
    }
}
