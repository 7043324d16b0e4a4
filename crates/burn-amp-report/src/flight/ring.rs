//! The last steps, on the device until they are asked for.

use burn::tensor::Tensor;
use burn_amp_core::internal::observe::{self, Observer, Stepped, locked, scale_here};
use burn_amp_core::{StepOutcome, UnscaledGradients};
use burn_amp_kernels::{Watch, watched_cast};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{collections::VecDeque, time::Instant};

use super::page;
use super::step::{Host, Overflow, Passed, Step, read_steps};
use crate::place::{Names, by_exponent, dtype_name};
use crate::{error::ReportError, file};

/// Steps that are kept.
pub(super) const STEPS: usize = 21;
/// Tensors that are remembered of one step: of graphs that nobody steps on, the oldest are forgotten.
const MAX_PASSED: usize = 4096;

/// The last steps, as a recorder keeps them.
pub(crate) struct Ring {
    pub(super) folder: PathBuf,
    /// The tensors that pass the probes between two steps, shared with the graphs.
    passed: Arc<Mutex<VecDeque<Passed>>>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    steps: VecDeque<Step>,
    /// Steps so far.
    count: u64,
    /// The optimizers that have made the last step, which is that of all in an iteration, while others may still take part.
    open: Vec<u64>,
    /// The number of steps from one count of gradients by exponent to the next; 0 for never.
    pub(super) count_every: u32,
    /// Probes of the step that is under way.
    names: Names,
    /// The step that is under way, as far as it is known.
    pub(super) next: Host,
    log: File,
    /// Set where the last line was not written in full: the next one begins anew.
    is_cut: bool,
    last: Instant,
    pub(super) written: Vec<PathBuf>,
}

impl Ring {
    pub(super) fn new(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join("steps.jsonl");
        let recorded = read_steps(&path)?.steps;
        let count = recorded.last().map_or(0, |step| step.step);
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
            state: Mutex::new(State {
                steps: VecDeque::with_capacity(STEPS),
                count,
                open: Vec::new(),
                count_every: 0,
                names: Names::default(),
                next: Host::default(),
                log,
                is_cut: false,
                last: Instant::now(),
                written: Vec::new(),
            }),
        })
    }

    /// Measures a tensor and its gradient on the way back.
    pub(crate) fn probe<const D: usize>(&self, name: &str, x: Tensor<D>) -> Tensor<D> {
        if !x.is_tracked() {
            return x;
        }
        let dtype = x.dtype();
        let scale = scale_here(dtype);
        let names = &mut locked(&self.state).names;
        let (order, name) = (names.count, names.next(name));
        let passed = self.passed.clone();
        let watch = Watch::new(move |event| {
            let mut passed = locked(&passed);
            if passed.len() == MAX_PASSED {
                passed.pop_front();
            }
            passed.push_back(Passed {
                name: name.clone(),
                order,
                scale,
                dtype: dtype_name(dtype),
                event,
            });
        });
        watched_cast(x, dtype.into(), 1.0, &watch)
    }
}

impl State {
    /// Reads the last steps and writes them down.
    pub(super) fn write(&mut self, folder: &Path, why: &str) -> Result<PathBuf, ReportError> {
        let steps = self.steps.make_contiguous();
        steps.iter_mut().for_each(Step::read);
        let step = self.count;
        let flight = page::Flight::of(step, why, steps);
        let path = folder.join(format!("flight-{step}.json"));
        let json = serde_json::to_string_pretty(&flight).expect("names and numbers");
        file::write(&path, &json)?;
        let path = folder.join(format!("flight-{step}.html"));
        file::write(&path, &flight.render())?;
        if !self.written.contains(&path) {
            self.written.push(path.clone());
        }
        Ok(path)
    }
}

impl Observer for Ring {
    fn tested(&self, grads: &UnscaledGradients, loss_scale: f32) {
        let mut state = locked(&self.state);
        state.next.loss_scale = Some(loss_scale.into());
        let overflows = observe::overflow_counts(grads).map(|(parameter, values)| Overflow {
            parameter: parameter.to_string(),
            values,
        });
        state.next.overflows = overflows.collect();
        state.next.blamed_loss = observe::is_loss_the_cause(grads);
        let every = u64::from(state.count_every);
        let done = state.count - u64::from(!state.open.is_empty());
        if every > 0 && done.is_multiple_of(every) {
            // A device that lacks the dtype has refused the step before.
            let counts = observe::histogram(grads).unwrap_or_default();
            state.next.exponents = by_exponent(&counts);
            state.next.exponents.retain(|(_, count)| *count > 0);
        }
    }

    fn stepped(&self, step: Stepped<'_>) {
        // Inside a window nothing is over yet.
        if step.outcome == Some(StepOutcome::Accumulated) && step.error.is_none() {
            return;
        }
        let passed = std::mem::take(&mut *locked(&self.passed));
        let state = &mut *locked(&self.state);
        let was_bad = state.begin(step.optimizer, &self.folder);
        state.take(&step, passed.into());
        if let Some(why) = state.why().filter(|_| !was_bad) {
            match state.write(&self.folder, &why) {
                Ok(path) => burn_amp_core::warn!("{why}: the last steps are in {}", path.display()),
                Err(error) => burn_amp_core::warn!("the last steps cannot be written: {error}"),
            }
        }
        if !step.is_iteration_open || step.error.is_some() {
            state.end(&self.folder);
        }
    }
}

/// Others take no part any more.
impl Drop for Ring {
    fn drop(&mut self) {
        locked(&self.state).end(&self.folder);
    }
}

impl State {
    /// A call of this optimizer: of the step that is open, or of a new one. Whether that was written down already.
    fn begin(&mut self, optimizer: u64, folder: &Path) -> bool {
        if self.open.is_empty() || self.open.contains(&optimizer) {
            self.end(folder);
            self.count += 1;
            if self.steps.len() == STEPS {
                self.steps.pop_front();
            }
            self.steps.push_back(Step::new(self.count));
        }
        let is_new = self.open.is_empty();
        self.open.push(optimizer);
        !is_new && self.why().is_some()
    }

    /// Takes what a call has done into the step that is open.
    fn take(&mut self, step: &Stepped<'_>, passed: Vec<Passed>) {
        self.names = Names::default();
        let now = Instant::now();
        let seconds = now.duration_since(std::mem::replace(&mut self.last, now));
        let host = Host {
            outcome: match step.outcome {
                Some(outcome) => format!("{outcome:?}").to_lowercase(),
                None => "refused".to_string(),
            },
            // A step that was not tested does not move it.
            loss_scale: self.next.loss_scale.or(Some(step.loss_scale.into())),
            elements: step.status.map_or(0, |status| status.elements()),
            norm: step.status.map(|status| status.norm()),
            max_abs: step.status.map(|status| status.max_abs()),
            zero_share: step.status.map(|status| status.zero_share()),
            seconds: (self.steps.len() > 1).then_some(seconds.as_secs_f64()),
            error: step.error.map(ToString::to_string),
            ..std::mem::take(&mut self.next)
        };
        if let Some(last) = self.steps.back_mut() {
            last.host.join(host);
            last.passed.extend(passed);
        }
    }

    /// Ends the step that is open, if one is: it goes into the log.
    fn end(&mut self, folder: &Path) {
        let Some(last) = self.steps.back().filter(|_| !self.open.is_empty()) else {
            return;
        };
        let mut line = serde_json::to_vec(&last.host).expect("names and numbers");
        line.push(b'\n');
        if self.is_cut {
            line.insert(0, b'\n');
        }
        // A full disk must not end a training: the flight itself says so when it is written.
        let written = self.log.write_all(&line);
        self.is_cut = written.is_err();
        if let Err(error) = written {
            burn_amp_core::warn!("{}: {error}", folder.display());
        }
        self.open.clear();
    }

    /// The reason to write the last steps, if there is one. A row of skips, or of others, is written once.
    fn why(&self) -> Option<String> {
        let mut steps = self.steps.iter().rev();
        let (last, before, earlier) = (steps.next()?, steps.next(), steps.next());
        let is = |step: Option<&Step>, outcome| step.is_some_and(|step| step.is(outcome));
        if let Some(error) = &last.host.error {
            let is_new = before.is_none_or(|before| before.host.error.is_none());
            return is_new.then(|| format!("the run cannot go on: {error}"));
        }
        match last.host.outcome.as_str() {
            "guarded" if !is(before, "guarded") => Some("a hook rejected a step".to_string()),
            "skipped" if is(before, "skipped") && !is(earlier, "skipped") => {
                Some("two steps in a row were skipped".to_string())
            }
            _ => None,
        }
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
        tensor::Device,
    };
    use burn_amp_core::{MixedPrecision, ScaledOptimizer};

    use super::*;
    use crate::{FlightRecorder, flight::step::READS, probe};

    /// A disk that is full for a moment costs the lines of that time, and none of those after it.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_line_that_was_cut_does_not_take_the_next_along() {
        let folder = tempfile::tempdir().unwrap();
        let ring = Ring::new(folder.path()).unwrap();
        let step = |optimizer| {
            ring.stepped(Stepped {
                optimizer,
                is_iteration_open: false,
                outcome: Some(StepOutcome::Stepped),
                loss_scale: 1.0,
                status: None,
                error: None,
            });
        };
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        step(0);
        let log = std::mem::replace(&mut locked(&ring.state).log, full);
        step(0);
        locked(&ring.state).log = log;
        // What was written of the line before that failed.
        locked(&ring.state).log.write_all(b"{\"step\":2,").unwrap();
        step(0);
        let read = read_steps(&folder.path().join("steps.jsonl")).unwrap();
        let steps: Vec<_> = read.steps.iter().map(|step| step.step).collect();
        assert_eq!((steps, read.missing), (vec![1, 3], 1));
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
