//! What a `ScaledOptimizer` adds to a step, on the optimizer's thread.

use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;

use crate::support::*;

fn amp() -> MixedPrecision {
    f16_under(growing(5))
}

/// Steps with windows of so many micro-batches beside one thread that does the same. All micro-batches of a window see the same
/// parameters, and the same loss scale.
fn compare(window: u64, optim: impl Fn(&MixedPrecision) -> ScaledOptimizer) {
    let (mut trial, mut simulation) = both(amp, optim);
    for step in 0..202 {
        let overflow = step % 31 == 7;
        let before = trial.state();
        trial.step(step, overflow);
        simulation.step(1e-2, step, overflow);
        assert!(trial.state() == simulation.state(), "{step}");
        let is_update = (step as u64 + 1).is_multiple_of(window);
        assert!(is_update || trial.state() == before, "{step}");
    }
    // Of windows of four, two micro-batches are left.
    let Trial { mut optim, net, .. } = trial;
    let net = optim.flush(1e-2, net);
    let net = optim.synchronize(net).unwrap();
    simulation.synchronize();
    let expected = simulation.flush(1e-2).clone();
    assert!(parameters(&net) == parameters(&expected));
    // There is nothing to flush again.
    let again = optim.flush(1e-2, net.clone());
    assert!(parameters(&again) == parameters(&net));
    let (net, optim) = optim.into_inner(net).unwrap();
    let counters = optim.scaler().counters();
    assert_eq!(counters, simulation.optim.scaler().counters());
    assert_eq!(counters.steps(), 202u64.div_ceil(window));
    assert!(counters.skipped() > 3);
    let averaged = optim.finalize(net);
    let expected = simulation.optim.finalize(expected);
    assert!(parameters(&averaged) == parameters(&expected));
}

fn guarded(amp: &MixedPrecision) -> ScaledOptimizer {
    sgd(amp).with_hook(Guard::skip_step())
}

#[test]
fn clipping_guards_and_averages() {
    let clip = GradientClip::GlobalNorm(0.5);
    let ema = EmaConfig::new;
    compare(1, |amp| adam(amp).with_clipping(clip).with_ema(ema()));
    compare(1, guarded);
}

#[test]
fn micro_batches_are_added_while_the_next_is_computed() {
    compare(4, |amp| {
        let optim = ScaledOptimizer::new(AdamWConfig::new().init(), amp);
        optim.with_accumulation(4)
    });
}

/// A loss that a guard is given belongs to the gradients it comes with.
#[test]
fn a_guard_sees_the_loss_of_its_own_step() {
    let mut trial = Trial::new(amp(), guarded);
    trial.lr = 1e-3;
    let mut held = Vec::new();
    for step in 0..200 {
        let loss = match step {
            150 => 1e6,
            _ => 1.0 + (step % 3) as f64 / 100.0,
        };
        trial.optim.set_loss(loss);
        trial.step(step, false);
        if trial.optim.synchronized_scaler().last_outcome() == Some(StepOutcome::Guarded) {
            held.push(step);
        }
    }
    trial.synchronize();
    assert_eq!(held, [150]);
}

#[test]
fn a_window_of_unknown_length_is_refused() {
    let config = AccumulationConfig::new(4).with_skip_micro_batch(true);
    let optim = sgd(&amp()).with_accumulation(config);
    let error = PipelinedOptimizer::new(optim, Device::flex()).unwrap_err();
    is_error(&error, "InvalidValue", ["`skip_micro_batch`"]);
}

/// Masters are f32 whatever the training device computes in, and however small the updates are.
#[test]
fn half_precision_parameters() {
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let device = Device::flex().autodiff();
        let mut model = to_half(LinearConfig::new(4, 3).init(&device), dtype, &[]);
        let scaled = || sgd_under(growing(3).with_init_scale(256.0));
        let mut optim = PipelinedOptimizer::new(scaled(), Device::flex()).unwrap();
        // The masters, one thread.
        let (mut plain, mut masters) = (scaled(), to_full(model.clone()));
        // What the next step computes with, once this one has waited for it.
        let mut scale = 256.0;
        let mut reached = (model.clone(), scale);
        for step in 0..60 {
            let input = Tensor::<2>::random([2, 4], Distribution::Default, &device).cast(dtype);
            let loss = |model: &Linear| {
                let output = model.forward(input.clone()).cast(FloatDType::F32);
                output.square().mean() * (if step % 20 == 9 { 1e36 } else { 1.0 })
            };
            let grads = optim.backward(loss(&model), &model);
            assert_eq!(grads.loss_scale(), scale, "{step}");
            let scaler = at_scale(scale.into()).init().unwrap();
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

/// An optimizer by itself: no loss scale, and gradients are not tested.
#[test]
fn any_optimizer() {
    let (mut trial, mut simulation) = both(MixedPrecision::f32, adam);
    trial.optim = PipelinedOptimizer::new(AdamConfig::new().init(), Device::flex()).unwrap();
    for step in 0..20 {
        trial.step(step, false);
        simulation.step(trial.lr, step, false);
        assert!(trial.state() == simulation.state(), "{step}");
    }
    assert_eq!(trial.optim.synchronized_scaler().loss_scale(), 1.0);
    assert_eq!(trial.counters().stepped(), 20);
    trial.synchronize();
    simulation.synchronize();
    assert!(trial.state() == simulation.state());
}

/// A schedule that follows the steps holds after a skip, a call later than it would without the pipeline, and with each micro-batch.
#[test]
fn a_learning_rate_schedule_holds_after_a_skip() {
    for (window, halvings) in [
        // Step 2 is skipped; step 3 sees it, and step 4 has the rate of step 3.
        (1, [0.5, 0.5, 0.5, 1.0, 0.5]),
        (2, [1.0, 0.5, 1.0, 0.5, 1.0]),
    ] {
        let mut trial = Trial::new(amp(), |amp| sgd(amp).with_accumulation(window));
        let schedule = ExponentialLrSchedulerConfig::new(1e-2, 0.5).init().unwrap();
        let mut schedule = ScaledLrScheduler::new(schedule, &trial.amp);
        let rates = [0, 1, 2, 3, 4, 5].map(|step| {
            trial.lr = schedule.step().base();
            trial.step(step, window == 1 && step == 2);
            trial.lr
        });
        trial.synchronize();
        let found: Vec<_> = rates.windows(2).map(|pair| pair[1] / pair[0]).collect();
        assert_eq!(found, halvings);
        // An empty window takes no step with its rate.
        let rate = schedule.step().base();
        trial.net = trial.optim.flush(rate, trial.net);
        assert_eq!(schedule.step().base(), rate);
    }
}

#[test]
fn a_flush_that_cannot_step_is_refused_at_once() {
    let mut trial = Trial::new(amp(), |amp| sgd(amp).with_accumulation(4));
    (0..2).for_each(|step| trial.step(step, false));
    let refused = trial.optim.try_flush(f64::NAN, trial.net.clone());
    is_error(&refused.unwrap_err().error, "InvalidValue", ["`lr` is"]);
}

/// What cannot be set is an error at once, or where both sides come together.
#[test]
fn what_is_set_takes_its_place_in_the_queue() {
    let mut trial = Trial::new(amp(), sgd);
    trial.step(0, false);
    let Trial { mut optim, net, .. } = trial;
    for scale in [0.0, -1.0, f64::NAN, 1e40] {
        let error = optim.set_loss_scale(scale).unwrap_err();
        is_error(&error, "InvalidValue", []);
    }
    optim.queue(|scaler| scaler.set_growth_factor(0.5)).unwrap();
    let error = optim.synchronize(net).unwrap_err();
    says(&error, ["`growth_factor` is 0.5"]);
    let net = optim.synchronize(*error.module).unwrap();
    optim.queue(|scaler| scaler.set_growth_factor(4.0)).unwrap();
    assert_eq!(optim.received_scaler().growth_factor(), 2.0);
    assert_eq!(optim.synchronized_scaler().growth_factor(), 4.0);
    optim.synchronize(net).unwrap();
    assert_eq!(optim.received_scaler().growth_factor(), 4.0);
}

/// A second optimizer would move the scale behind the back of the pipeline.
#[test]
fn one_loss_scale_has_one_pipeline() {
    let mut trial = Trial::new(amp(), sgd);
    trial.step(0, false);
    let other = sgd(&trial.amp);
    let error = trial.try_step(trial.gradients(1)).unwrap_err();
    says(&error, ["the only one"]);
    drop(other);
    trial.step(1, false);
    trial.synchronize();
    assert_eq!(trial.optim.received_scaler().counters().steps(), 2);
}

/// A fused optimizer waits for no step of its own then, and can be captured.
#[test]
fn what_ends_a_pipeline_steps_on_the_device_again() {
    let amp = amp();
    let (net, optim) = amp.prepare(net(&amp), FusedSgd::new(SgdConfig::new()));
    let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let net = optim.step(1e-2, net.clone(), gradients(&amp, &net, 0, false));
    let (net, optim) = optim.into_inner(net).unwrap();
    let of = |net: &Net, x: Tensor<2>| amp.autocast(x, |x| net.forward(x)).mean();
    CapturedStep::new(net, optim, of).unwrap();
}

/// Averages take the place of the parameters, and nothing else has changed those.
#[test]
fn a_step_without_gradients_shows_what_hooks_replace() {
    let ema = EmaConfig::new().with_momentum(0.5);
    let ema = ema.with_overwrite_frequency(Some(3));
    let mut trial = Trial::new(amp(), |amp| sgd(amp).with_ema(ema));
    (0..2).for_each(|step| trial.step(step, false));
    trial.try_step(GradientsParams::new()).unwrap();
    let (net, optim) = trial.optim.into_inner(trial.net).unwrap();
    let averaged = optim.finalize(net.clone());
    assert!(parameters(&net) == parameters(&averaged));
}
