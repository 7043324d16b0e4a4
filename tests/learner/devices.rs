//! Several devices. Flex has one; two workers on it are two threads with a fork of the model each.

use burn::tensor::distributed::{DistributedConfig, ReduceOperation};
use std::sync::mpsc;
use std::thread::{self, ThreadId};

use crate::support::*;
use burn_amp_tests::trial::ByHand;

/// Three steps an epoch of two batches each. The poison is in the half of the samples that the second device gets.
fn run() -> Run {
    Run::of(3).poisoned([24 + 9])
}

/// How many steps there were, who asks, and what with: the counters, the loss scale and the parameters.
type Seen = (u64, ThreadId, (StepCounters, f32, Vec<Values>));

/// A model that notes what each of its steps was made with.
fn witness(amp: MixedPrecision, seen: Arc<Mutex<Vec<Seen>>>) -> Model {
    Model::new(net(), move |model, batch| {
        // A validation needs no gradients.
        if model.net.head.weight.val().is_require_grad() {
            let (thread, counters) = (thread::current().id(), amp.counters());
            let with = (counters, amp.loss_scale(), values(&model.net));
            seen.lock().unwrap().push((counters.steps(), thread, with));
        }
        InferenceStep::step(&model.net, batch)
    })
}

/// Where the optimizer runs makes no difference, to averages neither, and an overflow on one device skips the step. Every worker computes with the present scale,
/// counters and parameters, at every step.
#[test]
fn an_overflow_on_one_device_skips_the_step_for_all() {
    let [main, sharded] = WAYS.map(|optim| {
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let done = run().with_workers(optim).launch(|amp| {
            let model = witness(amp.clone(), seen.clone());
            amp.learner(model, adam(amp).with_ema(ema()), lr())
        });
        let share = *done.numbers(1, "Skipped Steps").last().unwrap();
        assert!((share - 100.0 / 3.0).abs() < 1e-9, "{share}");
        assert_eq!(done.steps(), (9, 3));
        assert_eq!(done.model.scaler().loss_scale(), 8192.0);
        assert!(all_finite(&done.model));

        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.sort_by_key(|(steps, ..)| *steps);
        let steps = seen.iter().map(|(steps, ..)| *steps);
        assert!(steps.eq((0..9).flat_map(|step| [step; 2])));
        for both in seen.chunks(2) {
            assert!(
                both[0].1 != both[1].1 && both[0].2 == both[1].2,
                "{}",
                both[0].0
            );
        }
        // The decision itself was seen: a skip lowers the scale and leaves the parameters.
        let skipped = |pair: &&[Seen]| pair[0].2.2 == pair[2].2.2;
        assert_eq!(seen.windows(3).step_by(2).filter(skipped).count(), 3);
        let ema = done.model.ema().unwrap();
        assert_eq!(ema.updates(), 6);
        (done.bits(), values(&ema.module(&*done.model)))
    });
    assert_eq!(main, sharded);
}

/// One step an epoch, after each of which Burn forks the model.
#[test]
fn a_fork_takes_the_place_of_the_one_before() {
    for optim in WAYS {
        let run = Run::of(4).with_windows(3).with_workers(optim);
        assert_eq!(run.launch(burns).model.scaler().loss_scale(), 131072.0);
    }
}

/// Of two workers with a fused optimizer, the first finds out that a step of before has failed. The second does not forget it.
#[test]
fn a_failure_that_a_worker_finds_ends_the_run() {
    let run = Run::default().with_skips(3).poisoned(0..48);
    let amp = run.amp();
    let mut learner = fused(&amp).unwrap();
    learner.fork(&device());
    let interrupter = amp.interrupter();
    let batches = batches(&run.samples);
    let steps = batches[..4].iter().cloned();
    steps.for_each(|batch| step(&mut learner, batch));
    let workers = [4, 5].map(|index| {
        let model = learner.model().fork(&device());
        TrainStep::step(&model, batches[index].clone()).grads
    });
    learner.lr_step();
    learner.optimizer_step(workers.into_iter().next().unwrap());
    assert!(amp.run_result().is_err() && interrupter.should_stop());
}

/// As the book says. When this fails, Burn can do it, and the test below can be a real run.
#[test]
fn burn_has_no_ddp_for_flex() {
    let all_reduce_op = ReduceOperation::Mean;
    let config = DistributedConfig { all_reduce_op };
    let strategy = || ExecutionStrategy::ddp(vec![Device::flex(), Device::flex()], config);
    says(&panic_message(strategy), ["not supported for device Flex"]);
}

/// What decides in `ExecutionStrategy::ddp`: each worker has a learner of its own, forks it, and takes the reduced gradients.
/// Here they are summed through channels.
#[test]
fn replicas_with_the_same_reduced_gradients_stay_the_same() {
    let run = run();
    let amp = run.amp();
    let learner = burns(&amp).unwrap();
    let (to_first, from_second) = mpsc::channel();
    let (to_second, from_first) = mpsc::channel();
    let ends = [(to_second, from_second), (to_first, from_first)];
    let halves = run.samples.chunks(24).map(batches);
    let workers = halves.zip(ends).enumerate().map(|(rank, (batches, ends))| {
        let (mut learner, (to, from)) = (learner.clone(), ends);
        thread::spawn(move || {
            learner.fork(&device());
            let each = (0..3).flat_map(|_| batches.clone()).map(|batch| {
                let model = learner.model();
                let own = learner.train_step(batch).grads;
                // Divided by 1. A clone has a container of its own.
                let own = ByHand::of((*model).clone(), at_scale(1.0)).unscale(own);
                to.send(own.clone().into_params()).unwrap();
                // Both sum in the order of ranks, as an all-reduce would.
                let mut both = [own.into_params(), from.recv().unwrap()];
                both.rotate_left(rank);
                let mut sum = GradientsAccumulator::new();
                both.into_iter()
                    .for_each(|grads| sum.accumulate(&model, grads));
                learner.lr_step();
                learner.optimizer_step(sum.grads());
                let model = learner.model();
                (model.scaler().counters(), parameters(&model))
            });
            each.collect::<Vec<_>>()
        })
    });
    let workers: Vec<_> = workers.collect();
    let histories: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    assert_eq!(histories[0], histories[1]);
    assert_eq!(histories[0].len(), 9);
    let (counters, _) = &histories[0][8];
    assert_eq!((counters.steps(), counters.skipped()), (9, 3));
    // A step of both is one step of the schedule: three overflows, and one finite step after the last.
    assert_eq!(amp.loss_scale(), 8192.0);
    assert_eq!(learner.model().scaler().growth_tracker(), 1);
}
