//! Burn's `Learner` beside the reference of the oracle, and the other executors: one batch for each pass.

use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};
use burn::train::{InferenceStep, Learner, TrainOutput, TrainStep};
use burn_amp::train::{LearnerExt, LearnerOptimizer, Scaled};
use burn_amp_tests::prelude::*;

use crate::compare::sweep;
use crate::executor::{Executor, LEARNER, WAYS, Way, average, scaler_shown};
use crate::model::{Gain, Judge, RATE, adam, amp, burns, input, loss, with_options};
use crate::program::{Action, Hooks, Need, Pass, Program, Shown};

impl TrainStep for Gain {
    type Input = (MixedPrecision, Pass);
    type Output = ();

    fn step(&self, (amp, pass): Self::Input) -> TrainOutput<()> {
        TrainOutput::new(self, loss(&amp, self, pass).backward(), ())
    }
}

impl InferenceStep for Gain {
    type Input = MixedPrecision;
    type Output = ();

    fn step(&self, amp: MixedPrecision) {
        amp.autocast(input().inner(), |x| x * self.w.val());
    }
}

/// The learning rate that the program has set last.
#[derive(Clone)]
struct Rate(Arc<Mutex<f64>>);

impl LrScheduler for Rate {
    fn step(&mut self) -> f64 {
        *self.0.lock().unwrap()
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new()
    }

    fn load_record(&mut self, _record: LrSchedulerRecord) {}
}

struct Learning {
    amp: MixedPrecision,
    learner: Learner<Scaled<Gain>>,
    rate: Rate,
    /// Whether each step waits for its outcome.
    waits: bool,
}

impl Learning {
    fn new<O: ModuleOptim>(program: &Program, optim: O, waits: bool) -> Self
    where
        ScaledOptimizer<O>: Into<LearnerOptimizer>,
    {
        let (amp, rate) = (amp(program), Rate(Arc::new(Mutex::new(RATE))));
        let optim = with_options(ScaledOptimizer::new(optim, &amp), program);
        let mut learner = amp.learner(Gain::new(), optim, rate.clone()).unwrap();
        // As Burn's training begins.
        learner.fork(&device());
        Self {
            amp,
            learner,
            rate,
            waits,
        }
    }
}

impl Executor for Learning {
    fn act(&mut self, action: &Action) {
        match *action {
            Action::Train(pass) => {
                let output = self.learner.train_step((self.amp.clone(), pass));
                self.learner.lr_step();
                self.learner.optimizer_step(output.grads);
            }
            Action::Untested(pass) => {
                self.learner.train_step((self.amp.clone(), pass));
            }
            Action::Validate => {
                InferenceStep::step(&self.learner.model().valid(), self.amp.clone());
            }
            Action::Rate(exponent) => *self.rate.0.lock().unwrap() = 2f64.powi(exponent),
            Action::Wait => drop(self.learner.model().valid()),
            other => unreachable!("the table leaves {other:?} out"),
        }
    }

    fn shown(&mut self, is_end: bool) -> Option<Shown> {
        if is_end {
            self.amp.run_result().unwrap();
        }
        let model = self.learner.model();
        let known = match (self.waits, is_end) {
            (true, _) => model.clone(),
            (false, false) => return None,
            // That of a validation has the outcomes of all steps.
            (false, true) => model.clone().valid(),
        };
        let judged = known.hook::<Judge>().map_or(0, |hook| hook.judged);
        let average = known.ema().and_then(|ema| average(ema, &model));
        Some(Shown {
            hooks: Some(Hooks { judged, average }),
            ..scaler_shown(&model, known.scaler(), &self.amp)
        })
    }

    /// A `Learner` does not show its optimizer.
    fn record(&mut self) -> Option<Pack> {
        None
    }
}

static LEARNERS: [Way; 2] = [
    Way {
        make: |program| Box::new(Learning::new(program, burns(), true)),
        ..LEARNER
    },
    Way {
        name: "`Learner`, fused",
        make: |program| Box::new(Learning::new(program, Fused::new(adam()), false)),
        ..LEARNER
    },
];

#[test]
fn a_drawn_program_ends_in_a_learner_as_by_every_executor() {
    // On a device, nothing that is drawn needs Adam: see `burns`.
    let tried = &LEARNERS[..if on_flex() { 2 } else { 1 }];
    sweep(tried, &[tried, &WAYS].concat(), 40);
}

#[test]
fn what_the_table_says_that_a_learner_refuses_it_refuses() {
    let mut with_drops = Program::new(2, &[]);
    with_drops.drops = true;
    assert_eq!(LEARNER.refuses, [Need::Dropping]);
    let message = panic_message(|| Learning::new(&with_drops, burns(), true));
    says(&message, ["with_accumulation"]);
}
