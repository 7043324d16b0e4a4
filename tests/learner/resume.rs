//! A run that was stopped and resumed is the one that was not.

use burn::{
    lr_scheduler::linear::LinearLrSchedulerConfig,
    optim::AdamConfig,
    tensor::Device,
    train::{ExecutionStrategy, Learner, MultiDeviceOptim},
};
use burn_amp::{
    GradScalerConfig, GradientClip, MasterWeights, MixedPrecision, Scaled, ScaledOptimizer,
    train::check_checkpoint,
};
use std::path::Path;

use crate::support::{Net, Run, optimizer_pack, pack, parameters, poison, read_metric};

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
    assert_eq!(left.1.scaler().to_record(), right.1.scaler().to_record());
    let values = |model| {
        parameters(model)
            .into_values()
            .map(|(_, v)| v)
            .collect::<Vec<_>>()
    };
    assert!(values(left.1) == values(right.1));
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_bit_for_bit() {
    for accumulation in [None, Some(4)] {
        let whole = tempfile::tempdir().unwrap();
        let run = Run {
            accumulation,
            ..shuffled_run()
        };
        let uninterrupted = run.launch(whole.path()).model;
        let counters = *uninterrupted.scaler().counters();
        assert!(counters.skipped() >= 4, "{counters:?}");

        let parts = tempfile::tempdir().unwrap();
        let first = Run {
            epochs: 2,
            accumulation,
            ..shuffled_run()
        };
        let half = first.launch(parts.path()).model;
        let stored = check_checkpoint(parts.path(), 2).unwrap().unwrap();
        assert_eq!(stored, half.scaler().to_record());
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

/// What else a `Scaled` model can be trained with.
#[derive(Clone, Copy, Debug)]
enum Way {
    Clipped,
    Masters,
    MainDevice,
    Sharded,
    ShardedWindows,
}

impl Way {
    /// Not every device has f16; and two workers on one fused device are not to be trusted, as the book says.
    fn can_run(self) -> bool {
        let device = Device::default();
        match self {
            Self::Clipped => true,
            Self::Masters => MixedPrecision::f16().check_device(&device).is_ok(),
            _ => device == Device::flex(),
        }
    }

    fn learner(self, config: &GradScalerConfig) -> Learner<Scaled<Net>> {
        let device = Device::default().autodiff();
        let lr = LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
        let scaler = config.init().unwrap();
        let adam = AdamConfig::new().with_epsilon(1e-5);
        match self {
            Self::Masters => {
                let optim = MasterWeights::new(adam.build()).init();
                let net = Net::with_half_parameters(&device);
                ScaledOptimizer::new(optim, scaler).into_learner(net, lr)
            }
            Self::Clipped => {
                let clip = GradientClip::by_global_norm(0.1).unwrap();
                let optim = ScaledOptimizer::new(adam.init(), scaler).with_clipping(clip);
                optim.into_learner(Net::half_if_possible(&device), lr)
            }
            _ => {
                let net = Net::half_if_possible(&device);
                ScaledOptimizer::new(adam.init(), scaler).into_learner(net, lr)
            }
        }
    }

    /// Windows on the main device are left out: Burn sums there in the order in which the workers come.
    fn strategy(self) -> Option<ExecutionStrategy> {
        let optim = match self {
            Self::Clipped | Self::Masters => return None,
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
        let result = training.launch(self.learner(&run.config));
        assert!(result.error.is_none());
        result.model
    }
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_however_it_is_trained() {
    for way in [
        Way::Clipped,
        Way::Masters,
        Way::MainDevice,
        Way::Sharded,
        Way::ShardedWindows,
    ] {
        if !way.can_run() {
            continue;
        }
        let whole = tempfile::tempdir().unwrap();
        let uninterrupted = way.launch(4, None, whole.path());
        let skipped = uninterrupted.scaler().counters().skipped();
        assert!(skipped >= 4, "{way:?}: the poison, once each epoch");

        let parts = tempfile::tempdir().unwrap();
        drop(way.launch(2, None, parts.path()));
        let resumed = way.launch(4, Some(2), parts.path());
        println!("{way:?}");
        assert_same((whole.path(), &uninterrupted), (parts.path(), &resumed), 4);
    }
}
