//! Runs that end early: by early stopping, on request, or because only skips are left.

use burn::{
    data::dataloader::Progress,
    lr_scheduler::constant::ConstantLr,
    module::Module,
    optim::AdamConfig,
    store::ModuleRecord,
    tensor::{Device, FloatDType},
    train::{
        ExecutionStrategy, Interrupter, Learner, LearningResult, MetricEarlyStoppingStrategy,
        MultiDeviceOptim, StoppingCondition, TrainStep,
        metric::{
            Metric, MetricMetadata, Numeric,
            store::{Aggregate, Direction, Split},
        },
    },
};
use burn_amp::{
    AmpError, GradScalerConfig, GradientNormMetric, LossScaleMetric, Scaled, ScaledOptimizer,
    SkippedStepsMetric, ZeroGradientsMetric, to_half, train::check_checkpoint,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use crate::support::{Net, Run, all_finite, loader, parameters, poison};

#[test]
fn early_stopping_sees_the_metrics_of_a_scaled_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run {
        epochs: 50,
        ..Run::default()
    };
    let (learner, monitor) = run.learner();
    // The loss scale grows, so the first epoch is the best one for good.
    let strategy = MetricEarlyStoppingStrategy::new(
        &LossScaleMetric::new(&monitor),
        Aggregate::Mean,
        Direction::Lowest,
        Split::Train,
        StoppingCondition::NoImprovementSince { n_epochs: 2 },
    );
    let result = run
        .training(folder.path())
        .metric_train_numeric(LossScaleMetric::new(&monitor))
        .early_stopping(strategy)
        .launch(learner);
    assert!(result.error.is_none() && result.interrupted.is_none());
    assert_eq!(result.model.scaler().counters().steps(), 3 * 6);
}

/// Stopped on request in the middle of an epoch: the model is that of the steps taken, and the checkpoint of the epoch before
/// is whole.
#[test]
fn an_interrupted_run_returns_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run {
        epochs: 3,
        ..Run::default()
    };
    let (learner, monitor) = run.learner();
    let interrupter = Interrupter::new();
    let stop = {
        let (interrupter, monitor) = (interrupter.clone(), monitor.clone());
        std::thread::spawn(move || {
            while monitor.last().steps < 8 {
                std::thread::yield_now();
            }
            interrupter.stop(Some("enough"));
        })
    };
    let result = run
        .training(folder.path())
        .with_interrupter(interrupter)
        .launch(learner);
    stop.join().unwrap();
    assert_eq!(
        result.interrupted.unwrap().reason.as_deref(),
        Some("enough")
    );
    assert!(result.error.is_none());

    let steps = result.model.scaler().counters().steps();
    assert!((8..18).contains(&steps), "{steps} steps");
    assert_eq!(monitor.last().steps, steps);
    let stored = check_checkpoint(folder.path(), 1).unwrap().unwrap();
    assert_eq!(stored.counters().steps(), 6);
}

/// Who is there to end the run.
#[derive(Clone, Copy, Debug)]
enum Listener {
    Metric,
    Interrupter,
    Both,
    /// A metric, and an interrupter that is not the run's.
    MetricAndStranger,
    /// Only an interrupter that is not the run's.
    Stranger,
    /// A metric that was built and dropped, as for early stopping.
    DroppedMetric,
    /// A metric that was built and never given to the run.
    IdleMetric,
    Nobody,
}

/// One good epoch, saved; in the second only overflows, of which three in a row are allowed.
fn exhausted(
    listener: Listener,
    strategy: Option<ExecutionStrategy>,
    folder: &Path,
) -> (LearningResult<Scaled<Net>>, burn_amp::ScalerMonitor) {
    let good = Run {
        epochs: 1,
        ..Run::default()
    };
    good.launch(folder);
    let mut run = Run {
        epochs: 400,
        resume: Some(1),
        config: GradScalerConfig::new().with_max_consecutive_skips(Some(3)),
        ..Run::default()
    };
    (0..run.samples.len()).for_each(|index| poison(&mut run.samples, index));
    let (learner, monitor) = run.learner();
    let mut training = run.training(folder);
    if matches!(
        listener,
        Listener::Metric | Listener::Both | Listener::MetricAndStranger
    ) {
        training = training.metric_train_numeric(LossScaleMetric::new(&monitor));
    }
    if matches!(listener, Listener::Interrupter | Listener::Both) {
        training = training.with_interrupter(monitor.interrupter());
    }
    if matches!(listener, Listener::Stranger | Listener::MetricAndStranger) {
        monitor.interrupter();
    }
    if matches!(listener, Listener::DroppedMetric) {
        let _ = LossScaleMetric::new(&monitor);
    }
    let _idle = matches!(listener, Listener::IdleMetric).then(|| LossScaleMetric::new(&monitor));
    if let Some(strategy) = strategy {
        training = training.with_training_strategy(strategy.into());
    }
    (training.launch(learner), monitor)
}

/// Through Burn's error path, with a message to read, the model as it was, and the checkpoint of the good epoch.
#[test]
fn an_exhausted_loss_scale_ends_the_run_as_burn_ends_runs() {
    let multi = |optim| {
        let devices = vec![Device::flex(), Device::flex()];
        Some(ExecutionStrategy::multi(devices, optim))
    };
    for listener in [
        Listener::Metric,
        Listener::Interrupter,
        Listener::Both,
        Listener::MetricAndStranger,
    ] {
        for strategy in [
            None,
            multi(MultiDeviceOptim::OptimMainDevice),
            multi(MultiDeviceOptim::OptimSharded),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let devices = strategy.is_some();
            let (result, monitor) = exhausted(listener, strategy, folder.path());
            let error = result.error.expect("an error").to_string();
            assert!(
                error.contains("loss scale exhausted"),
                "{listener:?}: {error}"
            );
            assert!(error.contains("hidden.weight"), "{listener:?}: {error}");
            assert!(result.interrupted.is_none());

            let Some(AmpError::LossScaleExhausted { skips, .. }) = monitor.error() else {
                panic!("{:?}", monitor.error());
            };
            assert_eq!(skips, 4);
            assert_eq!(monitor.check().unwrap_err(), monitor.error().unwrap());
            assert!(all_finite(result.model.inner()));
            let good = check_checkpoint(folder.path(), 1).unwrap().unwrap();
            assert_eq!(good.counters().steps(), 6);
            // Nothing has changed after the failure, however late Burn noticed it.
            let steps = result.model.scaler().counters().steps();
            assert_eq!(steps, 6 + 4, "{listener:?}, several devices: {devices}");
            if !matches!(listener, Listener::MetricAndStranger) {
                let failed = if devices { 3 } else { 2 };
                let saved = check_checkpoint(folder.path(), failed);
                assert!(saved.is_err(), "a failed epoch is not saved");
            }
        }
    }
}

/// Without anybody to tell, a panic with the message, in the thread that has launched the run, before checkpoints are lost.
#[test]
fn without_a_listener_the_message_is_that_of_a_panic() {
    for listener in [
        Listener::Nobody,
        Listener::Stranger,
        Listener::DroppedMetric,
        Listener::IdleMetric,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let run = || exhausted(listener, None, folder.path());
        let panic = catch_unwind(AssertUnwindSafe(run)).err().unwrap();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.starts_with("loss scale exhausted"), "{message}");
        let good = check_checkpoint(folder.path(), 1).unwrap().unwrap();
        assert_eq!(good.counters().steps(), 6, "{listener:?}");
        assert!(
            check_checkpoint(folder.path(), 3).is_err(),
            "{listener:?}: the run went on for epochs"
        );
    }
}

/// A metric stands for the run as long as it or a clone lives. Once it is gone, there is nobody: a panic at once.
#[test]
fn a_metric_that_is_gone_reports_nothing() {
    for alive in [true, false] {
        let mut run = Run {
            config: GradScalerConfig::new().with_max_consecutive_skips(Some(0)),
            ..Run::default()
        };
        poison(&mut run.samples, 0);
        let (mut learner, monitor) = run.learner();
        let metric = LossScaleMetric::new(&monitor);
        let other = alive.then(|| metric.clone());
        drop(metric);
        let batches = loader(run.samples.clone(), None).to_device(&Device::flex().autodiff());
        let batch = batches.iter().next().unwrap().unwrap();
        let grads = learner.train_step(batch).grads;
        let step = || learner.optimizer_step(grads);
        assert_eq!(catch_unwind(AssertUnwindSafe(step)).is_ok(), alive);
        assert!(monitor.check().is_err());
        drop(other);
    }
}

/// A model whose run has failed trains again after a good checkpoint was loaded into it, or `train` was asked for.
#[test]
fn a_failed_model_can_be_trained_again() {
    for reload in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let (result, monitor) = exhausted(Listener::Interrupter, None, folder.path());
        assert!(monitor.check().is_err());
        let mut model = result.model.train();
        if reload {
            let file = folder.path().join("checkpoint/model-1.bpk");
            model = model.load_record(ModuleRecord::load(file).unwrap());
        }
        assert!(monitor.check().is_err(), "told until it trains again");
        let before = (*model.scaler().counters(), parameters(model.inner()));

        let again = tempfile::tempdir().unwrap();
        let run = Run {
            epochs: 1,
            ..Run::default()
        };
        let learner = Learner::new(model, AdamConfig::new().init(), ConstantLr::new(0.02));
        let result = run
            .training(again.path())
            .with_interrupter(monitor.interrupter())
            .metric_train_numeric(LossScaleMetric::new(&monitor))
            .launch(learner);
        assert!(result.error.is_none(), "reload: {reload}");
        monitor.check().unwrap();
        let counters = result.model.scaler().counters();
        assert_eq!(counters.steps(), before.0.steps() + 6);
        assert_eq!(counters.applied(), before.0.applied() + 6);
        assert!(parameters(result.model.inner()) != before.1);
    }
}

/// A parameter that the optimizer cannot step is the program's fault, and ends the run in the same way.
#[test]
fn a_half_precision_parameter_ends_the_run_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::default();
    let net = Net::with_half_parameters(&Device::flex().autodiff());
    let before = parameters(&net);
    let (learner, monitor) = run.learner_of(net);
    let result = run
        .training(folder.path())
        .metric_train_numeric(LossScaleMetric::new(&monitor))
        .launch(learner);
    let error = result.error.unwrap().to_string();
    assert!(error.contains("MasterWeights"), "{error}");
    assert_eq!(parameters(result.model.inner()), before);
}

/// A Learner cannot accumulate as the optimizer was told: an error at once, or at the first step, not another training.
#[test]
fn an_optimizer_that_accumulates_is_refused() {
    let run = Run::default();
    let device = Device::flex().autodiff();
    let optim = || {
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), run.config.init().unwrap());
        optim.with_accumulation(4).unwrap()
    };
    let lr = || ConstantLr::new(0.02);
    let refused = optim()
        .try_into_learner(Net::f16(&device), lr())
        .err()
        .unwrap();
    let AmpError::InvalidValue(invalid) = &refused else {
        panic!("{refused}")
    };
    assert_eq!(
        (invalid.field(), invalid.value()),
        ("with_accumulation", "4")
    );
    assert!(
        refused.to_string().contains("grads_accumulation(4)"),
        "{refused}"
    );

    let folder = tempfile::tempdir().unwrap();
    let optim = optim();
    let monitor = optim.monitor();
    let net = Net::f16(&device);
    let before = parameters(&net);
    let result = run
        .training(folder.path())
        .with_interrupter(monitor.interrupter())
        .launch(optim.into_learner(net, lr()));
    let error = result.error.unwrap().to_string();
    assert!(error.contains("grads_accumulation(4)"), "{error}");
    assert_eq!(monitor.check(), Err(refused));
    assert_eq!(result.model.scaler().counters().steps(), 0);
    assert_eq!(parameters(result.model.inner()), before);

    let folder = tempfile::tempdir().unwrap();
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), run.config.init().unwrap());
    let learner = optim.try_into_learner(Net::f16(&device), lr()).unwrap();
    assert!(run.training(folder.path()).launch(learner).error.is_none());
}

/// As for cross-validation: what ends one run does not end the next.
#[test]
fn clones_of_an_optimizer_fail_one_by_one() {
    let config = GradScalerConfig::new().with_max_consecutive_skips(Some(3));
    let optim = ScaledOptimizer::new(AdamConfig::new().init(), config.init().unwrap());
    for bad in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut run = Run::default();
        if bad {
            (0..run.samples.len()).for_each(|index| poison(&mut run.samples, index));
        }
        let fold = optim.clone();
        let monitor = fold.monitor();
        let net = Net::f16(&Device::flex().autodiff());
        let result = run
            .training(folder.path())
            .metric_train_numeric(LossScaleMetric::new(&monitor))
            .launch(fold.into_learner(net, ConstantLr::new(0.02)));
        assert_eq!(result.error.is_some(), bad);
        assert_eq!(monitor.check().is_err(), bad);
    }
    assert!(optim.monitor().check().is_ok());
}

/// A step that counts nothing is no step to the metrics.
#[test]
fn a_step_that_is_refused_is_not_shown() {
    let run = Run::default();
    let device = Device::flex().autodiff();
    let (mut learner, monitor) = run.learner();
    monitor.interrupter();
    let mut metric = SkippedStepsMetric::new(&monitor);
    let metadata = MetricMetadata {
        progress: Progress {
            items_processed: 1,
            items_total: 1,
            unit: None,
        },
        iteration: None,
        lr: None,
    };
    let batches = loader(run.samples.clone(), None).to_device(&device);
    let mut batches = batches.iter();
    let grads = learner.train_step(batches.next().unwrap().unwrap()).grads;
    learner.lr_step();
    learner.optimizer_step(grads);
    metric.update(&(), &metadata).unwrap();
    assert!(metric.value().is_some());

    let half = to_half(learner.model(), FloatDType::F16, &[]);
    let mut optim = AdamConfig::new().init();
    let grads = half.step(batches.next().unwrap().unwrap()).grads;
    let half = half.optimize(&mut optim, 0.1.into(), grads);
    assert!(matches!(
        monitor.error(),
        Some(AmpError::HalfPrecisionParameter { .. })
    ));
    assert_eq!(half.scaler().counters().steps(), 1);
    metric.update(&(), &metadata).unwrap();
    assert!(metric.value().is_none());
}

/// What is not measured is not NaN on the dashboard.
#[test]
fn metrics_of_a_disabled_scaler_are_numbers() {
    let scaler = GradScalerConfig::new().with_enabled(false).init().unwrap();
    let monitor = ScaledOptimizer::new(AdamConfig::new().init(), scaler).monitor();
    let last = [
        GradientNormMetric::new(&monitor).final_value(),
        ZeroGradientsMetric::new(&monitor).final_value(),
        SkippedStepsMetric::new(&monitor).final_value(),
    ];
    assert!(last.iter().all(|entry| entry.current() == 0.0), "{last:?}");
}
