//! The last steps, on the device until they are asked for.

use burn::tensor::Tensor;
use burn_amp_core::observe::{self, Observer, Stepped, locked, scale_here};
use burn_amp_core::{StepOutcome, UnscaledGradients};
use burn_amp_kernels::{Watch, watched_cast};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{cmp::Reverse, collections::VecDeque, time::Instant};

use super::page;
use super::step::{Host, Overflow, Passed, Step, read_steps};
use crate::place::{Names, by_exponent, dtype_name};
use crate::{error::ReportError, file};

/// Steps that are kept.
pub(super) const STEPS: usize = 21;
/// Tensors that are remembered of one step: of graphs that nobody steps on, the oldest are forgotten.
const MAX_PASSED: usize = 4096;

/// What a recorder keeps.
pub(crate) struct Ring {
    pub(super) folder: PathBuf,
    /// What passes the probes between two steps, shared with the graphs.
    passed: Arc<Mutex<VecDeque<Passed>>>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    steps: VecDeque<Step>,
    /// Steps so far.
    count: u64,
    /// How often gradients are counted by exponent; 0 for never.
    pub(super) count_every: u32,
    /// Probes of the step that is under way.
    names: Names,
    /// What is known of the step that is under way.
    pub(super) next: Host,
    log: File,
    last: Instant,
    pub(super) written: Vec<PathBuf>,
}

impl Ring {
    pub(super) fn new(folder: &Path) -> Result<Self, ReportError> {
        let path = folder.join("steps.jsonl");
        let count = read_steps(&path)?.last().map_or(0, |step| step.step);
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
                count_every: 0,
                names: Names::default(),
                next: Host::default(),
                log,
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
        let overflows = grads.overflow_counts().map(|(parameter, values)| Overflow {
            parameter: parameter.to_string(),
            values,
        });
        let mut overflows: Vec<_> = overflows.collect();
        overflows.sort_by_key(|overflow| Reverse(overflow.values));
        state.next.overflows = overflows;
        state.next.blamed_loss = observe::is_loss_the_cause(grads);
        let every = u64::from(state.count_every);
        if every > 0 && state.count.is_multiple_of(every) {
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
        state.count += 1;
        state.names = Names::default();
        let now = Instant::now();
        let seconds = now.duration_since(std::mem::replace(&mut state.last, now));
        let host = Host {
            step: state.count,
            outcome: match step.outcome {
                Some(outcome) => format!("{outcome:?}").to_lowercase(),
                None => "refused".to_string(),
            },
            // A step that was not tested does not move it.
            loss_scale: state.next.loss_scale.or(Some(step.loss_scale.into())),
            norm: step.status.map(|status| status.norm()),
            max_abs: step.status.map(|status| status.max_abs()),
            zero_share: step.status.map(|status| status.zero_share()),
            seconds: (!state.steps.is_empty()).then_some(seconds.as_secs_f64()),
            error: step.error.map(ToString::to_string),
            ..std::mem::take(&mut state.next)
        };
        let mut line = serde_json::to_vec(&host).expect("names and numbers");
        line.push(b'\n');
        // A full disk must not end a training: the flight itself says so when it is written.
        if let Err(error) = state.log.write_all(&line) {
            burn_amp_core::warn!("{}: {error}", self.folder.display());
        }
        if state.steps.len() == STEPS {
            state.steps.pop_front();
        }
        state.steps.push_back(Step {
            host,
            probes: Vec::new(),
            passed: passed.into(),
        });
        if let Some(why) = state.why() {
            match state.write(&self.folder, &why) {
                Ok(path) => burn_amp_core::warn!("{why}: the last steps are in {}", path.display()),
                Err(error) => burn_amp_core::warn!("the last steps cannot be written: {error}"),
            }
        }
    }
}

impl State {
    /// Why the last steps are to be written, if they are. A row of skips, or of others, is written once.
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
        tensor::{Device, Tensor},
    };
    use burn_amp_core::{MixedPrecision, ScaledOptimizer};

    use super::STEPS;
    use crate::{FlightRecorder, flight::step::READS, probe};

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
