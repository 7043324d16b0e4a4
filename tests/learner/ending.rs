//! Runs that end early: by early stopping, on request, or because only skips are left.

use burn::train::metric::store::{Aggregate::Mean, Direction::Lowest, Split::Train};
use burn::train::{MetricEarlyStoppingStrategy, StoppingCondition};

use crate::support::*;

#[test]
fn early_stopping_sees_the_metrics_of_a_scaled_run() {
    let run = Run::of(50);
    let amp = run.amp();
    // The loss scale grows, so the first epoch is the best one for good.
    let scale = amp.loss_scale_metric();
    let when = StoppingCondition::NoImprovementSince { n_epochs: 2 };
    let strategy = MetricEarlyStoppingStrategy::new(&scale, Mean, Lowest, Train, when);
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
    let (mut run, interrupter) = (Run::of(3), Interrupter::new());
    let amp = run.amp();
    let (stopper, monitor) = (interrupter.clone(), amp.clone());
    run.watch = Arc::new(move || {
        if monitor.counters().steps() >= 8 {
            stopper.stop(Some("enough"));
        }
        Ok(())
    });
    let add = |_: &_, training: Training| training.with_interrupter(interrupter);
    let done = run.train_by(&temp_dir(), &amp, burns(&amp), add).finished();
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
    let run = run.resumed(1).with_skips(3).poisoned(0..48);
    let amp = run.amp();
    run.train_by(folder, &amp, burns(&amp), listener)
}

/// Through Burn's error path, with a message to read, the model as it was, and the checkpoint of the good epoch. The model trains again after that
/// was loaded into it, or `train` was asked for: with windows of several micro-batches too, before whose first step Burn asks the interrupter.
#[test]
fn an_exhausted_loss_scale_ends_the_run_as_burn_ends_runs() {
    for (listener, again, workers, windows, reload) in [
        (TRAINING, TRAINING, None, None, true),
        (TRAINING, TRAINING, None, Some(3), true),
        (TRAINING, TRAINING, None, Some(3), false),
        (TRAINING, TRAINING, Some(WAYS[0]), None, false),
        (TRAINING, TRAINING, Some(WAYS[1]), None, false),
        (TRAINING_AND_OWN, INTERRUPTER, None, Some(3), false),
        (TRAINING_AND_OWN, TRAINING, Some(WAYS[0]), None, false),
        (INTERRUPTER, INTERRUPTER, None, Some(3), false),
        (INTERRUPTER, TRAINING, Some(WAYS[1]), None, false),
    ] {
        let (folder, run) = (temp_dir(), Run::of(400).with_windows(windows));
        let done = exhausted(listener, run.with_workers(workers), &folder);
        let said = done.error.as_ref().unwrap();
        says(said, ["loss scale exhausted", "hidden.weight"]);
        assert!(done.interrupted.is_none());
        let error = done.amp.run_result().unwrap_err();
        is_error(&error, "LossScaleExhausted", ["after 4 skipped steps"]);
        let before = values(&done.model);
        assert!(all_finite(&done.model));
        assert_eq!((done.steps(), steps_in(&folder)), ((6 + 4, 4), 6));
        let of_epoch = 6 / windows.unwrap_or(1);
        let failed = 4usize.div_ceil(of_epoch / (1 + workers.iter().len()));
        let saved = Resume::check(folder.path(), 1 + failed);
        assert!(saved.is_err(), "a failed epoch is not saved");

        let mut model = done.model.train();
        if reload {
            model = model.try_load_file(file(&folder, "model", 1)).unwrap();
        }
        // What is exhausted stays so: the poison is gone.
        assert_eq!(done.amp.run_result(), Err(error), "until it trains again");
        let learner = Learner::new(model, burns_adam(), ConstantLr::new(0.02));
        let run = Run::of(1).with_windows(windows);
        let done = run.train_by(&temp_dir(), &done.amp, Ok(learner), again);
        let done = done.finished();
        assert_eq!(done.amp.run_result(), Ok(()));
        assert_eq!(done.steps(), (6 + 4 + of_epoch as u64, 4));
        assert!(values(&done.model) != before);
    }
}

/// Whether the step is waited for or known later, and a loss that is infinite does not lower the scale. Another optimizer, of which nobody
/// knows the kind, goes on with the model: it is stepped as Burn's.
#[test]
fn what_ends_a_run_is_reported_and_another_goes_on() {
    let infinite = "the loss, or its gradient, is infinite or NaN: 4 steps in a row";
    let exhausted = "after 4 skipped steps";
    let cases = [
        (f32::INFINITY, "LossNotFinite", infinite),
        (overflow(1e30), "LossScaleExhausted", exhausted),
    ];
    for learner in LEARNERS {
        for (gain, variant, wording) in cases {
            let run = Run::of(400).with_skips(3).with_gain(gain, 0..48);
            let (amp, before) = (run.amp(), values(&net()));
            let done = run.train(&temp_dir(), &amp, learner(&amp));
            says(&done.error.unwrap(), [wording]);
            is_error(&amp.run_result().unwrap_err(), variant, [wording]);
            assert_eq!(amp.loss_scale() == 65536.0, gain.is_infinite());
            assert_eq!(amp.counters().steps(), 4);
            assert!(values(&done.model) == before);

            let again = Learner::new(done.model.train(), burns_adam(), lr());
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
        let message = panic_message(|| exhausted(listener, Run::of(4), &folder));
        assert!(message.starts_with("loss scale exhausted"), "{message}");
        assert_eq!(steps_in(&folder), 6, "{name}");
        assert!(Resume::check(folder.path(), 2).is_err(), "{name} ends it");
    }
}

/// Agents and strategies that step by themselves end a run in the same way.
#[test]
fn a_failure_of_ones_own_ends_the_run() {
    let (amp, error) = (Run::of(1).amp(), AmpError::NoScope);
    let alone = amp.fail_run(error.clone());
    assert_eq!(alone, Err(error.clone()), "nobody listens");
    let interrupter = amp.interrupter();
    assert_eq!(amp.fail_run(error.clone()), Ok(()));
    assert!(interrupter.should_stop());
    assert_eq!(amp.run_result(), Err(error));
}

/// Every weight would be NaN after one step with it. Whatever begins the next run makes the interrupter free again, which an epoch may ask before its
/// first step, as those of Burn 0.23 do.
#[test]
fn a_learning_rate_that_is_not_finite_ends_its_own_run_alone() {
    let (half, full) = (Run::of(1).amp(), MixedPrecision::f32());
    let cases: [(LearnerOptimizer, f64, MixedPrecision); 5] = [
        (burns_adam().into(), f64::NAN, half.clone()),
        (SgdConfig::new().init().into(), f64::INFINITY, full.clone()),
        (fused_adam().into(), f64::INFINITY, half.clone()),
        (fused_adam().into(), f64::NAN, full),
        (burns_adam().into(), f64::INFINITY, half),
    ];
    let begins: [fn(&MixedPrecision, Scaled<Net>); 5] = [
        |amp, _| drop(burns(amp)),
        |amp, _| drop(amp.training(Run::of(1).training::<Net>(temp_dir().path()))),
        |_, model| drop(model.train()),
        |amp, _| drop(fused(amp)),
        |_, model| drop(model.load_record(net().into_record()).train()),
    ];
    for ((optim, rate, amp), begin) in cases.into_iter().zip(begins) {
        let interrupter = amp.interrupter();
        let learner = amp.learner(net(), optim, ConstantLr::new(rate));
        let done = Run::of(1).train_by(&temp_dir(), &amp, learner, INTERRUPTER);
        let refused = amp.run_result().unwrap_err().to_string();
        let wording = format!("`lr` is {rate}, but must be finite");
        assert!(refused.starts_with(&wording), "{amp:?}: {refused}");
        assert!(all_finite(&done.model), "{amp:?}");
        assert_eq!(amp.counters().steps(), 0, "{amp:?}");
        assert!(interrupter.should_stop());
        begin(&amp, done.model);
        assert!(!interrupter.should_stop(), "{amp:?} {rate}");
    }
}
