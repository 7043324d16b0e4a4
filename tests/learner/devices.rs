//! Several devices. Flex has one; two workers on it are two threads with a fork of the model each. Each with a learner of its own: `workers`.

use burn::tensor::distributed::{DistributedConfig, ReduceOperation};

use crate::support::*;

/// An overflow on one device skips the step for all, and where the optimizer runs makes no difference, to averages neither. Every worker computes with the
/// present scale, counters and parameters, as one thread has made them of the gradients of all: see `docs/upstream/in-place-across-threads.md`.
#[test]
fn workers_on_one_device_decide_and_see_the_same() {
    let ways = [(WAYS[0], None), (WAYS[1], None), (WAYS[0], Some(2usize))];
    let [main, sharded, _] = ways.map(|(way, windows)| {
        // Six steps an epoch of two batches each. The poison is in the half of the samples that the second device gets.
        let mut run = Run::of(3).with_windows(windows).with_workers(way);
        run.samples = samples(96);
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let done = run.poisoned([48 + 9]).launch(|amp| {
            let (handle, seen) = (amp.clone(), seen.clone());
            let witness = net().with_output(Arc::new(move |net, batch| {
                note(net, &handle, &seen);
                net.cast(batch)
            }));
            amp.learner(witness, adam(amp).with_ema(ema()), lr())
        });
        let steps = 18 / windows.unwrap_or(1) as u64;
        assert_eq!(done.steps(), (steps, 3));
        let seen = by_steps(&seen);
        assert_eq!(seen.len(), 36);
        for both in seen.chunks(2).filter(|_| windows.is_none()) {
            assert!(both[0].0 == both[1].0 && both[0].1 != both[1].1);
        }
        // The decision itself was seen: a skip leaves the parameters.
        let mut steps: Vec<_> = seen.into_iter().map(|(.., with)| with.2).collect();
        steps.dedup();
        assert_eq!(steps.len() as u64, done.counters().stepped());
        let (weights, averages, updates) = averaged(&done.model);
        assert_eq!(updates, done.counters().stepped());
        (weights, averages, done.model.scaler().bits())
    });
    assert!(main == sharded || !on_flex());
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
    let run = Run::of(1).with_skips(3).poisoned(0..48);
    let amp = run.amp();
    let mut learner = fused(&amp).unwrap();
    learner.fork(&device());
    let interrupter = amp.interrupter();
    let mut batches = batches(&run.samples);
    (batches.drain(..4)).for_each(|batch| step(&mut learner, batch));
    let grads = from_fn(|worker| {
        let model = learner.model().fork(&device());
        TrainStep::step(&model, batches[worker].clone()).grads
    });
    let [first, _second] = grads;
    learner.lr_step();
    learner.optimizer_step(first);
    assert!(amp.run_result().is_err() && interrupter.should_stop());
}

/// As the book says. When this fails, Burn can do it.
#[test]
fn burn_has_no_ddp_for_flex() {
    let all_reduce_op = ReduceOperation::Mean;
    let config = DistributedConfig { all_reduce_op };
    let strategy = || ExecutionStrategy::ddp(vec![Device::flex(), Device::flex()], config);
    says(&panic_message(strategy), ["not supported for device Flex"]);
}
