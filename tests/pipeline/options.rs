//! What a `ScaledOptimizer` adds to a step, on the optimizer's thread.

use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn_amp_tests::prelude::*;
use burn_amp_tests::says;

use crate::support::{Net, both, gradients, parameters};

fn amp() -> MixedPrecision {
    MixedPrecision::f16()
        .with_scaler(
            GradScalerConfig::new()
                .with_init_scale(1024.0)
                .with_growth_interval(5),
        )
        .unwrap()
}

/// Steps with windows of so many micro-batches beside one thread that does the same. All micro-batches of a window see the same
/// parameters, and the same loss scale.
fn compare(window: u64, optim: impl Fn(&MixedPrecision) -> ScaledOptimizer<ModuleOptimizer>) {
    let ((amp, mut optim, mut net), (amp_here, mut simulation, mut expected)) = both(amp, optim);
    for step in 0..202 {
        let overflow = step % 31 == 7;
        let before = (parameters(&net), amp.loss_scale());
        let grads = gradients(&amp, &net, step, overflow);
        net = optim.step(1e-2, net, grads);
        let grads = gradients(&amp_here, &expected, step, overflow);
        if (step as u64 + 1).is_multiple_of(window) {
            expected = simulation.step(1e-2, expected, grads);
        } else {
            simulation.micro_batch(1e-2, grads);
            assert!((parameters(&net), amp.loss_scale()) == before, "{step}");
        }
        assert!(parameters(&net) == parameters(&expected), "{step}");
        assert_eq!(amp.loss_scale(), amp_here.loss_scale(), "{step}");
    }
    // Of windows of four, two micro-batches are left.
    net = optim.flush(1e-2, net);
    net = optim.synchronize(net).unwrap();
    simulation.synchronize(expected);
    let expected = simulation.flush(1e-2).clone();
    assert!(parameters(&net) == parameters(&expected));
    // There is nothing to flush again.
    let again = optim.flush(1e-2, net.clone());
    assert!(parameters(&again) == parameters(&net));
    let (net, optim) = optim.into_inner(net).unwrap();
    let counters = optim.scaler().counters();
    assert_eq!(counters, simulation.optim().scaler().counters());
    assert_eq!(counters.steps(), 202u64.div_ceil(window));
    assert!(counters.skipped() > 3);
    let averaged = optim.finalize(net);
    let expected = simulation.optim().finalize(expected);
    assert!(parameters(&averaged) == parameters(&expected));
}

#[test]
fn clipping_guards_and_averages() {
    compare(1, |amp| {
        ScaledOptimizer::new(AdamConfig::new().init(), amp)
            .with_clipping(GradientClip::GlobalNorm(0.5))
            .unwrap()
            .with_ema(EmaConfig::new())
            .unwrap()
    });
    compare(1, |amp| {
        ScaledOptimizer::new(SgdConfig::new().init(), amp)
            .with_guard(Guard::skip_step())
            .unwrap()
    });
}

/// A loss that a guard is told belongs to the gradients it comes with.
#[test]
fn a_guard_hears_of_the_loss_of_its_own_step() {
    let guarded = |amp: &MixedPrecision| {
        let optim = ScaledOptimizer::new(SgdConfig::new().init(), amp);
        optim.with_guard(Guard::skip_step()).unwrap()
    };
    let ((amp, mut optim, mut net), _) = both(amp, guarded);
    let mut held = Vec::new();
    for step in 0..200 {
        let loss = match step {
            150 => 1e6,
            _ => 1.0 + (step % 3) as f64 / 100.0,
        };
        optim.set_loss(loss);
        let grads = gradients(&amp, &net, step, false);
        net = optim.step(1e-3, net, grads);
        if optim.scaler(true).last_outcome() == Some(StepOutcome::Guarded) {
            held.push(step);
        }
    }
    optim.synchronize(net).unwrap();
    assert_eq!(held, [150]);
}

#[test]
fn micro_batches_are_added_while_the_next_is_computed() {
    compare(4, |amp| {
        let optim = ScaledOptimizer::new(AdamWConfig::new().init(), amp);
        optim.with_accumulation(4).unwrap()
    });
}

#[test]
fn a_window_of_unknown_length_is_refused() {
    let config = AccumulationConfig::new(4).with_skip_micro_batch(true);
    let optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp());
    let optim = optim.with_accumulation(config).unwrap();
    let error = PipelinedOptimizer::new(optim, Device::flex()).unwrap_err();
    assert!(
        matches!(
            error,
            AmpError::InvalidValue {
                field: "skip_micro_batch",
                ..
            }
        ),
        "{error}"
    );
}

/// Masters are f32 whatever the training device computes in, and however small the updates are.
#[test]
fn half_precision_parameters() {
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let device = Device::flex().autodiff();
        let start = to_half(LinearConfig::new(4, 3).init(&device), dtype, &[]);
        let scaler = || {
            let config = GradScalerConfig::new().with_init_scale(256.0);
            config.with_growth_interval(3).init().unwrap()
        };
        let inner = || SgdConfig::new().init();
        let optim = ScaledOptimizer::new(inner(), scaler());
        let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
        // The masters, one thread.
        let mut plain = ScaledOptimizer::new(inner(), scaler());
        let mut masters = burn_amp::to_full(start.clone());
        let mut shown = vec![start.clone(), start.clone()];
        let mut scales = vec![256.0, 256.0];
        let mut model = start;
        for step in 0..60 {
            let input = Tensor::<2>::random([2, 4], Distribution::Default, &device).cast(dtype);
            let loss = |model: &burn::nn::Linear| {
                let output = model.forward(input.clone()).cast(FloatDType::F32);
                output.square().mean() * (if step % 20 == 9 { 1e36 } else { 1.0 })
            };
            let grads = optim.backward(loss(&model), &model);
            assert_eq!(grads.loss_scale(), scales[step], "{step}");
            model = optim.step(1e-5, model, grads);
            assert_eq!(model.weight.val().dtype(), DType::from(dtype));

            let here = shown[step].clone();
            let mut sim = burn_amp::GradScalerConfig::new()
                .with_init_scale(scales[step].into())
                .init()
                .unwrap();
            let grads = sim.backward(loss(&here), &here);
            masters = plain.step(1e-5, masters, grads);
            let _ = sim.update().unwrap();
            shown.push(to_half(masters.clone(), dtype, &[]));
            scales.push(plain.scaler().loss_scale());
            assert!(parameters(&model) == parameters(&shown[step + 1]), "{step}");
        }
        model = optim.synchronize(model).unwrap();
        assert!(parameters(&model) == parameters(&shown[61]));
        assert!(plain.scaler().counters().skipped() > 1);
    }
}

/// An optimizer by itself: no loss scale, and gradients are not tested.
#[test]
fn any_optimizer() {
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::f32();
    let mut optim = PipelinedOptimizer::new(AdamConfig::new().init(), Device::flex()).unwrap();
    let mut plain = AdamConfig::new().init();
    let start = LinearConfig::new(4, 3).init(&device);
    let (mut model, mut masters) = (start.clone(), start.clone());
    let mut stale = start;
    for _ in 0..20 {
        let input = Tensor::<2>::random([2, 4], Distribution::Default, &device);
        let grads = |model: &burn::nn::Linear| {
            let output = amp.autocast(input.clone(), |x| model.forward(x));
            GradientsParams::from_grads(output.square().mean().backward(), model)
        };
        let given = grads(&model);
        model = optim.step(1e-2, model, given);
        let computed = grads(&stale);
        stale = masters.clone();
        masters = plain.step(1e-2, masters, computed);
        assert!(parameters(&model) == parameters(&stale));
    }
    assert_eq!(optim.scaler(true).loss_scale(), 1.0);
    assert_eq!(optim.scaler(true).counters().stepped(), 20);
    let model = optim.synchronize(model).unwrap();
    assert!(parameters(&model) == parameters(&masters));
}

/// The rate that is given with gradients is used for them, though the update is made later.
#[test]
fn a_learning_rate_belongs_to_its_gradients() {
    let sgd = |amp: &MixedPrecision| ScaledOptimizer::new(SgdConfig::new().init(), amp);
    let ((amp, mut optim, mut net), _) = both(amp, sgd);
    for step in 0..10 {
        let before = parameters(&net);
        let lr = if step == 4 { 1e-2 } else { 0.0 };
        let grads = gradients(&amp, &net, step, false);
        net = optim.step(lr, net, grads);
        // The update of step 4 is received with step 5.
        assert_eq!(parameters(&net) != before, step == 5, "{step}");
    }
    optim.synchronize(net).unwrap();
}

/// A schedule that follows the steps holds after a skip, a call later than it would without the pipeline.
#[test]
fn a_learning_rate_schedule_holds_after_a_skip() {
    let amp = amp();
    let optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let mut net = Net::new(&amp);
    let schedule = ExponentialLrSchedulerConfig::new(1e-2, 0.5).init().unwrap();
    let mut schedule = ScaledLrScheduler::new(schedule, &amp);
    let mut rates = Vec::new();
    for step in 0..6 {
        rates.push(schedule.step().base());
        let grads = gradients(&amp, &net, step, step == 2);
        net = optim.step(*rates.last().unwrap(), net, grads);
    }
    optim.synchronize(net).unwrap();
    let halvings: Vec<_> = rates.windows(2).map(|pair| pair[1] / pair[0]).collect();
    // Step 2 is skipped; step 3 learns of it, and step 4 has the rate of step 3.
    assert_eq!(halvings, [0.5, 0.5, 0.5, 1.0, 0.5]);
}

/// `update(new_scale)`, and setters in the order of the queue.
#[test]
fn what_is_set_takes_its_place_in_the_queue() {
    let sgd = |amp: &MixedPrecision| ScaledOptimizer::new(SgdConfig::new().init(), amp);
    let ((amp, mut optim, mut net), _) = both(amp, sgd);
    let mut used = Vec::new();
    for step in 1..=6 {
        if step == 2 {
            optim.set_loss_scale(64.0).unwrap();
            // The iteration that is computed now does not see it.
            assert_eq!(amp.loss_scale(), 1024.0);
        }
        used.push(amp.loss_scale());
        let grads = gradients(&amp, &net, step, false);
        net = optim.step(1e-3, net, grads);
    }
    assert_eq!(used, [1024.0, 1024.0, 1024.0, 64.0, 64.0, 64.0]);
    // Five clean updates make it grow: that of step 2 is not among them.
    assert_eq!(optim.scaler(true).growth_tracker(), 0);
    assert_eq!(optim.scaler(true).loss_scale(), 128.0);
    assert_eq!(optim.scaler(false).loss_scale(), 64.0);

    for scale in [0.0, -1.0, f64::NAN, 1e40] {
        let error = optim.set_loss_scale(scale).unwrap_err();
        assert!(matches!(error, AmpError::InvalidValue { .. }), "{error}");
    }
    optim.queue(|scaler| scaler.set_growth_factor(0.5)).unwrap();
    let error = optim.synchronize(net).unwrap_err();
    says(&error, ["`growth_factor` is 0.5"]);
    let net = optim.synchronize(*error.module).unwrap();
    optim.queue(|scaler| scaler.set_growth_factor(4.0)).unwrap();
    assert_eq!(optim.scaler(false).growth_factor(), 2.0);
    assert_eq!(optim.scaler(true).growth_factor(), 4.0);
    optim.synchronize(net).unwrap();
    assert_eq!(optim.scaler(false).growth_factor(), 4.0);
}

/// A second optimizer would move the scale behind the back of the pipeline.
#[test]
fn one_loss_scale_has_one_pipeline() {
    let amp = amp();
    let sgd = || ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let mut optim = PipelinedOptimizer::new(sgd(), Device::flex()).unwrap();
    let net = Net::new(&amp);
    let grads = gradients(&amp, &net, 0, false);
    let net = optim.step(1e-3, net, grads);
    let other = sgd();
    let grads = gradients(&amp, &net, 1, false);
    let error = optim.try_step(1e-3, net, grads).unwrap_err();
    assert!(error.to_string().contains("the only one"), "{error}");
    drop(other);
    let grads = gradients(&amp, &error.module, 1, false);
    let net = optim.step(1e-3, *error.module, grads);
    optim.synchronize(net).unwrap();
    assert_eq!(optim.scaler(false).counters().steps(), 2);
}
