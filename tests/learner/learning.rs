//! Runs that go well.

use crate::support::*;

/// In f16 if the device has it, with all metrics: the classes are learnt, every step is counted, the scale grows, and the
/// files say so.
#[test]
fn an_f16_run_learns() {
    let done = Run::default().launch();
    assert!(done.interrupted.is_none());
    assert_eq!(done.counters().steps(), 24);
    // Of 24 finite steps, every fourth would double the scale, were there no overflow at 2^20 or so.
    let grown = f64::from(done.model.scaler().loss_scale()) / 65536.0;
    assert!(grown > 1.0, "{grown}, {:?}", done.counters());

    let accuracy = done.last(4, "Accuracy");
    assert!(accuracy > 95.0, "{accuracy} %");
    let scales = done.metric(1, "Loss Scale")[..6].join(" ");
    assert_eq!(scales, "65536 65536 65536 131072 131072 131072");
    let norms = done.numbers(4, "Gradient Norm");
    assert_eq!(norms.len(), 7, "one for each step and one for the epoch");
    assert!(norms.iter().all(|norm| *norm > 0.0 && *norm < 10.0));
}

/// In a loop of one's own a free `autocast` opens no scope, and the model would train in f32. A check as in a Learner does not last.
#[test]
fn a_dry_run_opens_the_scopes_that_a_learner_opens() {
    let amp = Run::default().amp();
    let net = amp.attach(net());
    let batch = batches(&samples(8)).remove(0);
    let loss = |m: &Net| InferenceStep::step(m, batch.clone()).loss;
    let check = || amp.check(&net, loss).map(drop);
    assert_eq!(check(), Err(AmpError::NoScope));
    amp.check_in_learner(&net, loss).unwrap();
    assert_eq!(check(), Err(AmpError::NoScope));
    let _learner = burns(&amp).unwrap();
    assert_eq!(check(), Ok(()));
    // After its run, the handle is that of a loop again.
    assert!(amp.run_result().is_ok() && check() == Err(AmpError::NoScope));
}

/// bf16 has no loss scale to show, and skips steps as f16 does.
#[test]
fn bf16_is_tested_and_shows_no_scale() {
    let amp = MixedPrecision::bf16();
    if amp.check_device(&Device::default()).is_err() {
        return;
    }
    let done = Run::default().train(&temp_dir(), &amp, burns(&amp));
    let done = done.finished();
    assert_eq!(done.counters().steps(), 24);
    let is_shown = |metric: &str| {
        let file = format!("train/epoch-1/{metric}.log");
        done.folder.path().join(file).exists()
    };
    assert!(!is_shown("Loss_Scale") && is_shown("Skipped_Steps"));
    assert!(done.last(4, "Accuracy") > 95.0);
}

/// In f32, a run without overflow is Burn's own, bit for bit: the same parameters after as many steps.
#[test]
fn an_f32_run_is_that_of_burn_without_scaling() {
    let run = Run::default();
    let amp = MixedPrecision::f32().with_scaler(run.config).unwrap();
    let scaled = run.train_by(&temp_dir(), &amp, burns(&amp), |_, training| training);
    assert_eq!(scaled.steps(), (24, 0));

    let folder = temp_dir();
    let learner = Learner::new(net(), AdamConfig::new().init(), lr());
    let plain = run.training(folder.path()).launch(learner).model;
    assert_eq!(values(&scaled.model), values(&plain));
}
