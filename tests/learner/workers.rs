//! Workers of one training, in every order in which their threads may come. What is decided on an iteration is the same in all.
//!
//! As in `ExecutionStrategy::ddp`, which this Burn has on CUDA alone: each has a learner of its own, and their gradients are summed, here through channels.
//! And as in `ExecutionStrategy::multi`, where one step is made with the gradients of all.

use std::sync::mpsc::{Receiver, Sender, channel};
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

enum Call {
    /// Compute the gradients of a batch whose loss is multiplied.
    Pass(f32),
    /// Step with those of all.
    Step([GradientsParams; 2]),
}

/// The counters of a worker after its step, and its parameters.
type Shown = (StepCounters, Vec<Values>);

enum Answer {
    /// The loss scale of the forward pass, and the gradients: for each worker, since a clone has a container of its own.
    Gradients(f32, [GradientsParams; 2]),
    Stepped(Box<Shown>),
}

fn work(
    mut learner: Learner<Scaled<Net>>,
    amp: &MixedPrecision,
    batch: &Batch,
    calls: Receiver<Call>,
    answers: &Sender<Answer>,
) {
    learner.fork(&device());
    for call in calls {
        let answer = match call {
            Call::Pass(gain) => {
                let (scale, model) = (amp.loss_scale(), learner.model());
                let mut batch = batch.clone();
                batch.gain = batch.gain * gain;
                let own = learner.train_step(batch).grads;
                let own = ByHand::of((*model).clone(), at_scale(1.0)).unscale(own);
                Answer::Gradients(scale, [own.clone().into_params(), own.into_params()])
            }
            Call::Step(both) => {
                let mut sum = GradientsAccumulator::new();
                for grads in both {
                    sum.accumulate(&learner.model(), grads);
                }
                learner.lr_step();
                learner.optimizer_step(sum.grads());
                let model = learner.model();
                let counters = model.scaler().counters();
                Answer::Stepped(Box::new((counters, values(&model))))
            }
        };
        answers.send(answer).unwrap();
    }
}

/// What a run comes to: the scale with which each pass was made, and at the end; and what each worker shows after each step.
type Seen = ([Vec<f32>; 2], [Vec<Shown>; 2]);

fn run(order: &str, faults: &str, made: fn(&MixedPrecision) -> Made) -> Seen {
    let config = at_scale(1024.0).with_growth_interval(2);
    let amp = Run::default().with_config(config).amp();
    let learner = made(&amp).unwrap();
    let all = batches(&samples(16));
    let (mut scales, mut shown) = Seen::default();
    let mut made: [Vec<[Option<GradientsParams>; 2]>; 2] = Default::default();
    thread::scope(|threads| {
        let workers = [0, 1].map(|index| {
            let (to, calls) = channel();
            let (answer, from) = channel();
            let (learner, amp, batch) = (learner.clone(), &amp, &all[index]);
            threads.spawn(move || work(learner, amp, batch, calls, &answer));
            move |call| {
                to.send(call).unwrap();
                from.recv_timeout(Duration::from_secs(20)).unwrap()
            }
        });
        for turn in order.bytes() {
            let own = usize::from(turn.eq_ignore_ascii_case(&b'b'));
            let call = match turn.is_ascii_uppercase() {
                true => {
                    let iteration = made[own].len();
                    let gain = match faults.as_bytes()[3 * iteration + own] {
                        b'?' => f32::NAN,
                        b'!' => overflow(1e30),
                        _ => 1.0,
                    };
                    Call::Pass(gain)
                }
                false => {
                    let iteration = shown[own].len();
                    Call::Step(made.each_mut().map(|of| of[iteration][own].take().unwrap()))
                }
            };
            match workers[own](call) {
                Answer::Gradients(scale, both) => {
                    scales[own].push(scale);
                    made[own].push(both.map(Some));
                }
                Answer::Stepped(step) => shown[own].push(*step),
            }
        }
    });
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
    for turns in ["ab", "ba"] {
        let config = at_scale(1024.0);
        let amp = Run::default().with_config(config).amp();
        let mut learner = burns(&amp).unwrap();
        let all = batches(&samples(16));
        let mut grads = [None, None];
        for turn in turns.bytes() {
            let index = usize::from(turn == b'b');
            let model = learner.model().fork(&device());
            let mut batch = all[index].clone();
            batch.gain = batch.gain * [f32::NAN, overflow(1e30)][index];
            let pass = thread::spawn(move || TrainStep::step(&model, batch).grads);
            grads[index] = Some(pass.join().unwrap());
        }
        let mut sum = GradientsAccumulator::new();
        for grads in grads.into_iter().flatten() {
            sum.accumulate(&learner.model(), grads);
        }
        learner.lr_step();
        learner.optimizer_step(sum.grads());
        let counters = learner.model().scaler().counters();
        assert_eq!(
            (counters.skipped(), counters.bad_losses()),
            (1, 1),
            "{turns}"
        );
        assert_eq!(amp.loss_scale(), 1024.0, "{turns}");
    }
}

/// Those of the last step, as one thread has made them of the gradients of all: see `docs/upstream/in-place-across-threads.md`.
#[test]
fn workers_on_one_device_see_the_same_parameters() {
    for (way, windows) in [(WAYS[0], 1), (WAYS[1], 1), (WAYS[0], 2)] {
        let mut run = Run::of(1);
        run.samples = samples(2 * 12 * 8);
        if windows > 1 {
            run = run.with_windows(windows);
        }
        let (amp, seen) = (run.amp(), Arc::new(Mutex::new(Vec::new())));
        let (counted, read) = (amp.clone(), seen.clone());
        let model = Model::new(net(), move |model, batch| {
            if model.net.head.weight.val().is_require_grad() {
                let with = (counted.counters().steps(), values(&model.net));
                read.lock().unwrap().push(with);
            }
            InferenceStep::step(&model.net, batch)
        });
        let made = amp.learner(model, sgd(&amp), lr());
        let devices = vec![Device::default(); 2];
        let done = run.train_by(&temp_dir(), &amp, made, |amp, training| {
            let strategy = ExecutionStrategy::multi(devices, way);
            amp.training(training)
                .with_training_strategy(strategy.into())
        });
        assert_eq!(done.finished().counters().steps(), 12 / windows as u64);
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.sort_by_key(|(steps, _)| *steps);
        for both in seen.windows(2).filter(|both| both[0].0 == both[1].0) {
            assert!(both[0] == both[1], "step {} of {way:?}", both[0].0);
        }
        assert_eq!(seen.len(), 24);
    }
}
