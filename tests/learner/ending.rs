//! Runs that end early: by early stopping, on request, or because only skips are left.

use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::{MetricEarlyStoppingStrategy, StoppingCondition};

use crate::fused::{LEARNERS, in_a_pipeline};
use crate::support::*;

#[test]
fn early_stopping_sees_the_metrics_of_a_scaled_run() {
    let run = Run::of(50);
    let amp = run.amp();
    // The loss scale grows, so the first epoch is the best one for good.
    let strategy = MetricEarlyStoppingStrategy::new(
        &amp.loss_scale_metric(),
        Aggregate::Mean,
        Direction::Lowest,
        Split::Train,
        StoppingCondition::NoImprovementSince { n_epochs: 2 },
    );
    let add =
        |amp: &MixedPrecision, training: Training| amp.training(training).early_stopping(strategy);
    let done = run.train_by(&temp_dir(), &amp, burns(&amp), add).finished();
    assert!(done.interrupted.is_none());
    assert_eq!(done.counters().steps(), 3 * 6);
}

/// Stopped on request in the middle of an epoch: the model is that of the steps taken, and the checkpoint of the epoch before
/// is whole.
#[test]
fn an_interrupted_run_returns_what_it_has() {
    let run = Run::of(3);
    let amp = run.amp();
    let interrupter = Interrupter::new();
    let (stopper, monitor) = (interrupter.clone(), amp.clone());
    let stop = move || {
        if monitor.counters().steps() >= 8 {
            stopper.stop(Some("enough"));
        }
        Ok(())
    };
    let samples = Watched(InMemDataset::new(run.samples.clone()), stop);
    let folder = temp_dir();
    let training = run.training_on(loader(samples, None), folder.path());
    let training = training.with_interrupter(interrupter);
    let result = training.launch(burns(&amp).unwrap());
    let done = Done::of(result, &amp, &folder).finished();
    let reason = done.interrupted.as_ref().unwrap().reason.as_deref();
    assert_eq!(reason, Some("enough"));

    let (steps, _) = done.steps();
    assert!((8..12).contains(&steps), "{steps} steps");
    assert_eq!((amp.counters().steps(), steps_in(&done.folder)), (steps, 6));
}

/// The steps that the first checkpoint has counted.
fn steps_in(folder: &Folder) -> u64 {
    let resume = Resume::check(folder.path(), 1).unwrap();
    resume.record().unwrap().counters().unwrap().steps()
}

/// Who is there to end the run.
type Listener = fn(&MixedPrecision, Training) -> Training;

const TRAINING: Listener = |amp, training| amp.training(training);

/// For a run that has an interrupter of the program's.
const TRAINING_AND_OWN: Listener =
    |amp, training| amp.training(training.with_interrupter(Interrupter::new()));

const INTERRUPTER: Listener = |amp, training| training.with_interrupter(amp.interrupter());

/// One good epoch, saved; in the second only overflows, of which three in a row are allowed.
fn exhausted(listener: Listener, run: Run, folder: &Folder) -> Done {
    Run::of(1).launch_in(folder, burns);
    let run = run.until(400).resumed(1).with_skips(3).poisoned(0..48);
    let amp = run.amp();
    run.train_by(folder, &amp, burns(&amp), listener)
}

/// Through Burn's error path, with a message to read, the model as it was, and the checkpoint of the good epoch.
#[test]
fn an_exhausted_loss_scale_ends_the_run_as_burn_ends_runs() {
    let listeners = [TRAINING, TRAINING_AND_OWN, INTERRUPTER];
    for (index, listener) in listeners.into_iter().enumerate() {
        for workers in [None, Some(WAYS[0]), Some(WAYS[1])] {
            println!("listener {index}, {workers:?}");
            let folder = temp_dir();
            let done = exhausted(listener, Run::default().with_workers(workers), &folder);
            let error = done.error.as_ref().expect("an error");
            says(error, ["loss scale exhausted", "hidden.weight"]);
            assert!(done.interrupted.is_none());

            let error = done.amp.run_result().unwrap_err();
            is_error(&error, "LossScaleExhausted", ["after 4 skipped steps"]);
            assert_eq!(done.amp.run_result().unwrap_err(), error);
            assert!(all_finite(&done.model));
            assert_eq!((steps_in(&folder), done.counters().steps()), (6, 6 + 4));
            let failed = if workers.is_some() { 3 } else { 2 };
            let saved = Resume::check(folder.path(), failed);
            assert!(saved.is_err(), "a failed epoch is not saved");
        }
    }
}

/// Whether the step is waited for or known later, and a loss that is infinite does not lower the scale. Another optimizer, of which nobody
/// knows the kind, goes on with the model: it is stepped as Burn's.
#[test]
fn what_ends_a_run_is_reported_and_another_goes_on() {
    let infinite = "the loss, or its gradient, is infinite or NaN: 4 steps in a row";
    let (steep, exhausted) = (overflow(1e30), "after 4 skipped steps");
    let fused: fn(&MixedPrecision) -> Made = in_a_pipeline;
    for (gain, variant, wording) in [
        (f32::INFINITY, "LossNotFinite", infinite),
        (steep, "LossScaleExhausted", exhausted),
    ] {
        let run = Run::of(400).with_skips(3).with_gain(gain, 0..48);
        for learner in LEARNERS.into_iter().chain([fused]) {
            let (amp, before) = (run.amp(), values(&net()));
            let done = run.train(&temp_dir(), &amp, learner(&amp));
            says(&done.error.unwrap(), [wording]);
            is_error(&amp.run_result().unwrap_err(), variant, [wording]);
            assert_eq!(amp.loss_scale() == 65536.0, gain.is_infinite());
            assert_eq!(amp.counters().steps(), 4);
            assert!(values(&done.model) == before);

            let again = Learner::new(done.model.train(), AdamConfig::new().init(), lr());
            let done = Run::of(1).train(&temp_dir(), &amp, Ok(again)).finished();
            assert_eq!(done.counters().steps(), 4 + 6);
            assert!(values(&done.model) != before);
        }
    }
}

/// Where nobody asks, a panic with the message, in the thread that has launched the run, before checkpoints are lost.
#[test]
fn without_a_listener_the_message_is_that_of_a_panic() {
    let nobody: Listener = |_, training| training;
    // Only an interrupter that is not the run's.
    let stranger: Listener = |amp, training| {
        amp.interrupter();
        training
    };
    for (name, listener) in [("nobody", nobody), ("stranger", stranger)] {
        let folder = temp_dir();
        let message = panic_message(|| exhausted(listener, Run::default(), &folder));
        assert!(message.starts_with("loss scale exhausted"), "{message}");
        assert_eq!(steps_in(&folder), 6, "{name}");
        let next = Resume::check(folder.path(), 2);
        assert!(next.is_err(), "{name}: the run went on");
    }
}

/// A model whose run has failed trains again after a good checkpoint was loaded into it, or `train` was asked for: with
/// windows of several micro-batches too, before whose first step Burn asks the interrupter.
#[test]
fn a_failed_model_can_be_trained_again() {
    for (reload, listener, again, windows) in [
        (true, TRAINING, TRAINING, None),
        (true, TRAINING, TRAINING, Some(3)),
        (false, TRAINING, TRAINING, Some(3)),
        (false, TRAINING_AND_OWN, INTERRUPTER, Some(3)),
        (false, INTERRUPTER, INTERRUPTER, Some(3)),
    ] {
        let folder = temp_dir();
        let run = Run::default().with_windows(windows);
        let Done { model, amp, .. } = exhausted(listener, run, &folder);
        let mut model = model.train();
        if reload {
            let file = folder.path().join("checkpoint/model-1.bpk");
            model = model.try_load_file(file).unwrap();
        }
        assert!(amp.run_result().is_err(), "returned until it trains again");
        let (before, weights) = (model.scaler().counters(), parameters(&model));

        // What is exhausted stays so: the poison is gone.
        let learner = Learner::new(model, AdamConfig::new().init(), ConstantLr::new(0.02));
        let run = Run::of(1).with_windows(windows);
        let done = run.train_by(&temp_dir(), &amp, Ok(learner), again);
        let (after, steps) = (done.counters(), 6 / windows.unwrap_or(1) as u64);
        assert_eq!((done.error, amp.run_result()), (None, Ok(())));
        assert_eq!(after.steps(), before.steps() + steps);
        assert_eq!(after.stepped(), before.stepped() + steps);
        assert!(parameters(&done.model) != weights);
    }
}

/// A new model on the same handle is not ended by what has ended another, whenever it was made.
#[test]
fn a_failure_does_not_end_the_next_run() {
    for early in [true, false] {
        let bad = Run::default().with_skips(3).poisoned(0..48);
        let good = Run::of(1).with_windows(3);
        let amp = bad.amp();
        let waiting = early.then(|| burns(&amp));
        let error = bad.train(&temp_dir(), &amp, burns(&amp)).error;
        assert!(error.is_some());

        let learner = waiting.unwrap_or_else(|| burns(&amp));
        let done = good.train(&temp_dir(), &amp, learner).finished();
        amp.run_result().unwrap();
        assert_eq!(done.counters().steps(), 2);
    }
}

/// An epoch may ask the interrupter before its first step, as those of Burn 0.23 do.
#[test]
fn the_next_run_does_not_begin_interrupted() {
    let begins: [fn(&MixedPrecision, Scaled<Net>); 3] = [
        |amp, _| drop(burns(amp)),
        |amp, _| drop(amp.training(Run::of(1).training::<Net>(temp_dir().path()))),
        |_, model| drop(model.train()),
    ];
    for begin in begins {
        let amp = Run::default().amp();
        let (interrupter, rate) = (amp.interrupter(), ConstantLr::new(f64::NAN));
        let learner = amp.learner(net(), AdamConfig::new().init(), rate);
        let failed = Run::of(1).train_by(&temp_dir(), &amp, learner, INTERRUPTER);
        assert!(interrupter.should_stop() && amp.run_result().is_err());
        begin(&amp, failed.model);
        assert!(!interrupter.should_stop());
    }
}

/// Agents and strategies that step by themselves end a run in the same way.
#[test]
fn a_failure_of_ones_own_ends_the_run() {
    let amp = Run::default().amp();
    let error = AmpError::LossNotFinite {
        skips: 1,
        output_finite: true,
        parameter: None,
        last_read: None,
    };
    let alone = amp.fail_run(error.clone());
    assert_eq!(alone, Err(error.clone()), "nobody listens");
    let interrupter = amp.interrupter();
    assert_eq!(amp.fail_run(error.clone()), Ok(()));
    assert!(interrupter.should_stop());
    assert_eq!(amp.run_result(), Err(error));
}

/// Every weight would be NaN after one step with it.
#[test]
fn a_learning_rate_that_is_not_finite_ends_the_run() {
    let optims: [fn() -> LearnerOptimizer; 3] = [
        || AdamConfig::new().init().into(),
        || SgdConfig::new().init().into(),
        || fused().into(),
    ];
    let rates = |optim| [(optim, f64::NAN), (optim, f64::INFINITY)];
    for (optim, rate) in optims.iter().flat_map(rates) {
        for amp in [Run::default().amp(), MixedPrecision::f32()] {
            let learner = amp.learner(net(), optim(), ConstantLr::new(rate));
            let done = Run::default().train(&temp_dir(), &amp, learner);
            let refused = amp.run_result().unwrap_err().to_string();
            let wording = format!("`lr` is {rate}, but must be finite");
            assert!(refused.starts_with(&wording), "{amp:?}: {refused}");
            assert!(all_finite(&done.model), "{amp:?}");
            assert_eq!(amp.counters().steps(), 0, "{amp:?}");
        }
    }
}

/// A Learner cannot accumulate as the optimizer is set to, nor with another scale; on a thread of its own, an optimizer takes no averages and
/// leaves no step to the model: an error at once, not another training.
#[test]
fn an_optimizer_that_does_not_fit_is_refused() {
    let amp = MixedPrecision::f16();
    let windows = adam(&amp).with_accumulation(4);
    let averages = pipelined(adam(&amp).with_ema(EmaConfig::new()));
    let by_model = pipelined(adam(&amp).with_own_optimize());
    let other = adam(&MixedPrecision::f16());
    let wrong = adam(&amp).with_ema(EmaConfig::new().with_momentum(2.0));
    let wrong_fused = FusedAdam::new(AdamConfig::new().with_beta_1(1.0));
    let scale = "ScaledOptimizer::new(optim, &amp)";
    let cases: [(LearnerOptimizer, _, _); 7] = [
        (windows.into(), "with_accumulation", "grads_accumulation(4)"),
        (other.into(), "optim", scale),
        (wrong.into(), "momentum", "between 0 and 1"),
        (wrong_fused.into(), "beta_1", "below 1"),
        (sgd_under(GradScalerConfig::new()).into(), "optim", scale),
        (averages.into(), "with_ema", "left out"),
        (by_model.into(), "with_own_optimize", "left out"),
    ];
    for (optim, field, advice) in cases {
        let error = amp.learner(net(), optim, lr()).map(drop).unwrap_err();
        is_error(&error, "InvalidValue", [&*format!("`{field}` is"), advice]);
    }
    assert!(burns(&amp).is_ok());
}

/// A step that counts nothing is no step to the metrics.
#[test]
fn a_step_that_is_refused_is_not_shown() {
    let run = Run::default();
    let amp = run.amp();
    let mut learner = burns(&amp).unwrap();
    amp.interrupter();
    let mut metric = amp.skipped_steps_metric();
    let one = loader(InMemDataset::new(samples(8)), None);
    let progress = one.iter().progress();
    let metadata = MetricMetadata {
        progress,
        iteration: Some(1),
        lr: Some(0.1.into()),
    };
    let [first, second] = [0, 8].map(|from| batches(&run.samples[from..from + 8]).remove(0));
    step(&mut learner, first);
    metric.update(&(), &metadata).unwrap();
    assert!(metric.value().is_some());

    // Half-precision parameters and f32 gradients, which Burn's optimizers cannot combine.
    let grads = learner.train_step(second).grads;
    let half = to_half(learner.model(), FloatDType::F16, &[]);
    let mut optim = AdamConfig::new().init();
    let half = half.optimize(&mut optim, 0.1.into(), grads);
    let error = amp.run_result().unwrap_err();
    is_error(&error, "HalfPrecisionParameter", ["MasterWeights"]);
    assert_eq!(half.scaler().counters().steps(), 1);
    metric.update(&(), &metadata).unwrap();
    assert!(metric.value().is_none());
}

/// What is not measured is not NaN on the dashboard.
#[test]
fn metrics_of_a_disabled_scaler_are_numbers() {
    let amp = MixedPrecision::f32();
    let figures = [amp.loss_scale_metric(), amp.gradient_norm_metric()];
    let counts = [amp.zero_gradients_metric(), amp.skipped_steps_metric()];
    for metric in [figures, counts].concat() {
        assert_eq!(metric.final_value().current(), 0.0);
    }
}
