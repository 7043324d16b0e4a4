//! Runs that go well.

use burn::train::EvaluatorBuilder;

use crate::support::*;

/// Whatever is set on the optimizer goes with it into a Learner. One poisoned micro-batch, in the second of the two windows of an epoch, costs
/// its window, once. That a Learner's steps are those of every other executor is in `oracle`.
#[test]
fn a_run_is_that_of_a_loop_by_hand() {
    let run = Run::of(3).with_windows(3).poisoned([4 * 8]);
    let done = run.launch(with(around));
    let amp = run.amp();
    let mut optim = around(&amp);
    let net = run.by_hand(amp.attach(net()), lr(), &amp, |lr, net, grads| {
        optim.step(lr, net, grads)
    });
    assert!(done.bits() == (values(&net), optim.scaler().bits()));
    assert_eq!(done.steps(), (6, 3));
    let plain = run.launch(burns).model;
    assert!(all_finite(&done.model) && values(&done.model) != values(&plain));

    let (weights, averages, updates) = averaged(&done.model);
    let by_hand = optim.ema().unwrap();
    assert!(weights != averages && averages == values(&by_hand.module(&net)));
    assert_eq!((updates, by_hand.updates()), (3, 3));
    assert!(values(&done.model.finalize()) == averages);
    assert!(values(&plain.clone().finalize()) == values(&plain));
    // An optimizer that has averaged before goes on with its averages and its counters.
    let model = amp.learner(net, optim, lr()).unwrap().model();
    assert!(averaged(&model).1 == averages);
    assert_eq!(model.scaler().counters().steps(), 6);
}

/// On request validation sees the averages, and so does who gets the model; training goes on with the weights.
#[test]
fn averages_can_drive_validation() {
    let runs = [false, true].map(|validation| {
        let slow = EmaConfig::new().with_momentum(0.999);
        let slow = slow.with_validation(validation);
        Run::of(2).launch(with(|amp| adam(amp).with_ema(slow.clone())))
    });
    let [plain, seen] = runs.each_ref().map(|run| run.model.clone());

    let (weights, averages, _) = averaged(&plain);
    assert!(averages != weights && values(&seen) == averages);
    assert!(values(&seen.clone().train()) == weights);
    assert!(values(&seen.train().valid()) == averages);
    // The checkpoint has the weights.
    let stored = Net::new(&Device::flex()).load_file(file(&runs[1].folder, "model", 2));
    assert!(values(&stored) == weights);
    // And the training is the same, the validation another.
    for split in ["train", "valid"] {
        let read = |run: &Done| fs::read_to_string(run.log(split, 2, "Loss")).unwrap();
        assert_eq!(read(&runs[0]) == read(&runs[1]), split == "train");
    }
    assert_eq!(runs[1].metric(2, "Loss").len(), 7);
}

/// In a loop of one's own a free `autocast` opens no scope, and the model would train in f32. A check as in a Learner does not last.
#[test]
fn a_dry_run_opens_the_scopes_that_a_learner_opens() {
    let amp = Run::of(1).amp();
    let net = amp.attach(net());
    let batch = batches(&samples(8)).remove(0);
    let loss = |net: &Net| net.cast(batch.clone()).loss;
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
        return skipped("the device has no bf16");
    }
    let done = Run::of(4).train(&temp_dir(), &amp, burns(&amp)).finished();
    assert_eq!(done.counters().steps(), 24);
    let is_shown = |metric| done.log("train", 1, metric).exists();
    assert!(!is_shown("Loss Scale") && is_shown("Skipped Steps"));
    assert!(done.numbers(4, "Accuracy")[6] > 95.0);
}

/// In f32, a run without overflow is Burn's own, bit for bit: the same parameters after as many steps.
#[test]
fn an_f32_run_is_that_of_burn_without_scaling() {
    let (run, amp) = (Run::of(4), MixedPrecision::f32());
    let amp = amp.with_scaler(run.config).unwrap();
    let scaled = run.train(&temp_dir(), &amp, burns(&amp));
    assert_eq!(scaled.steps(), (24, 0));
    let learner = Learner::new(net(), burns_adam(), lr());
    let plain = run.training(temp_dir().path()).launch(learner).model;
    assert_eq!(values(&scaled.model), values(&plain));
}

/// Burn's `Evaluator` and `valid()` see the model in the precision of the training, whether it was just trained or not; the scaler is not touched.
#[test]
fn the_evaluator_sees_inference_in_the_precision_of_the_training() {
    let Done { model, amp, .. } = Run::of(2).launch(burns);
    let (before, last) = (model.scaler().bits(), amp.counters());

    let batch = batches(&samples(8)).remove(0);
    let again = model.clone().train().valid();
    let logits = amp.autocast(batch.features.clone(), |x| model.forward(x));
    let logits = logits.into_data();
    // The bare model, outside of all scopes, is the f32 model.
    let bare = model.clone().into_inner().cast(batch.clone());
    assert!(bare.output.into_data() != logits);
    let figures = [model.clone(), again].map(|model| {
        let output = InferenceStep::step(&model, batch.clone()).output;
        assert!(output.into_data() == logits);
        let folder = temp_dir();
        let result = EvaluatorBuilder::new(folder.path())
            .metrics((LossMetric::new(),))
            .renderer(Box::new(CliMetricsRenderer::new()))
            .with_application_logger(None)
            .build(model)
            .eval("held out", Run::of(1).loader());
        assert!(result.error.is_none());
        fs::read_to_string(folder.path().join("test/held-out/Loss.log")).unwrap()
    });
    assert!(figures[0] == figures[1] && !figures[0].is_empty());
    assert_eq!((model.scaler().bits(), amp.counters()), (before, last));
}
