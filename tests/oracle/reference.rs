//! A run by hand, in f32: multiply by the scale, test, step. Everything of it can be checked by reading.
//!
//! The model is `y = x * w`. Slopes and inputs are powers of two, so that f16 rounds nothing: the gradient is `slope * x`, or infinite where
//! that times the scale is more than f16 holds.

use crate::executor::{Executor, Gain, INPUT, LR};
use crate::program::{Action, BESIDE, Counts, Pass, Program, Shape, Shown};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_amp::StepOutcome;

#[derive(Clone)]
pub struct Reference {
    program: Program,
    model: Gain,
    optim: ModuleOptimizer,
    scale: f32,
    tracker: u32,
    interval: u32,
    counters: Counts,
    outcome: Option<StepOutcome>,
    window: Vec<Found>,
    /// Why its passes have overflowed, in their order, and those between them that nobody has tested.
    window_skips: Vec<Cause>,
    /// Why passes have overflowed that are in no window.
    skips: Vec<Cause>,
    /// What gradients were that are tested and dropped, until the next call counts them.
    dropped: Vec<Option<Cause>>,
    saved: Option<Box<Reference>>,
}

/// What a backward pass gives.
#[derive(Clone, Copy)]
struct Found {
    gradient: [f32; 4],
    skip: Option<Cause>,
}

#[derive(Clone, Copy, PartialEq)]
enum Cause {
    Scale,
    Loss,
}

impl Reference {
    pub fn new(program: &Program) -> Self {
        Self {
            program: program.clone(),
            model: Gain::new(),
            optim: AdamConfig::new().init(),
            scale: 2f32.powi(program.scale),
            tracker: 0,
            interval: program.growth_interval,
            counters: Counts::default(),
            outcome: None,
            window: Vec::new(),
            window_skips: Vec::new(),
            skips: Vec::new(),
            dropped: Vec::new(),
            saved: None,
        }
    }

    fn found(&self, pass: Pass) -> Found {
        let slope = pass.slope.value();
        let beside = match pass.shape {
            Shape::First | Shape::Last => 2f32.powi(BESIDE),
            _ => 0.0,
        };
        // A chain is two products with the input.
        let times = if pass.shape == Shape::Chained { 2 } else { 1 };
        let fits = |value: f32| (value * self.scale).abs() < 65520.0;
        let all_fit = (0..=times).all(|power| INPUT.iter().all(|x| fits(slope * x.powi(power))));
        let skip = match slope.is_finite() {
            false => Some(Cause::Loss),
            true => (!all_fit).then_some(Cause::Scale),
        };
        let gradient = INPUT.map(|x| slope * x.powi(times) + beside * x);
        Found { gradient, skip }
    }

    /// A step with the mean of the window.
    fn step(&mut self) {
        let window = std::mem::take(&mut self.window);
        let skip = cause(&std::mem::take(&mut self.window_skips), &window);
        // What came before explains nothing that comes after.
        self.skips.clear();
        self.counters.steps += 1;
        self.outcome = Some(StepOutcome::Skipped);
        if let Some(cause) = skip {
            self.counters.skipped += 1;
            return self.overflowed(cause);
        }
        self.counters.judged += u64::from(self.program.rejects.is_some());
        if self
            .program
            .rejects
            .is_some_and(|every| self.counters.judged.is_multiple_of(every))
        {
            self.counters.rejected += 1;
            self.outcome = Some(StepOutcome::Guarded);
            return;
        }
        let mean = |i: usize| {
            window.iter().map(|found| found.gradient[i]).sum::<f32>() / window.len() as f32
        };
        let limit = self.program.limit.unwrap_or(f32::INFINITY);
        self.update(std::array::from_fn(|i| mean(i).clamp(-limit, limit)));
        self.outcome = Some(StepOutcome::Stepped);
        self.finite();
    }

    fn pass(&mut self, pass: Pass) -> Found {
        let found = self.found(pass);
        self.skips.extend(found.skip);
        found
    }

    fn overflowed(&mut self, cause: Cause) {
        if cause == Cause::Loss {
            self.counters.bad_losses += 1;
        } else {
            self.counters.skips_in_a_row += 1;
            (self.scale, self.tracker) = (self.scale / 2.0, 0);
        }
    }

    fn finite(&mut self) {
        self.counters.skips_in_a_row = 0;
        self.tracker += 1;
        if self.tracker >= self.interval {
            (self.scale, self.tracker) = (self.scale * 2.0, 0);
        }
    }

    /// Counts what was tested and dropped.
    fn count_dropped(&mut self) {
        for skip in std::mem::take(&mut self.dropped) {
            self.counters.discarded += 1;
            match skip {
                Some(cause) => self.overflowed(cause),
                None => self.finite(),
            }
        }
    }

    fn update(&mut self, gradient: [f32; 4]) {
        let mut grads = GradientsParams::new();
        grads.register(
            self.model.w.id,
            Tensor::<1>::from_floats(gradient, &Device::flex()),
        );
        self.model = self.optim.step(LR, self.model.clone(), grads);
    }
}

/// Why gradients cannot be stepped with. What happened first counts, in passes that nobody has tested too.
fn cause(skips: &[Cause], tested: &[Found]) -> Option<Cause> {
    let own = tested.iter().find_map(|found| found.skip)?;
    Some(skips.first().copied().unwrap_or(own))
}

impl Executor for Reference {
    fn act(&mut self, action: &Action) {
        // The pass is over before the call that counts what was dropped before.
        let found = match *action {
            Action::Train(pass)
            | Action::Discard(pass)
            | Action::Look(pass)
            | Action::Untested(pass) => Some(self.pass(pass)),
            _ => None,
        };
        if matches!(
            action,
            Action::Train(_) | Action::Discard(_) | Action::Look(_) | Action::Flush
        ) {
            self.count_dropped();
        }
        match *action {
            Action::Train(_) => {
                self.window.extend(found);
                self.window_skips.append(&mut self.skips);
                self.outcome = Some(StepOutcome::Accumulated);
                if self.window.len() == self.program.micro_batches as usize {
                    self.step();
                }
            }
            Action::Discard(_) => {
                self.counters.discarded += 1;
                self.skips.clear();
                self.outcome = Some(StepOutcome::Dropped);
            }
            Action::Look(_) => {
                let skip = cause(&std::mem::take(&mut self.skips), found.as_slice());
                self.dropped.push(skip);
            }
            // A run that was changed gets all its skips again.
            Action::Scale(exponent) => {
                (self.scale, self.counters.skips_in_a_row) = (2f32.powi(exponent), 0);
            }
            Action::Flush if self.window.is_empty() => {
                self.outcome = Some(StepOutcome::NoGradients)
            }
            Action::Flush => self.step(),
            Action::Save => self.saved = Some(Box::new(self.clone())),
            Action::Load => {
                if let Some(saved) = &self.saved {
                    // Settings are the program's; where they are others, it gets all its skips again.
                    let (model, interval) = (self.model.clone(), self.program.growth_interval);
                    let saved = Some(saved.clone());
                    *self = Self {
                        model,
                        saved,
                        ..*self.saved.clone().unwrap()
                    };
                    if std::mem::replace(&mut self.interval, interval) != interval {
                        self.counters.skips_in_a_row = 0;
                    }
                    // A record does not hold these, nor why a window's passes have overflowed.
                    self.dropped.clear();
                    self.skips.clear();
                    self.window_skips.clear();
                    for found in &mut self.window {
                        found.skip = found.skip.and(Some(Cause::Scale));
                    }
                    self.outcome = None;
                }
            }
            Action::Interval(interval) => self.interval = interval,
            // A clone does not count what its original has dropped.
            Action::Clone => self.dropped.clear(),
            Action::Untested(_) | Action::Validate | Action::Wait => {}
        }
    }

    fn shown(&mut self, _: bool) -> Option<Shown> {
        Some(Shown {
            parameters: self.model.bits(),
            scale: self.scale,
            tracker: self.tracker,
            counters: self.counters,
            outcome: self.outcome,
        })
    }
}
