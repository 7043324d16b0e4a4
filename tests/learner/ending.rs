//! Runs that end early: by early stopping, on request, or because only skips are left.

use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::{MetricEarlyStoppingStrategy, StoppingCondition};

use crate::pipelined::fused_behind;
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
    let (run, interrupter, folder) = (Run::of(3), Interrupter::new(), temp_dir());
    let amp = run.amp();
    let (stopper, monitor) = (interrupter.clone(), amp.clone());
    let stop = move || {
        if monitor.counters().steps() >= 8 {
            stopper.stop(Some("enough"));
        }
        Ok(())
    };
    let samples = Watched(InMemDataset::new(run.samples.clone()), stop);
    let training = run.training_on(loader(samples, None), folder.path());
    let training = training.with_interrupter(interrupter);
    let result = training.launch(burns(&amp).unwrap());
    let done = Done::of(result, &amp, &folder).finished();
    assert_eq!(done.interrupted.unwrap().reason.as_deref(), Some("enough"));
    let steps = done.model.scaler().counters().steps();
    assert!((8..12).contains(&steps), "{steps} steps");
    assert_eq!((amp.counters().steps(), steps_in(&folder)), (steps, 6));
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

/// One good epoch, saved; in the second only losses that are multiplied by this, of which three in a row are allowed to be skipped.
fn ended(
    learner: impl Fn(&MixedPrecision) -> Made,
    listener: Listener,
    (run, gain): (&Run, f32),
    folder: &Folder,
) -> Done {
    Run::of(1).launch_in(folder, burns);
    let run = run.clone().until(400).resumed(1).with_skips(3);
    let run = run.with_gain(gain, 0..48);
    let amp = run.amp();
    run.train_by(folder, &amp, learner(&amp), listener)
}

/// Through Burn's error path, with a message to read, the model as it was, and the checkpoint of the good epoch, whether a step is waited for or known later.
/// A loss that is infinite does not lower the scale. The model trains again after that was loaded into it, or `train` was asked for, with an optimizer of which
/// nobody knows the kind: with windows of several micro-batches too, before whose first step Burn asks the interrupter.
#[test]
fn what_ends_a_run_is_reported_as_burn_does_and_another_goes_on() {
    let (steep, infinite) = (overflow(1e30), f32::INFINITY);
    let (main, sharded) = (Some(WAYS[0]), Some(WAYS[1]));
    type Learners = fn(&MixedPrecision) -> Made;
    type Case = (Learners, [Listener; 2], Option<MultiDeviceOptim>, bool, f32);
    let cases: [Case; 12] = [
        (burns, [TRAINING; 2], None, false, steep),
        (burns, [TRAINING; 2], None, true, infinite),
        (fused, [TRAINING; 2], None, false, steep),
        (fused, [TRAINING; 2], main, false, infinite),
        (behind, [TRAINING; 2], None, false, steep),
        (behind, [TRAINING; 2], None, false, infinite),
        (fused_behind, [TRAINING; 2], None, false, steep),
        (burns, [TRAINING; 2], sharded, false, steep),
        (burns, [TRAINING_AND_OWN, INTERRUPTER], None, true, steep),
        (burns, [TRAINING_AND_OWN, TRAINING], main, false, steep),
        (burns, [INTERRUPTER; 2], None, true, steep),
        (burns, [INTERRUPTER, TRAINING], sharded, false, steep),
    ];
    for (learner, [listener, again], workers, has_windows, gain) in cases {
        let windows: Option<usize> = has_windows.then_some(3);
        let (folder, run) = (temp_dir(), Run::default().with_windows(windows));
        let run = run.with_workers(workers);
        let done = ended(learner, listener, (&run, gain), &folder);
        let error = done.amp.run_result().unwrap_err();
        let (variant, wording) = match gain.is_infinite() {
            true => ("LossNotFinite", "4 steps in a row"),
            false => ("LossScaleExhausted", "after 4 skipped steps"),
        };
        is_error(&error, variant, [wording]);
        let text = done.error.as_ref().expect("an error");
        assert!(text.ends_with(&error.to_string()), "{text}");
        assert!(done.interrupted.is_none());
        let before = done.counters();
        assert_eq!((steps_in(&folder), before.steps()), (6, 6 + 4));
        let of_epoch = 6 / windows.unwrap_or(1) as u64;
        let failed = 4u64.div_ceil(of_epoch / (1 + workers.iter().len() as u64));
        let saved = Resume::check(folder.path(), 1 + failed as usize);
        assert!(saved.is_err(), "a failed epoch is not saved");
        let good = folder.path().join("checkpoint/model-1.bpk");
        let good = net().try_load_file(good).unwrap();
        assert!(values(&done.model) == values(&good));

        // What is exhausted stays so: the poison is gone.
        let mut model = done.model.train();
        if windows.is_none() {
            model = model.load_record(good.clone().into_record());
        }
        let stays = "returned until it trains again";
        assert_eq!(done.amp.run_result(), Err(error), "{stays}");
        let learner = Learner::new(model, AdamConfig::new().init(), ConstantLr::new(0.02));
        let run = Run::of(1).with_windows(windows);
        let done = run.train_by(&temp_dir(), &done.amp, Ok(learner), again);
        let (found, after) = (done.amp.run_result(), done.counters());
        assert_eq!((&done.error, found), (&None, Ok(())));
        let steps = (before.steps() + of_epoch, before.stepped() + of_epoch);
        assert_eq!((after.steps(), after.stepped()), steps);
        assert!(values(&done.model) != values(&good));
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
        let (folder, bad) = (temp_dir(), (&Run::default(), overflow(1e30)));
        let message = panic_message(|| ended(burns, listener, bad, &folder));
        assert!(message.starts_with("loss scale exhausted"), "{message}");
        assert_eq!(steps_in(&folder), 6, "{name}");
        let next = Resume::check(folder.path(), 2);
        assert!(next.is_err(), "{name}: the run went on");
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
    let alone = amp.fail_run(AmpError::NoScope);
    assert_eq!(alone, Err(AmpError::NoScope), "nobody listens");
    let interrupter = amp.interrupter();
    assert_eq!(amp.fail_run(AmpError::NoScope), Ok(()));
    assert!(interrupter.should_stop());
    assert_eq!(amp.run_result(), Err(AmpError::NoScope));
}

/// Every weight would be NaN after one step with it.
#[test]
fn a_learning_rate_that_is_not_finite_ends_the_run() {
    let (half, full) = (Run::default().amp(), MixedPrecision::f32());
    let cases: [(LearnerOptimizer, f64, MixedPrecision); 3] = [
        (AdamConfig::new().init().into(), f64::NAN, half.clone()),
        (fused_adam().into(), f64::INFINITY, half),
        (SgdConfig::new().init().into(), f64::INFINITY, full),
    ];
    for (optim, rate, amp) in cases {
        let learner = amp.learner(net(), optim, ConstantLr::new(rate));
        let done = Run::default().train(&temp_dir(), &amp, learner);
        let error = amp.run_result().unwrap_err();
        is_error(&error, "InvalidValue { field: \"lr\"", []);
        assert!(all_finite(&done.model), "{amp:?}");
        assert_eq!(amp.counters().steps(), 0, "{amp:?}");
    }
}
