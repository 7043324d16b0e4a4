//! A run that was stopped and resumed is the one that was not.

use burn::{
    data::dataloader::{DataLoader, split::split_dataloader},
    optim::AdamConfig,
    tensor::Device,
    train::{ExecutionStrategy, Learner, MultiDeviceOptim},
};
use burn_amp::{GradScalerConfig, GradientClip, MixedPrecision, Resume, Scaled, ScaledOptimizer};
use burn_amp_tests::LogMaxAgain;
use std::{path::Path, sync::Arc};

use crate::support::{
    Batch, Net, Run, loader, optimizer_pack, pack, poison, read_metric, samples, scaler_state,
    stored_state, temp_dir, values,
};

/// Shuffled, with a poisoned sample.
pub fn shuffled_run() -> Run {
    let mut run = Run {
        shuffle: Some(7),
        ..Run::default()
    };
    poison(&mut run.samples, 11);
    run
}

/// Everything that the last checkpoints hold, and the models themselves: bit for bit the same.
pub fn assert_same(left: (&Path, &Scaled<Net>), right: (&Path, &Scaled<Net>), epoch: usize) {
    let file = |folder: &Path, name: &str| folder.join(format!("checkpoint/{name}-{epoch}.bpk"));
    for name in ["model", "scheduler"] {
        let (one, other) = (pack(&file(left.0, name)), pack(&file(right.0, name)));
        assert!(one == other, "{name}");
    }
    let optim = |side: (&Path, &Scaled<Net>)| optimizer_pack(&file(side.0, "optim"), side.1);
    assert!(optim(left) == optim(right), "optim");
    for (folder, model) in [left, right] {
        let stored = Resume::check(folder, epoch).unwrap();
        assert_eq!(stored_state(&stored), scaler_state(model.scaler()));
    }
    assert_eq!(
        scaler_state(left.1.scaler()),
        scaler_state(right.1.scaler())
    );
    assert!(values(left.1) == values(right.1));
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    for accumulation in [None, Some(4)] {
        let whole = temp_dir();
        let run = Run {
            accumulation,
            ..shuffled_run()
        };
        let uninterrupted = run.launch(whole.path()).model;
        let counters = uninterrupted.scaler().counters();
        assert!(counters.skipped() >= 4, "{counters:?}");

        let parts = temp_dir();
        let first = Run {
            epochs: 2,
            accumulation,
            ..shuffled_run()
        };
        let half = first.launch(parts.path()).model;
        let stored = Resume::check(parts.path(), 2).unwrap();
        assert_eq!(stored_state(&stored), scaler_state(half.scaler()));
        drop(half);
        let second = Run {
            resume: Some(2),
            accumulation,
            ..shuffled_run()
        };
        let resumed = second.launch(parts.path()).model;

        assert_same((whole.path(), &uninterrupted), (parts.path(), &resumed), 4);
        // Loading is not a step: the metrics go on as if they had never stopped. (Inside a window, the scale is read when
        // Burn's thread gets there.)
        for name in [
            "Skipped Steps",
            "Gradient Norm",
            "Zero Gradients",
            "Loss Scale",
        ] {
            for epoch in [3, 4] {
                let [left, right] =
                    [&whole, &parts].map(|folder| read_metric(folder.path(), epoch, name));
                assert!(left.len() >= 2, "{left:?}");
                if accumulation.is_none() || name != "Loss Scale" {
                    assert_eq!(left, right, "{name} in epoch {epoch}");
                }
            }
        }
    }
}

/// A rule that only this program knows goes on with what it has learned.
#[test]
fn a_resumed_run_goes_on_with_its_own_rule() {
    let launch = |folder: &Path, epochs, resume| {
        let run = Run {
            epochs,
            resume,
            ..shuffled_run()
        };
        let amp = run.amp();
        let schedule = run.config.schedule().unwrap();
        let schedule = schedule.with_rule(LogMaxAgain::default()).unwrap();
        let amp = amp.with_schedule(schedule).unwrap();
        let training = amp.training(run.training(folder));
        training.launch(run.learner(&amp)).model
    };
    let (whole, parts) = (temp_dir(), temp_dir());
    let uninterrupted = launch(whole.path(), 4, None);
    let schedule = uninterrupted.scaler().schedule();
    assert_eq!(schedule.rule_name(), "log_max_again");
    let start = Run::default().config.schedule().unwrap();
    let start = start.with_rule(LogMaxAgain::default()).unwrap();
    assert_ne!(schedule, start);
    drop(launch(parts.path(), 2, None));
    let resumed = launch(parts.path(), 4, Some(2));
    assert_same((whole.path(), &uninterrupted), (parts.path(), &resumed), 4);
}

/// The state is the checkpoint's, the settings are the program's.
#[test]
fn edited_settings_are_those_of_the_resumed_run() {
    let folder = temp_dir();
    let first = Run {
        epochs: 1,
        ..Run::default()
    };
    let model = first.launch(folder.path()).model;
    let scale = model.scaler().loss_scale();
    assert!(scale > 65536.0, "{scale}");

    // Six clean steps make it grow, and each of four would have.
    let config = GradScalerConfig::new().with_growth_interval(6);
    let second = Run {
        epochs: 2,
        resume: Some(1),
        config,
        ..Run::default()
    };
    let resumed = second.launch(folder.path()).model;
    let counters = resumed.scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (12, 0));
    assert_eq!(resumed.scaler().config(), config);
    assert_eq!(resumed.scaler().loss_scale(), 2.0 * scale);
    // Two of the first epoch, and six.
    assert_eq!(resumed.scaler().growth_tracker(), 2);

    // One call takes the stored ones.
    let stored = Resume::check(folder.path(), 1).unwrap();
    let config = *stored.record().unwrap().schedule().unwrap().config();
    assert_eq!(config, first.config);
}

/// What else a `Scaled` model can be trained with.
#[derive(Clone, Copy, Debug)]
enum Way {
    Clipped,
    MainDevice,
    Sharded,
    ShardedWindows,
}

impl Way {
    /// Two workers on one fused device are not to be trusted, as the book says.
    fn can_run(self) -> bool {
        matches!(self, Self::Clipped) || Device::default() == Device::flex()
    }

    fn learner(self, run: &Run, amp: &MixedPrecision) -> Learner<Scaled<Net>> {
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), amp);
        let clip = GradientClip::GlobalNorm(0.1);
        match self {
            Self::Clipped => run.learner_of(amp, optim.with_clipping(clip).unwrap()),
            _ => run.learner_of(amp, optim),
        }
    }

    /// Windows on the main device are left out: Burn sums there in the order in which the workers come.
    fn strategy(self) -> Option<ExecutionStrategy> {
        let optim = match self {
            Self::Clipped => return None,
            Self::MainDevice => MultiDeviceOptim::OptimMainDevice,
            Self::Sharded | Self::ShardedWindows => MultiDeviceOptim::OptimSharded,
        };
        let devices = vec![Device::default(), Device::default()];
        Some(ExecutionStrategy::multi(devices, optim))
    }

    fn launch(self, epochs: usize, resume: Option<usize>, folder: &Path) -> Scaled<Net> {
        let run = Run {
            epochs,
            resume,
            accumulation: matches!(self, Self::ShardedWindows).then_some(2),
            ..shuffled_run()
        };
        let training = run.training(folder);
        let training = match self.strategy() {
            Some(strategy) => training.with_training_strategy(strategy.into()),
            None => training,
        };
        let amp = run.amp();
        let learner = self.learner(&run, &amp);
        let result = amp.training(training).launch(learner);
        assert!(result.error.is_none());
        result.model
    }
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_however_it_is_trained() {
    for way in [
        Way::Clipped,
        Way::MainDevice,
        Way::Sharded,
        Way::ShardedWindows,
    ] {
        if !way.can_run() {
            continue;
        }
        let whole = temp_dir();
        let uninterrupted = way.launch(4, None, whole.path());
        let skipped = uninterrupted.scaler().counters().skipped();
        assert!(skipped >= 4, "{way:?}: the poison, once each epoch");

        let parts = temp_dir();
        drop(way.launch(2, None, parts.path()));
        let resumed = way.launch(4, Some(2), parts.path());
        println!("{way:?}");
        assert_same((whole.path(), &uninterrupted), (parts.path(), &resumed), 4);
    }
}

type Loader = Arc<dyn DataLoader<Batch>>;

/// The values of an epoch, in its order.
fn epoch(loader: &Loader) -> Vec<f32> {
    let batches = loader.iter().map(|batch| batch.unwrap().features);
    batches
        .flat_map(|features| features.into_data().iter::<f32>().collect::<Vec<_>>())
        .collect()
}

fn shuffled() -> Loader {
    loader(samples(40), Some(7))
}

/// A checkpoint of this epoch.
fn stopped_after(epochs: usize) -> Resume {
    let folder = temp_dir();
    let run = Run {
        epochs,
        ..Run::default()
    };
    run.launch(folder.path());
    Resume::check(folder.path(), epochs).unwrap()
}

#[test]
fn the_loader_itself_goes_on_where_the_other_has_stopped() {
    let whole = shuffled();
    let epochs: Vec<_> = (0..4).map(|_| epoch(&whole)).collect();
    assert!(epochs[0] != epochs[2]);
    let resumed = stopped_after(2).loader(shuffled());
    assert!([epoch(&resumed), epoch(&resumed)] == epochs[2..]);
}

#[test]
fn so_do_the_loaders_of_one_device_and_of_several() {
    let flex = Device::flex();
    let resume = stopped_after(1);
    for devices in [vec![flex.clone()], vec![flex.clone(), flex.clone()]] {
        let whole = split_dataloader(shuffled(), &devices);
        let resumed = split_dataloader(resume.loader(shuffled()), &devices);
        for (whole, resumed) in whole.iter().zip(&resumed) {
            let first = epoch(whole);
            assert!(epoch(whole) == epoch(resumed));
            assert!(first != epoch(resumed));
        }
    }
    let (whole, resumed) = (shuffled(), resume.loader(shuffled()));
    let [whole, resumed] = [whole, resumed].map(|loader| loader.to_device(&flex));
    epoch(&whole);
    assert!(epoch(&whole) == epoch(&resumed));
}

#[test]
fn a_missing_epoch_is_named_with_those_that_are_there() {
    let folder = temp_dir();
    let message = |epoch| Resume::check(folder.path(), epoch).unwrap_err().to_string();
    assert!(message(1).contains("there is no checkpoint of epoch 1, nor of another"));
    let run = Run {
        epochs: 2,
        ..Run::default()
    };
    run.launch(folder.path());
    let message = message(7);
    let told = "there is no checkpoint of epoch 7, but of 1, 2";
    assert!(
        message.contains("model-7.bpk") && message.contains(told),
        "{message}"
    );
}
