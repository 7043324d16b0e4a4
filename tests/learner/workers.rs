//! Workers of one training, in every order in which their threads may come. What is decided on an iteration is the same in all.
//!
//! As in `ExecutionStrategy::ddp`, which this Burn has on CUDA alone: each has a learner of its own, and their gradients are summed, here through channels.
//! And as in `ExecutionStrategy::multi`, where one step is made with the gradients of all.

use rayon::ThreadPoolBuilder;
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

/// A run: the scales with which each worker has made its passes, and that at the end; and what each shows after each step.
fn run(order: &str, faults: &str, made: fn(&MixedPrecision) -> Made) -> [(String, Vec<Shown>); 2] {
    let config = at_scale(1024.0).with_growth_interval(2);
    let amp = Run::of(1).with_config(config).amp();
    let learner = made(&amp).unwrap();
    // Each works on a thread of its own.
    let mut workers = [(); 2].map(|()| {
        let mut learner = learner.clone();
        let thread = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        thread.install(|| learner.fork(&device()));
        (thread, learner)
    });
    let all = batches(&samples(16));
    let mut course = <[(String, Vec<Shown>); 2]>::default();
    let mut made: [Vec<UnscaledGradients>; 2] = Default::default();
    for turn in order.bytes() {
        let own = usize::from(turn.eq_ignore_ascii_case(&b'b'));
        let ((thread, learner), (scales, shown)) = (&mut workers[own], &mut course[own]);
        if turn.is_ascii_uppercase() {
            let mut batch = all[own].clone();
            batch.gain = match faults.as_bytes()[3 * made[own].len() + own] {
                b'?' => f32::NAN,
                b'!' => overflow(1e30),
                _ => 1.0,
            };
            *scales += &format!("{} ", amp.loss_scale());
            // A clone of these has a container of its own.
            made[own].push(thread.install(|| {
                let own = learner.train_step(batch).grads;
                ByHand::of((*learner.model()).clone(), at_scale(1.0)).unscale(own)
            }));
        } else {
            let both = (made.each_ref()).map(|of| of[shown.len()].clone().into_params());
            shown.push(thread.install(|| step_with(learner, both)));
        }
    }
    course.map(|(scales, shown)| (scales + &amp.loss_scale().to_string(), shown))
}

#[test]
fn an_iteration_of_workers_is_decided_once() {
    for made in [burns, fused] {
        for [faults, skips, scales] in rows(CASES) {
            let mut first = None;
            for order in orders() {
                let [one, other] = run(&order, faults, made);
                assert!(one == other, "{faults}, {order}");
                assert_eq!(one.0, scales, "{faults}, {order}");
                let counters = one.1.last().unwrap().0;
                let found = format!("{} {}", counters.skipped(), counters.bad_losses());
                assert_eq!(found, skips, "{faults}, {order}");
                let first = first.get_or_insert_with(|| one.clone());
                assert!(*first == one, "{faults}, {order}");
            }
        }
    }
}

/// Where one step is made with the gradients of two workers, one of which has a bad loss and the other an overflow.
#[test]
fn one_step_of_two_workers_has_one_cause() {
    for order in [[0, 1], [1, 0]] {
        let amp = Run::of(1).with_config(at_scale(1024.0)).amp();
        let mut learner = burns(&amp).unwrap();
        let all = batches(&samples(16));
        let grads = order.map(|index| {
            let (model, mut batch) = (learner.model().fork(&device()), all[index].clone());
            batch.gain = [f32::NAN, overflow(1e30)][index];
            let pass = thread::spawn(move || TrainStep::step(&model, batch).grads);
            pass.join().unwrap()
        });
        let (counters, _) = step_with(&mut learner, grads);
        let found = (counters.skipped(), counters.bad_losses(), amp.loss_scale());
        assert_eq!(found, (1, 1, 1024.0), "{order:?}");
    }
}
