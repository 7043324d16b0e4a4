//! A run by hand, in f32: multiply by the scale, test, step. Everything of it can be checked by reading.
//!
//! The model is `y = x * w`. Slopes and inputs are powers of two, so that f16 rounds nothing: the gradient is `slope * x`, or infinite where
//! that times the scale is more than f16 holds. It does not depend on `w`: what is stale changes a run by its scale alone.

mod gradients;
mod scale;

use crate::executor::Executor;
use crate::model::{Gain, RATE, burns, is_divided};
use crate::program::{Action, Counts, Hooks, Pass, Program, Setting, Shape, Shown};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use burn_amp::StepOutcome;
use burn_amp_tests::{Pack, flex, numbers, state};
use gradients::{Cause, Evidence, Found, Skip, clipped, evidence, mean, sum};
use scale::{Factor, Scale, Settings};

#[derive(Clone)]
pub struct Reference {
    program: Program,
    own: Player,
    /// The optimizer that the program has swapped with; none before.
    other: Option<Player>,
    /// How many players there were so far.
    players: u32,
    rate: f64,
    scale: Scale,
    /// That of the next update, whatever its gradients are.
    next_scale: Option<f32>,
    /// Why passes have overflowed that are in no window.
    skips: Vec<Skip>,
    saved: Option<Box<Reference>>,
    pipeline: Option<Pipeline>,
    /// How many have a part of each batch. What they decide is what one decides that has all of it, unless several things go wrong at once: nobody
    /// knows on which rank it was first, and the most severe counts.
    ranks: usize,
}

/// An optimizer, and its model.
#[derive(Clone)]
struct Player {
    number: u32,
    model: Gain,
    optim: ModuleOptimizer,
    average: Option<[f32; 4]>,
    judged: u64,
    counters: Counts,
    outcome: Option<StepOutcome>,
    window: Vec<Found>,
    /// Why its passes have overflowed, in their order, and those between them that nobody has tested.
    window_skips: Vec<Skip>,
    /// What gradients were that are tested and dropped, until the next call counts them.
    dropped: Vec<Evidence>,
}

impl Player {
    fn new(number: u32, model: Gain) -> Self {
        Self {
            number,
            model,
            optim: burns(),
            average: None,
            judged: 0,
            counters: Counts::default(),
            outcome: None,
            window: Vec::new(),
            window_skips: Vec::new(),
            dropped: Vec::new(),
        }
    }
}

/// What the training knows of a pipeline that is stale.
#[derive(Clone)]
struct Pipeline {
    /// What it computes with: the state after the last update that it has received.
    received: Shown,
    /// The state after the update in flight.
    in_flight: Option<Shown>,
}

impl Reference {
    pub fn new(program: &Program, is_stale: bool, ranks: usize) -> Self {
        let mut new = Self {
            program: program.clone(),
            own: Player::new(0, Gain::on(&flex())),
            other: None,
            players: 1,
            next_scale: None,
            rate: RATE,
            scale: Scale::new(2f32.powi(program.scale), program.growth_interval),
            skips: Vec::new(),
            saved: None,
            pipeline: None,
            ranks,
        };
        new.pipeline = is_stale.then(|| Pipeline {
            received: new.now(),
            in_flight: None,
        });
        new
    }

    fn now(&self) -> Shown {
        Shown {
            parameters: self.own.model.bits(),
            scale: self.scale.loss.value,
            tracker: self.scale.loss.tracker,
            region: self.scale.region.value,
            counters: self.own.counters,
            outcome: self.own.outcome,
            hooks: Some(Hooks {
                judged: self.own.judged,
                average: self
                    .own
                    .average
                    .map(|values| values.map(f32::to_bits).to_vec()),
            }),
        }
    }

    /// A step with the mean of the window.
    fn step(&mut self) {
        if let Some(pipeline) = &mut self.pipeline {
            let before = pipeline.in_flight.take();
            pipeline.received = before.unwrap_or_else(|| pipeline.received.clone());
        }
        let before = self.scale.loss.tracker;
        self.update_or_skip();
        let is_update = self.own.outcome != Some(StepOutcome::NoGradients);
        if let Some(value) = self.next_scale.take_if(|_| is_update) {
            self.scale.loss = Factor {
                value,
                tracker: before,
            };
            self.own.counters.skips_in_a_row = 0;
        }
        let now = self.now();
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.in_flight = Some(now);
        }
    }

    fn update_or_skip(&mut self) {
        let window = std::mem::take(&mut self.own.window);
        let skips = std::mem::take(&mut self.own.window_skips);
        let seen = evidence(&skips, &window);
        // What came before explains nothing that comes after. Where each micro-batch was tested, that has cleared it.
        if !self.program.drops || seen == Evidence::Nothing {
            self.skips.clear();
        }
        self.own.counters.steps += 1;
        if let Evidence::Overflow(_) = seen {
            self.own.counters.skipped += 1;
            self.own.outcome = Some(StepOutcome::Skipped);
            return self.advance(seen);
        }
        let is_finite = matches!(seen, Evidence::Finite | Evidence::Zeros);
        let (is_rejected, factor) = self.judged(is_finite);
        if is_rejected {
            self.own.counters.rejected += 1;
            self.own.outcome = Some(StepOutcome::Guarded);
            return self.advance(Evidence::Rejected);
        }
        self.own.outcome = Some(StepOutcome::NoGradients);
        if is_finite {
            let gradient = match self.program.sums {
                true => sum(&window),
                false => mean(&window),
            };
            self.update(clipped(gradient, self.program.clip, factor));
            self.own.outcome = Some(StepOutcome::Stepped);
        }
        if !self.program.drops {
            self.advance(seen);
        }
        if self.program.averages {
            let new: [f32; 4] = numbers(&self.own.model)[..4].try_into().unwrap();
            let old = self.own.average.unwrap_or(new);
            self.own.average = Some(std::array::from_fn(|i| 0.5 * old[i] + 0.5 * new[i]));
        }
    }

    /// Tests a micro-batch as it comes, and moves the scale at once. Whether it is left out.
    fn is_dropped(&mut self, found: Found) -> bool {
        let seen = evidence(&self.skips, &[found]);
        if seen != Evidence::Nothing {
            self.skips.clear();
        }
        self.advance(seen);
        let is_dropped = matches!(seen, Evidence::Overflow(_));
        if is_dropped {
            self.own.counters.dropped += 1;
            self.own.outcome = Some(StepOutcome::Dropped);
        }
        is_dropped
    }

    /// Whether the hook rejects a step, and what it multiplies its gradients by.
    fn judged(&mut self, is_finite: bool) -> (bool, f32) {
        let Program {
            rejects, halves, ..
        } = self.program;
        if !is_finite || rejects.or(halves).is_none() {
            return (false, 1.0);
        }
        self.own.judged += 1;
        let [rejects, halves] = [rejects, halves].map(|every| is_divided(self.own.judged, every));
        (rejects, if halves { 0.5 } else { 1.0 })
    }

    fn pass(&mut self, pass: Pass) -> Found {
        self.scale.is_region_open |= pass.shape == Shape::Region;
        let [scale, region] = match &self.pipeline {
            Some(pipeline) => [pipeline.received.scale, pipeline.received.region],
            None => [self.scale.loss.value, self.scale.region.value],
        };
        let found = Found::by_hand(pass, scale, region, self.ranks);
        self.skips
            .extend(Some(found.skip).filter(|skip| skip.iter().any(Option::is_some)));
        found
    }

    /// Counts what a step has seen of the scale, and moves it.
    fn advance(&mut self, seen: Evidence) {
        let counters = &mut self.own.counters;
        match seen {
            Evidence::Overflow(Cause::Loss) => counters.bad_losses += 1,
            Evidence::Overflow(_) => counters.skips_in_a_row += 1,
            Evidence::Finite | Evidence::Zeros => counters.skips_in_a_row = 0,
            Evidence::Rejected | Evidence::Nothing => {}
        }
        let other = self.other.iter().map(|player| player.number);
        self.scale.advance(seen, self.own.number, other);
    }

    /// Goes on with the other optimizer.
    fn swap(&mut self) {
        let other = self.other.take().unwrap_or_else(|| {
            self.players += 1;
            Player::new(self.players - 1, Gain::other_on(&flex()))
        });
        self.other = Some(std::mem::replace(&mut self.own, other));
    }

    /// Throws the window away.
    fn clear(&mut self) {
        self.own.window.clear();
        self.own.window_skips.clear();
    }

    /// Counts what was tested and dropped.
    fn count_dropped(&mut self) {
        for seen in std::mem::take(&mut self.own.dropped) {
            self.own.counters.discarded += 1;
            self.advance(seen);
        }
    }

    /// A call that makes no step.
    fn enter(&mut self, outcome: StepOutcome) {
        self.own.outcome = Some(outcome);
        if let Some(pipeline) = &mut self.pipeline {
            pipeline.received.outcome = Some(outcome);
        }
    }

    /// The training waits for all that is in flight. It has the outcome of the last update that it has received.
    fn receive(&mut self) {
        let now = self.now();
        if let Some(pipeline) = &mut self.pipeline {
            let last = pipeline.in_flight.take();
            let outcome = match last {
                _ if !self.own.window.is_empty() => now.outcome,
                Some(last) => last.outcome,
                None => pipeline.received.outcome,
            };
            pipeline.received = Shown { outcome, ..now };
        }
    }

    /// Goes on from what was saved, in a fresh state. Settings are the program's, and so is the model, unless the record has it: that of a
    /// pipeline whose model was behind.
    fn load(&mut self) {
        let Some(saved) = self.saved.clone() else {
            return;
        };
        let is_behind = |pipeline: &Pipeline| pipeline.in_flight.is_some();
        let model = match saved.pipeline.as_ref().is_some_and(is_behind) {
            true => saved.own.model.clone(),
            false => self.own.model.clone(),
        };
        let (settings, rate) = (Settings::new(self.program.growth_interval), self.rate);
        let kept = Some(saved.clone());
        *self = Self {
            rate,
            saved: kept,
            ..*saved
        };
        self.own.model = model;
        // Where settings are others, it gets all its skips again.
        if std::mem::replace(&mut self.scale.settings, settings) != settings {
            self.own.counters.skips_in_a_row = 0;
        }
        // A record does not hold these.
        (self.next_scale, self.own.dropped) = (None, Vec::new());
        self.skips.clear();
        self.own.outcome = None;
        let now = self.now();
        if let Some(pipeline) = &mut self.pipeline {
            (pipeline.received, pipeline.in_flight) = (now, None);
        }
    }

    fn set(&mut self, setting: Setting) {
        let (loss, settings) = (&mut self.scale.loss, &mut self.scale.settings);
        match setting {
            // A run that was changed gets all its skips again.
            Setting::Scale(exponent) => {
                loss.value = 2f32.powi(exponent);
                self.own.counters.skips_in_a_row = 0;
            }
            Setting::Interval(interval) => settings.interval = interval,
            Setting::Growth(exponent) => settings.growth = 2f32.powi(exponent),
            Setting::Backoff(exponent) => settings.backoff = 2f32.powi(-exponent),
            Setting::Tracker(steps) if steps < settings.interval => loss.tracker = steps,
            Setting::Tracker(_) => {}
        }
    }

    fn update(&mut self, gradient: [f32; 4]) {
        let mut grads = GradientsParams::new();
        grads.register(
            self.own.model.w.id,
            Tensor::<1>::from_floats(gradient, &Device::flex()),
        );
        self.own.model = self
            .own
            .optim
            .step(self.rate, self.own.model.clone(), grads);
    }
}

impl Executor for Reference {
    fn act(&mut self, action: &Action) {
        // The pass is over before the call that counts what was dropped before.
        let found = action.pass().map(|pass| self.pass(pass));
        if matches!(
            action,
            Action::Train(_) | Action::Discard(_) | Action::Unscale(_) | Action::Flush
        ) {
            self.count_dropped();
        }
        match *action {
            Action::Train(_)
                if self.program.drops && found.is_some_and(|found| self.is_dropped(found)) => {}
            Action::Train(_) => {
                self.own.window.extend(found);
                self.own.window_skips.append(&mut self.skips);
                match self.own.window.len() == self.program.micro_batches as usize {
                    true => self.step(),
                    false => self.enter(StepOutcome::Accumulated),
                }
            }
            Action::Discard(_) => {
                self.own.counters.discarded += 1;
                self.skips.clear();
                self.own.outcome = Some(StepOutcome::Dropped);
            }
            Action::Unscale(_) => {
                let seen = evidence(&std::mem::take(&mut self.skips), found.as_slice());
                self.own.dropped.push(seen);
            }
            Action::Set(setting) => self.set(setting),
            Action::Flush if self.own.window.is_empty() => self.enter(StepOutcome::NoGradients),
            Action::Flush => self.step(),
            Action::Save => self.saved = Some(Box::new(self.clone())),
            Action::Load => self.load(),
            Action::Clear => self.clear(),
            Action::Replace(exponent) => self.next_scale = Some(2f32.powi(exponent)),
            Action::Rate(exponent) => self.rate = 2f64.powi(exponent),
            // A clone does not count what its original has dropped.
            Action::Clone => self.own.dropped.clear(),
            Action::Swap => self.swap(),
            Action::Drop => self.other = None,
            Action::Wait => self.receive(),
            Action::Untested(_) | Action::Validate => {}
        }
    }

    fn shown(&mut self, is_end: bool) -> Option<Shown> {
        if is_end {
            self.receive();
        }
        Some(match &self.pipeline {
            Some(pipeline) => pipeline.received.clone(),
            None => self.now(),
        })
    }

    /// That of Burn's optimizer alone.
    fn record(&mut self) -> Option<Pack> {
        Some(state(&self.own.optim))
    }
}
