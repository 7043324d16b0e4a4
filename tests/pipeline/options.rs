//! What is set on a pipeline, and what stands around its steps.

use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;

use crate::support::*;

/// The loss that a hook is given belongs to the gradients it comes with.
#[test]
fn a_guard_sees_the_loss_of_its_own_step() {
    let guard = Guard::SkipStep(SkipStep::new().with_rolling_interval_length(8));
    let mut trial = Trial::new(growing(5), |amp| sgd(amp).with_hook(guard));
    trial.lr = 0.0;
    for step in 0..24 {
        let usual = 1.0 + (step % 3) as f64 / 100.0;
        trial.optim.set_loss(if step == 18 { 1e6 } else { usual });
        trial.step(step % 3, false);
        let outcome = trial.optim.synchronized_scaler().last_outcome();
        assert_eq!(outcome == Some(StepOutcome::Guarded), step == 18, "{step}");
    }
}

/// Masters are f32 whatever the training device computes in, and however small the updates are. The training is a call behind them.
#[test]
fn half_precision_parameters() {
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let mut model = to_half(LinearConfig::new(4, 3).init(&flex()), dtype, &[]);
        let scaled = || sgd_under(at_scale(256.0).with_growth_interval(3));
        let mut optim = PipelinedOptimizer::new(scaled(), Device::flex()).unwrap();
        // The masters, one thread.
        let (mut plain, mut masters) = (scaled(), to_full(model.clone()));
        // What the next step computes with, once this one has waited for it.
        let mut scale = 256.0;
        let mut reached = (model.clone(), scale);
        for step in 0..60 {
            let input = random::<2>(8 * step, [2, 4], &flex()).cast(dtype);
            let loss = |model: &Linear| {
                let output = model.forward(input.clone()).cast(FloatDType::F32);
                output.square().mean() * (if step % 20 == 9 { 1e36 } else { 1.0 })
            };
            let grads = optim.backward(loss(&model), &model);
            assert_eq!(grads.loss_scale(), scale, "{step}");
            let scaler = GradScaler::new(at_scale(scale.into())).unwrap();
            masters = plain.step(1e-5, masters, scaler.backward(loss(&model), &model));
            model = optim.step(1e-5, model, grads);
            assert!(parameters(&model) == parameters(&reached.0), "{step}");
            scale = reached.1;
            let next = to_half(masters.clone(), dtype, &[]);
            reached = (next, plain.scaler().loss_scale());
        }
        model = optim.synchronize(model).unwrap();
        assert!(parameters(&model) == parameters(&reached.0));
        assert!(plain.scaler().counters().skipped() > 1);
    }
}

/// The thread steps with gradients of this one, which reads what it has made of them: see `docs/upstream/in-place-across-threads.md`.
#[test]
fn the_host_may_be_the_training_device() {
    let (mut trial, amp) = (Trial::new(growing(100), sgd), growing(100));
    trial.optim = PipelinedOptimizer::new(sgd(&trial.amp), Device::default()).unwrap();
    let mut plain = Player::new(net(&amp), &amp);
    for step in 0..8 {
        trial.step(step, false);
        trial.synchronize();
        plain.train(trial.lr, loss(&plain.model, &amp, step));
        assert!(trial.parameters() == parameters(&plain.model), "{step}");
    }
}

/// They count once, as part of their step.
#[test]
fn gradients_that_were_unscaled_before_there_was_a_pipeline() {
    let amp = growing(100);
    let (net, mut optim) = (net(&amp), sgd(&amp));
    let grads = optim.backward(loss(&net, &amp, 0), &net);
    let grads = optim.unscale(grads, &net).unwrap();
    let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let net = optim.step(0.01, net, grads);
    let (net, mut optim) = optim.into_inner(net).unwrap();
    let grads = optim.backward(loss(&net, &amp, 1), &net);
    optim.step(0.01, net, grads);
    let counters = optim.scaler().counters();
    assert_eq!((counters.steps(), counters.discarded()), (2, 0));
    assert_eq!(optim.scaler().schedule().growth_tracker(), 2);
}

/// An optimizer by itself: no loss scale, and gradients are not tested.
#[test]
fn any_optimizer() {
    let [mut bare, mut scaled] = [(); 2].map(|()| Trial::new(MixedPrecision::f32(), adam));
    bare.optim = PipelinedOptimizer::new(AdamConfig::new().init(), Device::flex()).unwrap();
    for step in 0..20 {
        bare.step(step, false);
        scaled.step(step, false);
        assert!(bare.parameters() == scaled.parameters(), "{step}");
    }
    assert_eq!(bare.optim.synchronized_scaler().loss_scale(), 1.0);
    assert_eq!(bare.counters().stepped(), 20);
}

/// A schedule that follows the steps holds after a skip, a call later than it would without the pipeline, and with each micro-batch.
#[test]
fn a_learning_rate_schedule_holds_after_a_skip() {
    for (window, halvings) in [
        // Step 2 is skipped; step 3 sees it, and step 4 has the rate of step 3.
        (1, [0, 1, 2, 3, 3, 4]),
        (2, [0, 0, 1, 1, 2, 2]),
    ] {
        let mut trial = Trial::new(growing(5), |amp| sgd(amp).with_accumulation(window));
        let schedule = ExponentialLrSchedulerConfig::new(1e-2, 0.5).init().unwrap();
        let mut schedule = ScaledLrScheduler::new(schedule, &trial.amp);
        for (step, halvings) in halvings.into_iter().enumerate() {
            trial.lr = schedule.step().base();
            assert_eq!(trial.lr, 1e-2 * 0.5f64.powi(halvings), "{step}");
            trial.step(step, window == 1 && step == 2);
        }
        trial.synchronize();
        // An empty window takes no step with its rate.
        let rate = schedule.step().base();
        trial.net = trial.optim.flush(rate, trial.net);
        assert_eq!(schedule.step().base(), rate);
    }
}

/// At once, or where both sides come together.
#[test]
fn what_cannot_be_set_is_an_error() {
    let Trial { mut optim, net, .. } = Trial::new(growing(5), sgd);
    for scale in [0.0, -1.0, f64::NAN, 1e40] {
        let error = optim.set_loss_scale(scale).unwrap_err();
        is_error(&error, "InvalidValue", []);
    }
    optim.queue(|scaler| scaler.set_growth_factor(0.5)).unwrap();
    let failed = optim.synchronize(net).unwrap_err();
    is_error(&failed.error, "InvalidValue", ["`growth_factor` is 0.5"]);
    optim.synchronize(*failed.module).unwrap();
}

/// What is known ahead of the training is a copy, which writes no lines.
#[test]
fn a_skip_is_logged_once_whoever_looks_ahead() {
    let mut trial = Trial::new(growing(5), sgd);
    let lines = logs("step skipped", || {
        trial.step(0, true);
        assert_eq!(trial.counters().skipped(), 1);
        assert_eq!(trial.optim.to_record().counters(), Some(trial.counters()));
        assert_eq!(trial.optim.received_scaler().counters().steps(), 0);
        trial.synchronize();
    });
    says(only(&lines), ["INFO"]);
}

/// A second optimizer would move the scale behind the back of the pipeline.
#[test]
fn one_loss_scale_has_one_pipeline() {
    let mut trial = Trial::new(growing(5), sgd);
    trial.step(0, false);
    let other = sgd(&trial.amp);
    says(&trial.refused(1), ["the only one"]);
    drop(other);
    trial.step(1, false);
    trial.synchronize();
    assert_eq!(trial.counters().steps(), 2);
}

/// A fused optimizer waits for no step of its own then, and can be captured.
#[test]
fn what_ends_a_pipeline_steps_on_the_device_again() {
    let fused = |amp: &MixedPrecision| ScaledOptimizer::new(FusedSgd::new(SgdConfig::new()), amp);
    let mut trial = Trial::new(growing(5), fused);
    trial.step(0, false);
    let (net, optim) = trial.optim.into_inner(trial.net).unwrap();
    let amp = trial.amp;
    let of = |net: &Net, x: Tensor<2>| amp.autocast(x, |x| net.forward(x)).mean();
    CapturedStep::new(net, optim, of).unwrap();
}

/// Averages take the place of the parameters, and nothing else has changed those.
#[test]
fn a_step_without_gradients_shows_what_hooks_replace() {
    let ema = EmaConfig::new().with_momentum(0.5);
    let ema = ema.with_overwrite_frequency(Some(3));
    let mut trial = Trial::new(growing(5), |amp| sgd(amp).with_ema(ema));
    (0..2).for_each(|step| trial.step(step, false));
    trial.try_step(GradientsParams::new()).unwrap();
    let (net, optim) = trial.optim.into_inner(trial.net).unwrap();
    assert!(parameters(&net) == parameters(&optim.finalize(net.clone())));
}

/// Running statistics are the training's own, and are repaired after a forward pass that overflowed, though the optimizer's side knows
/// of the overflow a step late.
#[test]
fn statistics_of_a_skipped_iteration_are_set_back() {
    let amp = MixedPrecision::f16();
    let [first, last] = [4, 2].map(|outputs| LinearConfig::new(4, outputs).init(&flex()));
    let norm = BatchNormConfig::new(4).init(&flex());
    let mut net = amp.attach((first, norm, last));
    let means = |net: &(Linear, BatchNorm, Linear)| values(net.1.valid().running_mean.value());
    let mut optim = PipelinedOptimizer::new(sgd(&amp), Device::flex()).unwrap();
    // The last iteration overflows: nothing but `synchronize` comes after it.
    for step in 0..35 {
        // Infinite in f16.
        let factor = if step % 10 == 4 { 1e6 } else { 1.0 };
        let input = random::<2>(50 * step, [6, 4], &flex()) * factor;
        let output = amp.autocast(input, |x| {
            let hidden = in_f32(net.0.forward(x), |x| net.1.forward(x));
            net.2.forward(hidden)
        });
        let grads = GradientsParams::from_grads(output.square().mean().backward(), &net);
        net = optim.step(1e-3, net, grads);
        // The skip is known with the next step.
        let lost = means(&net).iter().any(|mean| !mean.is_finite());
        assert_eq!(lost, step % 10 == 4, "{step}: {:?}", means(&net));
    }
    let means = means(&optim.synchronize(net).unwrap());
    // They have moved, too: it is the training's own that are kept.
    assert!(means.iter().any(|mean| *mean != 0.0), "{means:?}");
    assert!(means.iter().all(|mean| mean.is_finite()), "{means:?}");
}
