//! Workers of one training, in every order in which their threads may come. What is decided on an iteration is the same in all.
//!
//! As in `ExecutionStrategy::ddp`, which this Burn has on CUDA alone: each has a learner of its own, and their gradients are summed, here through channels.
//! And as in `ExecutionStrategy::multi`, where one step is made with the gradients of all.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::support::*;
use burn_amp_tests::trial::ByHand;

/// What two workers meet in four iterations: nothing (`.`), a loss that is NaN (`?`), gradients that are too large once they are scaled (`!`). The steps
/// that are skipped, those of them for a bad loss, and the scale before each iteration and after the last. Each skip has one cause: of two workers' the
/// loss.
const CASES: &str = "
.. .. .. .. > 0 0 > 1024 1024 2048 2048 4096
.. .? .. .. > 1 1 > 1024 1024 1024 2048 2048
.. .! .. .. > 1 0 > 1024 1024 512 512 1024
.. ?! .. .. > 1 1 > 1024 1024 1024 2048 2048
.. !! .? .. > 2 1 > 1024 1024 512 512 512
.? !. ?. .! > 4 2 > 1024 1024 512 512 256
";

/// What the first worker does (`a`: steps, `A`: computes gradients), and the second one (`b`, `B`), between two iterations.
const TURNS: [&str; 6] = ["aAbB", "abAB", "abBA", "baAB", "baBA", "bBaA"];

/// Every order between two iterations, and some of all.
fn orders() -> impl Iterator<Item = String> {
    let mixed = (0..12).map(|seed| [seed, 5 * seed + 1, 7 * seed + 2]);
    let same = (0..TURNS.len()).map(|turn| [turn; 3]);
    same.chain(mixed).enumerate().map(|(index, turns)| {
        let [first, last] = match index % 2 {
            0 => ["AB", "ba"],
            _ => ["BA", "ab"],
        };
        let turns = turns.map(|turn| TURNS[turn % TURNS.len()]);
        format!("{first}{}{last}", turns.concat())
    })
}

type Call = Box<dyn FnOnce(&mut Learner<Scaled<Net>>) + Send>;

/// A thread with a learner of its own.
struct Worker(Sender<Call>);

impl Worker {
    fn new(mut learner: Learner<Scaled<Net>>) -> Self {
        let (to, calls) = channel::<Call>();
        thread::spawn(move || {
            learner.fork(&device());
            calls.into_iter().for_each(|call| call(&mut learner));
        });
        Self(to)
    }

    /// What comes of a call there.
    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Learner<Scaled<Net>>) -> T + Send + 'static,
    ) -> T {
        let (answer, from) = channel();
        let call = move |learner: &mut _| answer.send(call(learner)).unwrap();
        self.0.send(Box::new(call)).unwrap();
        from.recv_timeout(Duration::from_secs(20)).unwrap()
    }
}

/// The gradients of a pass, for each worker, since a clone has a container of its own.
fn pass(learner: &mut Learner<Scaled<Net>>, batch: Batch) -> [Option<GradientsParams>; 2] {
    let model = learner.model();
    let own = learner.train_step(batch).grads;
    let own = ByHand::of((*model).clone(), at_scale(1.0)).unscale(own);
    [Some(own.clone().into_params()), Some(own.into_params())]
}

/// The counters of a worker after its step, and its parameters.
type Shown = (StepCounters, Vec<Values>);

/// A step with the gradients of all.
fn step_with(learner: &mut Learner<Scaled<Net>>, all: [GradientsParams; 2]) -> Shown {
    let mut sum = GradientsAccumulator::new();
    for grads in all {
        sum.accumulate(&learner.model(), grads);
    }
    learner.lr_step();
    learner.optimizer_step(sum.grads());
    let model = learner.model();
    (model.scaler().counters(), values(&model))
}

/// What a run comes to: the scale with which each pass was made, and at the end; and what each worker shows after each step.
type Course = ([Vec<f32>; 2], [Vec<Shown>; 2]);

fn run(order: &str, faults: &str, made: fn(&MixedPrecision) -> Made) -> Course {
    let config = at_scale(1024.0).with_growth_interval(2);
    let amp = Run::default().with_config(config).amp();
    let learner = made(&amp).unwrap();
    let workers = [0, 1].map(|_| Worker::new(learner.clone()));
    let all = batches(&samples(16));
    let (mut scales, mut shown) = Course::default();
    let mut made: [Vec<[Option<GradientsParams>; 2]>; 2] = Default::default();
    for turn in order.bytes() {
        let own = usize::from(turn.eq_ignore_ascii_case(&b'b'));
        if turn.is_ascii_uppercase() {
            let fault = faults.as_bytes()[3 * made[own].len() + own];
            let mut batch = all[own].clone();
            batch.gain = batch.gain
                * match fault {
                    b'?' => f32::NAN,
                    b'!' => overflow(1e30),
                    _ => 1.0,
                };
            scales[own].push(amp.loss_scale());
            made[own].push(workers[own].call(|learner| pass(learner, batch)));
        } else {
            let iteration = shown[own].len();
            let both = made.each_mut().map(|of| of[iteration][own].take().unwrap());
            shown[own].push(workers[own].call(|learner| step_with(learner, both)));
        }
    }
    for used in &mut scales {
        used.push(amp.loss_scale());
    }
    (scales, shown)
}

#[test]
fn an_iteration_of_workers_is_decided_once() {
    for made in [burns, fused] {
        for [faults, skips, scales] in rows(CASES) {
            let mut first = None;
            for order in orders() {
                let (used, shown) = run(&order, faults, made);
                let used = used.map(|used| used.iter().map(f32::to_string).collect::<Vec<_>>());
                let used = used.map(|used| used.join(" "));
                assert_eq!(used, [scales; 2], "{faults}, {order}");
                assert!(shown[0] == shown[1], "{faults}, {order}");
                let counters = shown[0].last().unwrap().0;
                let found = format!("{} {}", counters.skipped(), counters.bad_losses());
                assert_eq!(found, skips, "{faults}, {order}");
                let first = first.get_or_insert_with(|| shown.clone());
                assert!(*first == shown, "{faults}, {order}");
            }
        }
    }
}

/// Where one step is made with the gradients of two workers, one of which has a bad loss and the other an overflow.
#[test]
fn one_step_of_two_workers_has_one_cause() {
    for order in [[0, 1], [1, 0]] {
        let amp = Run::default().with_config(at_scale(1024.0)).amp();
        let mut learner = burns(&amp).unwrap();
        let all = batches(&samples(16));
        let grads = order.map(|index| {
            let (model, mut batch) = (learner.model().fork(&device()), all[index].clone());
            batch.gain = batch.gain * [f32::NAN, overflow(1e30)][index];
            let pass = thread::spawn(move || TrainStep::step(&model, batch).grads);
            pass.join().unwrap()
        });
        let (counters, _) = step_with(&mut learner, grads);
        let found = (counters.skipped(), counters.bad_losses(), amp.loss_scale());
        assert_eq!(found, (1, 1, 1024.0), "{order:?}");
    }
}
