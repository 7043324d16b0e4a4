//! A run that was stopped, or killed, and resumed is the one that was not.

use std::{process::abort, thread::sleep};

use crate::metrics::{guarded, spiked};
use crate::support::*;

/// However it is trained, with everything around a step, by one optimizer for all workers, and behind.
#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let (around, guarded) = (with(around), with(guarded));
    // Windows on the main device are left out: Burn sums there in the order in which the workers come.
    let [main, sharded] = WAYS.map(|optim| Run::shuffled().with_workers(optim));
    type Way<'a> = (Run, &'a dyn Fn(&MixedPrecision) -> Made);
    let ways: [Way; 5] = [
        (Run::shuffled().with_windows(4), &around),
        (Run::shuffled(), &behind),
        (main, &burns),
        (sharded.with_windows(2), &burns),
        (spiked(), &guarded),
    ];
    for (run, learner) in ways {
        let whole = run.launch(learner);
        let half = run.clone().until(2).launch(learner);
        let resumed = run.clone().resumed(2).launch_in(&half.folder, learner);
        assert_eq!(half.stored_state(2), half.model.scaler().bits());
        assert_same(&whole, &resumed);
        let counters = whole.counters();
        let not_taken = counters.skipped() + counters.guarded();
        assert!(not_taken >= 4, "the poison, once an epoch: {counters:?}");
        // The metrics show as skipped what a guard rejects, too.
        let shown = (1..=4).flat_map(|epoch| whole.metric(epoch, "Skipped Steps"));
        let shown = shown.filter(|entry| entry == "100,1").count() as u64;
        assert_eq!((shown, whole.amp.counters()), (not_taken, counters));
        if let Some(ema) = half.model.ema() {
            assert_eq!(half.stored(2).averages(), 4);
            assert!(averaged(&resumed.model) == averaged(&whole.model));
            assert!(averaged(&resumed.model).2 > ema.updates());
            // A run of as many epochs as the checkpoint has returns what is in that.
            let again = run.until(2).resumed(2).launch_in(&half.folder, learner);
            assert!(averaged(&again.model) == averaged(&half.model));
            assert_eq!(again.counters(), half.counters());
        }
    }
}

/// Whatever has the bits of Burn's Adam goes on from the checkpoints of the others, and a loop of one's own from all of them: a fused
/// optimizer, a pipeline that is turned off, a model that has the reparameterization already, a run in one call.
#[test]
fn each_goes_on_from_the_checkpoints_of_the_others() {
    let before = |amp: &MixedPrecision| {
        let net = net().apply_reparameterization(amp.clone());
        amp.learner(net, burns_adam(), lr())
    };
    type Way<'a> = &'a dyn Fn(&Run, &Folder) -> Done;
    let ways: [Way; 5] = [
        &|run, folder| run.launch_in(folder, burns),
        &|run, folder| run.launch_in(folder, fused),
        &|run, folder| run.launch_in(folder, synchronous),
        &|run, folder| run.launch_in(folder, before),
        &|run, folder| {
            let amp = run.amp();
            let result = amp.launch(run.training(folder.path()), net(), burns_adam(), lr());
            Done::of(result.unwrap(), &amp, folder)
        },
    ];
    let run = Run::of(4).poisoned([11]);
    let (first, last) = (run.clone().until(2), run.clone().resumed(2));
    let expected = run.launch(burns);
    for (index, way) in ways.iter().enumerate() {
        let half = way(&first, &temp_dir());
        assert_eq!(half.stored(2).counters(), Some(half.counters()));
        let next = ways[(index + 1) % 5];
        assert_same(&expected, &next(&last, &half.folder));

        let amp = run.amp();
        let (net, mut optim) = amp.prepare(net(), burns_adam());
        let net = net.load_file(file(&half.folder, "model", 2));
        optim.load(file(&half.folder, "optim", 2)).unwrap();
        let mut lr = lr();
        (0..12).for_each(|_| _ = lr.step());
        let net = first.by_hand(net, lr, &amp, |lr, net, grads| optim.step(lr, net, grads));
        assert!((values(&net), optim.scaler().bits()) == expected.bits());
    }
    // One update behind between two validations, it has other bits, and leaves nothing of itself in a checkpoint.
    let half = first.launch(behind);
    for learner in LEARNERS {
        let done = last.launch_in(&half.folder, learner);
        assert_eq!(done.counters().steps(), 24);
        assert!(done.counters().skipped() > half.counters().skipped());
    }
}

/// A strategy may iterate over it as it is. Those of Burn ask it for the loaders of their devices.
#[test]
fn the_loader_itself_goes_on_where_the_other_has_stopped() {
    let epoch = |loader: &Loader| {
        let batches = loader.iter().map(|batch| batch.unwrap().features);
        batches.flat_map(burn_amp_tests::values).collect::<Vec<_>>()
    };
    let folder = Run::of(2).launch(burns).folder;
    for stop in [1, 2] {
        let whole = Run::shuffled().loader();
        let epochs = [(); 4].map(|()| epoch(&whole));
        let resume = Resume::check(folder.path(), stop).unwrap();
        let resumed = resume.loader(Run::shuffled().loader());
        assert!(epochs[0] != epochs[stop]);
        assert!([epoch(&resumed), epoch(&resumed)] == epochs[stop..stop + 2]);
    }
}

/// In the third epoch of four, after three of its six steps, the process ends, as by `kill -9`: nothing is closed or written any more.
fn train_until_killed(folder: PathBuf) {
    let mut run = Run::shuffled();
    let amp = run.amp();
    let learner = burns(&amp).unwrap();
    let own = folder.clone();
    run.watch = Arc::new(move || {
        if amp.counters().steps() < 15 {
            return Ok(());
        }
        // Burn writes checkpoints in a thread of its own.
        while Resume::check(&own, 2).is_err() {
            sleep(Duration::from_millis(5));
        }
        abort();
    });
    run.training(&folder).launch(learner);
}

#[test]
fn a_run_killed_in_mid_epoch_resumes_as_if_nothing_had_been() {
    if let Some(folder) = child_folder() {
        return train_until_killed(folder);
    }
    let folder = temp_dir();
    let name = "a_run_killed_in_mid_epoch_resumes_as_if_nothing_had_been";
    let child = child(&format!("{}::{name}", module_path!()), folder.path()).output();
    let output = child.unwrap();
    // It was not by the end of the run, nor by a panic.
    assert!(!matches!(output.status.code(), Some(0 | 101)), "{output:?}");
    assert!(Resume::check(folder.path(), 3).is_err());

    let whole = Run::shuffled().launch(burns);
    let resumed = Run::shuffled().resumed(2).launch_in(&folder, burns);
    assert_same(&whole, &resumed);
    // Loading is not a step: the metrics go on as if they had never stopped.
    for (name, epoch) in METRICS.into_iter().flat_map(|name| [(name, 3), (name, 4)]) {
        let [left, right] = [&whole, &resumed].map(|done| done.metric(epoch, name));
        assert!(left.len() >= 2, "{left:?}");
        assert_eq!(left, right, "{name} in epoch {epoch}");
    }
}
