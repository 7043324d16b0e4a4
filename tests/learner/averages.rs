//! Averages of the weights in a Learner: taken at every step, kept in checkpoints, resumed bit for bit.

use burn::{
    module::Module,
    optim::AdamConfig,
    tensor::Device,
    train::{ExecutionStrategy, Learner, LearningResult, MultiDeviceOptim},
};
use burn_amp::{EmaConfig, MixedPrecision, Resume, Scaled, ScaledOptimizer};
use std::path::Path;

use crate::{
    resume::{assert_same, shuffled_run},
    support::{
        Net, Run, Values, poison, read_metric, scaler_state, stored_state, temp_dir, values,
    },
};

fn learner(run: &Run, amp: &MixedPrecision, ema: Option<EmaConfig>) -> Learner<Scaled<Net>> {
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), amp);
    let optim = match ema {
        Some(ema) => optim.with_ema(ema).unwrap(),
        None => optim,
    };
    run.learner_of(amp, optim)
}

fn launch_with(run: &Run, ema: Option<EmaConfig>, folder: &Path) -> Scaled<Net> {
    let amp = run.amp();
    let learner = learner(run, &amp, ema);
    let result: LearningResult<_> = amp.training(run.training(folder)).launch(learner);
    assert!(result.error.is_none());
    result.model
}

fn launch(run: &Run, folder: &Path) -> Scaled<Net> {
    launch_with(run, Some(ema()), folder)
}

fn ema() -> EmaConfig {
    EmaConfig::new()
        .with_momentum(0.9)
        .with_overwrite_frequency(Some(7))
}

/// Parameters and averages of a model.
fn averaged(model: &Scaled<Net>) -> (Vec<Values>, Vec<Values>, u64) {
    let ema = model.ema().unwrap();
    let averages = ema.module(&**model);
    (values(model), values(&averages), ema.updates())
}

/// `overwrite_frequency` and a skipped step included.
#[test]
fn a_learner_averages_as_a_loop_by_hand() {
    let mut run = Run::default();
    poison(&mut run.samples, 20);
    let folder = temp_dir();
    let model = launch(&run, folder.path());

    let amp = run.amp();
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    let mut optim = optim.with_ema(ema()).unwrap();
    let net = run.by_hand(&amp, &mut optim);
    assert_eq!(model.ema().unwrap().updates(), 20);
    assert_eq!(optim.ema().unwrap().updates(), 20);
    assert!(values(&model) == values(&net));
    let averages = values(&optim.ema().unwrap().module(&net));
    assert!(averages != values(&net));
    assert!(averaged(&model).1 == averages);
    assert!(values(&model.finalize()) == averages);

    let folder = temp_dir();
    let plain = launch_with(&run, None, folder.path());
    assert!(plain.ema().is_none());
    assert!(values(&plain.clone().finalize()) == values(&plain));
}

#[test]
fn a_resumed_run_has_the_averages_of_the_uninterrupted_one() {
    for accumulation in [None, Some(4)] {
        let run = |epochs: usize, resume: Option<usize>| Run {
            epochs,
            resume,
            accumulation,
            ..shuffled_run()
        };
        let whole = temp_dir();
        let uninterrupted = launch(&run(4, None), whole.path());
        let parts = temp_dir();
        let half = launch(&run(2, None), parts.path());
        let stored = Resume::check(parts.path(), 2).unwrap();
        assert_eq!(stored_state(&stored), scaler_state(half.scaler()));
        let mut averages = EmaConfig::new().init().unwrap();
        averages
            .load_record(stored.record().unwrap().clone())
            .unwrap();
        assert_eq!(
            (averages.updates(), averages.parameters()),
            (half.ema().unwrap().updates(), 4)
        );
        let resumed = launch(&run(4, Some(2)), parts.path());

        assert!(averaged(&resumed) == averaged(&uninterrupted));
        assert!(averaged(&resumed).2 > half.ema().unwrap().updates());
        assert_same((whole.path(), &uninterrupted), (parts.path(), &resumed), 4);
    }
}

/// With averages that the other does not keep, and without those that it does, a run goes on: the log says so.
#[test]
fn averages_that_only_one_run_keeps_are_dropped_or_start_fresh() {
    let first = Run {
        epochs: 1,
        ..Run::default()
    };
    let second = Run {
        epochs: 2,
        resume: Some(1),
        ..Run::default()
    };
    let folder = temp_dir();
    launch(&first, folder.path());
    let without = launch_with(&second, None, folder.path());
    assert_eq!(without.scaler().counters().steps(), 12);
    assert!(without.ema().is_none());
    let stored = Resume::check(folder.path(), 2).unwrap();
    assert_eq!(stored.record().unwrap().averages(), 0);

    let third = Run {
        epochs: 3,
        resume: Some(2),
        ..Run::default()
    };
    let with = launch(&third, folder.path());
    assert_eq!(with.scaler().counters().steps(), 18);
    assert_eq!(with.ema().unwrap().updates(), 6);
}

#[test]
fn several_devices_average_alike() {
    let run = Run {
        epochs: 2,
        ..Run::default()
    };
    let models = [
        MultiDeviceOptim::OptimMainDevice,
        MultiDeviceOptim::OptimSharded,
    ]
    .map(|optim| {
        let devices = vec![Device::flex(), Device::flex()];
        let folder = temp_dir();
        let strategy = ExecutionStrategy::multi(devices, optim);
        let amp = run.amp();
        let learner = learner(&run, &amp, Some(ema()));
        run.training(folder.path())
            .with_training_strategy(strategy.into())
            .launch(learner)
            .model
    });
    assert_eq!(models[0].ema().unwrap().updates(), 6);
    assert!(averaged(&models[0]) == averaged(&models[1]));
}

/// An optimizer that has averaged before goes on with its averages and its counters.
#[test]
fn averages_go_with_the_optimizer() {
    let run = Run {
        epochs: 1,
        ..Run::default()
    };
    let amp = run.amp();
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
    let mut optim = optim.with_ema(ema()).unwrap();
    let net = run.by_hand(&amp, &mut optim);
    let averages = values(&optim.ema().unwrap().module(&net));
    let model = amp
        .learner(net, optim, crate::support::lr())
        .unwrap()
        .model();
    assert!(averaged(&model).1 == averages);
    assert_eq!(model.scaler().counters().steps(), 6);
}

/// On request validation sees the averages, and so does who gets the model; training goes on with the weights.
#[test]
fn averages_can_drive_validation() {
    let run = Run {
        epochs: 2,
        ..Run::default()
    };
    let slow = EmaConfig::new().with_momentum(0.999);
    let folders = [(); 2].map(|()| temp_dir());
    let plain = launch_with(&run, Some(slow.clone()), folders[0].path());
    let seen = launch_with(&run, Some(slow.with_validation(true)), folders[1].path());

    let averages = averaged(&plain).1;
    assert!(averages != values(&plain));
    assert!(values(&seen) == averages);
    assert!(values(&seen.clone().train()) == values(&plain));
    assert!(values(&seen.clone().train().valid()) == averages);
    // The checkpoint has the weights.
    let stored = Net::new(&Device::flex())
        .try_load_file(folders[1].path().join("checkpoint/model-2.bpk"))
        .unwrap();
    assert!(values(&stored) == values(&plain));
    // And the training is the same, the validation another.
    let loss = |split: &str| {
        folders.each_ref().map(|folder| {
            let file = folder.path().join(format!("{split}/epoch-2/Loss.log"));
            std::fs::read_to_string(file).unwrap()
        })
    };
    let [train, valid] = [loss("train"), loss("valid")];
    assert_eq!(train[0], train[1]);
    assert_ne!(valid[0], valid[1]);
    assert_eq!(read_metric(folders[1].path(), 2, "Loss").len(), 7);
}
