//! Runs that end early: by early stopping, on request, or because only skips are left.

use burn::{
    data::dataloader::Progress,
    lr_scheduler::constant::ConstantLr,
    module::Module,
    optim::{AdamConfig, ModuleOptimizer, SgdConfig},
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
    AmpError, Fused, FusedAdam, GradScalerConfig, MixedPrecision, Resume, Scaled, ScaledOptimizer,
    to_half,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use crate::support::{Net, Run, all_finite, loader, lr, parameters, poison, spoil, temp_dir};

#[test]
fn early_stopping_sees_the_metrics_of_a_scaled_run() {
    let folder = temp_dir();
    let run = Run {
        epochs: 50,
        ..Run::default()
    };
    let amp = run.amp();
    let learner = run.learner(&amp);
    // The loss scale grows, so the first epoch is the best one for good.
    let strategy = MetricEarlyStoppingStrategy::new(
        &amp.loss_scale_metric(),
        Aggregate::Mean,
        Direction::Lowest,
        Split::Train,
        StoppingCondition::NoImprovementSince { n_epochs: 2 },
    );
    let training = amp.training(run.training(folder.path()));
    let result = training.early_stopping(strategy).launch(learner);
    assert!(result.error.is_none() && result.interrupted.is_none());
    assert_eq!(result.model.scaler().counters().steps(), 3 * 6);
}

/// Stopped on request in the middle of an epoch: the model is that of the steps taken, and the checkpoint of the epoch before
/// is whole.
#[test]
fn an_interrupted_run_returns_what_it_has() {
    let folder = temp_dir();
    let run = Run {
        epochs: 3,
        ..Run::default()
    };
    let amp = run.amp();
    let learner = run.learner(&amp);
    let monitor = amp.clone();
    let interrupter = Interrupter::new();
    let stop = {
        let (interrupter, monitor) = (interrupter.clone(), monitor.clone());
        std::thread::spawn(move || {
            while monitor.counters().steps() < 8 {
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
    assert_eq!(monitor.counters().steps(), steps);
    assert_eq!(steps_in(folder.path(), 1), 6);
}

/// The steps that a checkpoint has counted.
fn steps_in(folder: &Path, epoch: usize) -> u64 {
    let resume = Resume::check(folder, epoch).unwrap();
    resume.record().unwrap().counters().unwrap().steps()
}

/// Who is there to end the run.
#[derive(Clone, Copy, Debug)]
enum Listener {
    Training,
    /// `amp.training`, for a run that has an interrupter of the program's.
    TrainingAndOwn,
    Interrupter,
    /// Only an interrupter that is not the run's.
    Stranger,
    Nobody,
}

/// Three skipped steps in a row are allowed.
fn impatient() -> GradScalerConfig {
    GradScalerConfig::new().with_max_consecutive_skips(Some(3))
}

/// One good epoch, saved; in the second only overflows.
fn exhausted(
    listener: Listener,
    strategy: Option<ExecutionStrategy>,
    accumulation: Option<usize>,
    folder: &Path,
) -> (LearningResult<Scaled<Net>>, MixedPrecision) {
    let good = Run {
        epochs: 1,
        ..Run::default()
    };
    good.launch(folder);
    let mut run = Run {
        epochs: 400,
        resume: Some(1),
        config: impatient(),
        accumulation,
        ..Run::default()
    };
    (0..run.samples.len()).for_each(|index| poison(&mut run.samples, index));
    let amp = run.amp();
    let learner = run.learner(&amp);
    let mut training = run.training(folder);
    training = match listener {
        Listener::Training => amp.training(training),
        Listener::TrainingAndOwn => amp.training(training.with_interrupter(Interrupter::new())),
        Listener::Interrupter => training.with_interrupter(amp.interrupter()),
        Listener::Stranger => {
            amp.interrupter();
            training
        }
        Listener::Nobody => training,
    };
    if let Some(strategy) = strategy {
        training = training.with_training_strategy(strategy.into());
    }
    (training.launch(learner), amp)
}

/// Through Burn's error path, with a message to read, the model as it was, and the checkpoint of the good epoch.
#[test]
fn an_exhausted_loss_scale_ends_the_run_as_burn_ends_runs() {
    let multi = |optim| {
        let devices = vec![Device::flex(), Device::flex()];
        Some(ExecutionStrategy::multi(devices, optim))
    };
    for listener in [
        Listener::Training,
        Listener::TrainingAndOwn,
        Listener::Interrupter,
    ] {
        for strategy in [
            None,
            multi(MultiDeviceOptim::OptimMainDevice),
            multi(MultiDeviceOptim::OptimSharded),
        ] {
            let folder = temp_dir();
            let failed = if strategy.is_some() { 3 } else { 2 };
            let (result, amp) = exhausted(listener, strategy, None, folder.path());
            let error = result.error.expect("an error").to_string();
            assert!(
                error.contains("loss scale exhausted"),
                "{listener:?}: {error}"
            );
            assert!(error.contains("hidden.weight"), "{listener:?}: {error}");
            assert!(result.interrupted.is_none());

            let monitor = amp.clone();
            let Some(AmpError::LossScaleExhausted { skips, .. }) = monitor.run_result().err()
            else {
                panic!("{:?}", monitor.run_result().err());
            };
            assert_eq!(skips, 4);
            assert_eq!(
                monitor.run_result().unwrap_err(),
                monitor.run_result().err().unwrap()
            );
            assert!(all_finite(&result.model));
            assert_eq!(steps_in(folder.path(), 1), 6);
            assert_eq!(result.model.scaler().counters().steps(), 6 + 4);
            let saved = Resume::check(folder.path(), failed);
            assert!(saved.is_err(), "a failed epoch is not saved");
        }
    }
}

/// A loss that is infinite ends the run as what it is.
#[test]
fn a_run_of_infinite_losses_is_not_blamed_on_the_scale() {
    let mut run = Run {
        config: impatient(),
        ..Run::default()
    };
    (0..run.samples.len()).for_each(|index| spoil(&mut run.samples, index));
    let amp = run.amp();
    if amp.dtype() != FloatDType::F16 {
        return;
    }
    let folder = temp_dir();
    let learner = run.learner(&amp);
    let result = amp.training(run.training(folder.path())).launch(learner);
    let error = result.error.unwrap().to_string();
    assert!(
        error.contains("the loss, or its gradient, is infinite or NaN"),
        "{error}"
    );
    let error = amp.run_result().unwrap_err();
    assert!(
        matches!(error, AmpError::LossNotFinite { skips: 4, .. }),
        "{error}"
    );
    assert_eq!(amp.loss_scale(), 65536.0);
}

/// Without anybody to tell, a panic with the message, in the thread that has launched the run, before checkpoints are lost.
#[test]
fn without_a_listener_the_message_is_that_of_a_panic() {
    for listener in [Listener::Nobody, Listener::Stranger] {
        let folder = temp_dir();
        let run = || exhausted(listener, None, None, folder.path());
        let panic = catch_unwind(AssertUnwindSafe(run)).err().unwrap();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.starts_with("loss scale exhausted"), "{message}");
        assert_eq!(steps_in(folder.path(), 1), 6, "{listener:?}");
        assert!(
            Resume::check(folder.path(), 2).is_err(),
            "{listener:?}: the run went on"
        );
    }
}

/// A model whose run has failed trains again after a good checkpoint was loaded into it, or `train` was asked for: with
/// windows of several micro-batches too, before whose first step Burn asks the interrupter.
#[test]
fn a_failed_model_can_be_trained_again() {
    for (reload, listener, accumulation) in [
        (true, Listener::Training, None),
        (false, Listener::Training, None),
        (true, Listener::Training, Some(3)),
        (false, Listener::Training, Some(3)),
        (false, Listener::TrainingAndOwn, Some(3)),
        (false, Listener::Interrupter, Some(3)),
    ] {
        let folder = temp_dir();
        let (result, amp) = exhausted(listener, None, accumulation, folder.path());
        let monitor = amp.clone();
        assert!(monitor.run_result().is_err());
        let mut model = result.model.train();
        if reload {
            let file = folder.path().join("checkpoint/model-1.bpk");
            model = model.try_load_file(file).unwrap();
        }
        assert!(monitor.run_result().is_err(), "told until it trains again");
        let before = (model.scaler().counters(), parameters(&model));

        let again = temp_dir();
        let run = Run {
            epochs: 1,
            accumulation,
            ..Run::default()
        };
        // What is exhausted stays so: the poison is gone.
        let learner = Learner::new(model, AdamConfig::new().init(), ConstantLr::new(0.02));
        let training = run.training(again.path());
        let result = match listener {
            Listener::Training => amp.training(training),
            _ => training.with_interrupter(monitor.interrupter()),
        }
        .launch(learner);
        assert!(result.error.is_none(), "reload: {reload}");
        monitor.run_result().unwrap();
        let steps = 6 / accumulation.unwrap_or(1) as u64;
        let counters = result.model.scaler().counters();
        assert_eq!(counters.steps(), before.0.steps() + steps);
        assert_eq!(counters.stepped(), before.0.stepped() + steps);
        assert!(parameters(&result.model) != before.1);
    }
}

/// A new model on the same handle is not ended by what has ended another, whenever it was made.
#[test]
fn a_failure_does_not_end_the_next_run() {
    for early in [true, false] {
        let mut bad = Run {
            config: impatient(),
            ..Run::default()
        };
        let good = Run {
            epochs: 1,
            accumulation: Some(3),
            ..Run::default()
        };
        (0..bad.samples.len()).for_each(|index| poison(&mut bad.samples, index));
        let amp = bad.amp();
        let waiting = early.then(|| good.learner(&amp));
        let folder = temp_dir();
        let training = amp.training(bad.training(folder.path()));
        let result = training.launch(bad.learner(&amp));
        assert!(result.error.is_some());

        let folder = temp_dir();
        let learner = waiting.unwrap_or_else(|| good.learner(&amp));
        let result = amp.training(good.training(folder.path())).launch(learner);
        assert!(result.error.is_none());
        amp.run_result().unwrap();
        assert_eq!(result.model.scaler().counters().steps(), 2);
    }
}

/// Agents and strategies that step by themselves end a run in the same way.
#[test]
fn a_failure_of_ones_own_ends_the_run() {
    let run = Run::default();
    let amp = run.amp();
    let error = AmpError::LossNotFinite {
        skips: 1,
        output_finite: true,
    };
    assert_eq!(
        amp.fail_run(error.clone()),
        Err(error.clone()),
        "nobody listens"
    );
    let interrupter = amp.interrupter();
    assert_eq!(amp.fail_run(error.clone()), Ok(()));
    assert!(interrupter.should_stop());
    assert_eq!(amp.run_result(), Err(error));
}

/// Every weight would be NaN after one step with it.
#[test]
fn a_learning_rate_that_is_not_finite_ends_the_run() {
    let run = Run::default();
    let launch = |amp: MixedPrecision, optim: fn() -> ModuleOptimizer, fused: bool, rate: f64| {
        let at = format!("{:?}, fused: {fused}, {rate}", amp.dtype());
        let folder = temp_dir();
        let net = Net::new(&Device::default().autodiff());
        let lr = ConstantLr::new(rate);
        let learner = match fused {
            true => amp.learner(net, fused_adam(), lr).unwrap(),
            false => amp.learner(net, optim(), lr).unwrap(),
        };
        let training = amp.training(run.training(folder.path()));
        let model = training.launch(learner).model;
        let refused = amp.run_result().expect_err(&at).to_string();
        assert!(
            refused.starts_with(&format!("`lr` is {rate}, but must be finite")),
            "{at}: {refused}"
        );
        assert!(all_finite(&model), "{at}");
        assert_eq!(amp.counters().steps(), 0, "{at}");
    };
    let adam = || AdamConfig::new().init();
    let sgd = || SgdConfig::new().init();
    for amp in [|| Run::default().amp(), MixedPrecision::f32] {
        for rate in [f64::NAN, f64::INFINITY] {
            launch(amp(), adam, false, rate);
            launch(amp(), sgd, false, rate);
            launch(amp(), adam, true, rate);
        }
    }
}

fn fused_adam() -> FusedAdam {
    Fused::new(AdamConfig::new()).unwrap()
}

/// A Learner cannot accumulate as the optimizer was told, nor with another scale: an error at once, not another training.
#[test]
fn an_optimizer_that_does_not_fit_is_refused() {
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::f16();
    let refused = |optim| {
        let learner = amp.learner(Net::new(&device), optim, lr());
        let error = learner.err().expect("an error");
        let AmpError::InvalidValue { field, .. } = &error else {
            panic!("{error}")
        };
        (*field, error.to_string())
    };
    let adam = || AdamConfig::new().init();
    let optim = ScaledOptimizer::new(adam(), &amp);
    let (field, message) = refused(optim.with_accumulation(4).unwrap());
    assert_eq!(field, "with_accumulation");
    assert!(message.contains("grads_accumulation(4)"), "{message}");
    for optim in [
        ScaledOptimizer::new(adam(), &MixedPrecision::f16()),
        ScaledOptimizer::new(adam(), GradScalerConfig::new().init().unwrap()),
    ] {
        let (field, message) = refused(optim);
        assert_eq!(field, "optim");
        assert!(
            message.contains("ScaledOptimizer::new(optim, &amp)"),
            "{message}"
        );
    }
    let optim = ScaledOptimizer::new(adam(), &amp);
    assert!(amp.learner(Net::new(&device), optim, lr()).is_ok());
}

/// A step that counts nothing is no step to the metrics.
#[test]
fn a_step_that_is_refused_is_not_shown() {
    let run = Run::default();
    let device = Device::flex().autodiff();
    let amp = run.amp();
    let (mut learner, monitor) = (run.learner(&amp), amp.clone());
    monitor.interrupter();
    let mut metric = monitor.skipped_steps_metric();
    let metadata = MetricMetadata {
        progress: Progress {
            items_processed: 1,
            items_total: 1,
            unit: None,
        },
        iteration: Some(1),
        lr: Some(0.1.into()),
    };
    let batches = loader(run.samples.clone(), None).to_device(&device);
    let mut batches = batches.iter();
    let grads = learner.train_step(batches.next().unwrap().unwrap()).grads;
    learner.lr_step();
    learner.optimizer_step(grads);
    metric.update(&(), &metadata).unwrap();
    assert!(metric.value().is_some());

    // Half-precision parameters and f32 gradients, which Burn's optimizers cannot combine.
    let grads = learner.train_step(batches.next().unwrap().unwrap()).grads;
    let half = to_half(learner.model(), FloatDType::F16, &[]);
    let mut optim = AdamConfig::new().init();
    let half = half.optimize(&mut optim, 0.1.into(), grads);
    let error = monitor.run_result().err().unwrap();
    assert!(matches!(error, AmpError::HalfPrecisionParameter { .. }));
    assert!(error.to_string().contains("MasterWeights"), "{error}");
    assert_eq!(half.scaler().counters().steps(), 1);
    metric.update(&(), &metadata).unwrap();
    assert!(metric.value().is_none());
}

/// What is not measured is not NaN on the dashboard.
#[test]
fn metrics_of_a_disabled_scaler_are_numbers() {
    let monitor = MixedPrecision::bf16();
    let last = [
        monitor.loss_scale_metric().final_value(),
        monitor.gradient_norm_metric().final_value(),
        monitor.zero_gradients_metric().final_value(),
        monitor.skipped_steps_metric().final_value(),
    ];
    assert!(last.iter().all(|entry| entry.current() == 0.0), "{last:?}");
}
