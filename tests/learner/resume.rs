//! A run that was stopped, or killed, and resumed is the one that was not.

use burn::data::dataloader::split::split_dataloader;
use std::{process::abort, thread::sleep};

use crate::metrics::{guarded, spiked};
use crate::support::*;

/// However it is trained, with everything around a step, by one optimizer for all workers, and behind.
#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let around = with(|amp| {
        let optim = adam(amp).with_clipping(GradientClip::GlobalNorm(0.1));
        optim.with_ema(ema())
    });
    let guarded = with(guarded);
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
        let [whole, half, resumed] = resumed(&run, |run, folder| run.launch_in(folder, learner));
        let counters = whole.counters();
        let not_taken = counters.skipped() + counters.guarded();
        assert!(not_taken >= 4, "the poison, once an epoch: {counters:?}");
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
    let synchronous = with(|amp| pipelined(adam(amp)).with_synchronous(true));
    let before = |amp: &MixedPrecision| {
        let net = net().apply_reparameterization(amp.clone());
        amp.learner(net, AdamConfig::new().init(), lr())
    };
    type Way<'a> = &'a dyn Fn(&Run, &Folder) -> Done;
    let ways: [Way; 5] = [
        &|run, folder| run.launch_in(folder, burns),
        &|run, folder| run.launch_in(folder, fused),
        &|run, folder| run.launch_in(folder, &synchronous),
        &|run, folder| run.launch_in(folder, before),
        &|run, folder| {
            let (amp, training) = (run.amp(), run.training(folder.path()));
            let result = amp.launch(training, net(), AdamConfig::new().init(), lr());
            Done::of(result.unwrap(), &amp, folder)
        },
    ];
    let run = Run::default().poisoned([11]);
    let (first, last) = (run.clone().until(2), run.clone().resumed(2));
    let expected = run.launch(burns);
    for (index, way) in ways.iter().enumerate() {
        let half = way(&first, &temp_dir());
        assert_eq!(half.stored(2).counters(), Some(half.counters()));
        let next = ways[(index + 1) % 5];
        assert_same(&expected, &next(&last, &half.folder));

        let amp = run.amp();
        let (net, mut optim) = amp.prepare(net(), AdamConfig::new().init());
        let file = |name: &str| half.folder.path().join(format!("checkpoint/{name}-2.bpk"));
        let net = net.try_load_file(file("model")).unwrap();
        optim.load(file("optim")).unwrap();
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

type Loader = Arc<dyn DataLoader<Batch>>;

/// Of one device and of several.
#[test]
fn the_loader_itself_goes_on_where_the_other_has_stopped() {
    let shuffled = || loader(InMemDataset::new(samples(40)), Some(7));
    let epoch = |loader: &Loader| {
        let batches = loader.iter().map(|batch| batch.unwrap().features);
        batches.flat_map(burn_amp_tests::values).collect::<Vec<_>>()
    };
    let flexes = [Device::flex(), Device::flex()];
    let done = Run::of(2).launch(burns);
    type Split<'a> = &'a dyn Fn(Loader) -> Vec<Loader>;
    let splits: [Split; 4] = [
        &|loader| vec![loader],
        &|loader| vec![loader.to_device(&flexes[0])],
        &|loader| split_dataloader(loader, &flexes[..1]),
        &|loader| split_dataloader(loader, &flexes),
    ];
    for (split, stop) in splits.iter().flat_map(|split| [(split, 1), (split, 2)]) {
        let resume = Resume::check(done.folder.path(), stop).unwrap();
        let resumed = split(resume.loader(shuffled()));
        for (whole, resumed) in split(shuffled()).iter().zip(&resumed) {
            let epochs: Vec<_> = (0..4).map(|_| epoch(whole)).collect();
            assert!(epochs[0] != epochs[stop]);
            assert!([epoch(resumed), epoch(resumed)] == epochs[stop..stop + 2]);
        }
    }
}

#[test]
fn a_missing_epoch_is_named_with_those_that_are_there() {
    let message = |folder: &Folder, epoch| Resume::check(folder.path(), epoch).unwrap_err();
    let none = "there is no checkpoint of epoch 1, nor of another";
    says(&message(&temp_dir(), 1), [none]);
    let wording = "there is no checkpoint of epoch 7, but of 1, 2";
    let folder = Run::of(2).launch(burns).folder;
    says(&message(&folder, 7), ["model-7.bpk", wording]);
}

/// Written by the child before its end.
const MARKER: &str = "in the middle of epoch 3";

/// In the third epoch of four, after three of its six steps, the process ends, as by `kill -9`: nothing is closed or written any more.
#[test]
#[ignore = "runs in a process of its own, which is killed"]
fn child_trains_until_it_is_killed() {
    let Some(folder) = child_folder() else { return };
    let run = Run::shuffled();
    let amp = run.amp();
    let learner = burns(&amp).unwrap();
    let own = folder.clone();
    let kill = move || {
        if amp.counters().steps() < 15 {
            return Ok(());
        }
        // Burn writes checkpoints in a thread of its own.
        while Resume::check(&own, 2).is_err() {
            sleep(Duration::from_millis(5));
        }
        fs::write(own.join(MARKER), "").unwrap();
        abort();
    };
    let samples = Watched(InMemDataset::new(run.samples.clone()), kill);
    let samples = loader(samples, run.shuffle);
    run.training_on(samples, &folder).launch(learner);
    unreachable!("it goes on after its end");
}

#[test]
fn a_run_killed_in_mid_epoch_resumes_as_if_nothing_had_been() {
    let folder = temp_dir();
    let test = concat!(module_path!(), "::child_trains_until_it_is_killed");
    let output = child(test, folder.path()).output().unwrap();
    assert!(folder.path().join(MARKER).exists(), "{output:?}");
    assert!(!output.status.success(), "{output:?}");
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
