//! A run that was stopped and resumed is the one that was not.

use burn::data::dataloader::split::split_dataloader;

use crate::averages::{averaged, averaging};
use crate::by_hand::{guarded, spiked};
use crate::support::*;

/// However it is trained.
#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    let clipped = with(|amp| adam(amp).with_clipping(GradientClip::GlobalNorm(0.1)));
    let (run, windows) = (Run::shuffled(), Run::shuffled().with_windows(4));
    type Way<'a> = (Run, &'a dyn Fn(&MixedPrecision) -> Made);
    let guarded = with(guarded);
    let mut ways: Vec<Way> = vec![
        (run.clone(), &burns),
        (windows.clone(), &burns),
        (run.clone(), &averaging),
        (windows, &averaging),
        (run.clone(), &clipped),
        (run.clone(), &crate::pipelined::learner),
    ];
    // Two workers on one fused device are not to be trusted, as the book says. Windows on the main device are left out: Burn sums there
    // in the order in which the workers come.
    if Device::default() == Device::flex() {
        let [main, sharded] = WAYS.map(|optim| run.clone().with_workers(optim));
        let windows = sharded.clone().with_windows(2);
        ways.extend([main, sharded, windows].map(|run| (run, &burns as _)));
        ways.push((spiked(), &guarded));
    }
    for (index, (run, learner)) in ways.into_iter().enumerate() {
        let [whole, half, resumed] = resumed(&run, learner);
        let counters = whole.counters();
        let not_taken = counters.skipped() + counters.guarded();
        assert!(not_taken >= 4, "the poison, once an epoch: {counters:?}");
        if let Some(ema) = half.model.ema() {
            let mut averages = EmaConfig::new().init().unwrap();
            averages.load_record(half.stored(2)).unwrap();
            let stored = (averages.updates(), averages.parameters());
            assert_eq!(stored, (ema.updates(), 4));
            assert!(averaged(&resumed.model) == averaged(&whole.model));
            assert!(averaged(&resumed.model).2 > ema.updates());
        }
        // Loading is not a step: the metrics of Burn's optimizer go on as if they had never stopped. (Inside a window, the scale is read
        // when Burn's thread gets there.)
        for (name, epoch) in METRICS.into_iter().flat_map(|name| [(name, 3), (name, 4)]) {
            let [left, right] = [&whole, &resumed].map(|done| done.metric(epoch, name));
            assert!(left.len() >= 2, "{left:?}");
            if index == 0 || (index == 1 && name != "Loss Scale") {
                assert_eq!(left, right, "{name} in epoch {epoch}");
            }
        }
    }
}

/// A rule that only this program knows goes on with its state.
#[test]
fn a_resumed_run_goes_on_with_its_own_rule() {
    let rule = || {
        let schedule = Run::default().config.schedule().unwrap();
        schedule.with_rule(LogMaxAgain::default()).unwrap()
    };
    let launch = |run: &Run, folder: &Folder| {
        let amp = run.amp().with_schedule(rule()).unwrap();
        run.train(folder, &amp, burns(&amp))
    };
    let [whole, _, resumed] = resumed_with(&Run::shuffled(), launch);
    let schedule = whole.model.scaler().schedule();
    assert_eq!(schedule.rule_name(), "log_max_again");
    assert_ne!(schedule, rule());
    assert_same(&whole, &resumed);
}

/// The state is the checkpoint's, the settings are the program's.
#[test]
fn edited_settings_are_those_of_the_resumed_run() {
    let first = Run::of(1);
    let done = first.launch();
    let scale = done.model.scaler().loss_scale();
    assert!(scale > 65536.0, "{scale}");

    // Six finite steps make it grow, and each of four would have.
    let config = GradScalerConfig::new().with_growth_interval(6);
    let second = Run::of(2).resumed(1).with_config(config);
    let resumed = second.launch_in(&done.folder, burns);
    assert_eq!(resumed.steps(), (12, 0));
    let scaler = resumed.model.scaler();
    assert_eq!(scaler.config(), config);
    assert_eq!(scaler.loss_scale(), 2.0 * scale);
    // Two of the first epoch, and six.
    assert_eq!(scaler.growth_tracker(), 2);

    // One call takes the stored ones.
    let stored = done.stored(1);
    assert_eq!(*stored.schedule().unwrap().config(), first.config);
}

type Loader = Arc<dyn DataLoader<Batch>>;

/// The values of an epoch, in its order.
fn epoch(loader: &Loader) -> Vec<f32> {
    let batches = loader.iter().map(|batch| batch.unwrap().features);
    batches.flat_map(burn_amp_tests::values).collect()
}

fn shuffled() -> Loader {
    loader(InMemDataset::new(samples(40)), Some(7))
}

/// And so do those of one device and of several.
#[test]
fn the_loader_itself_goes_on_where_the_other_has_stopped() {
    let flexes = [Device::flex(), Device::flex()];
    let done = Run::of(2).launch();
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
    let folder = Run::of(2).launch().folder;
    says(&message(&folder, 7), ["model-7.bpk", wording]);
}
