//! No verdict on gradients is lost, whatever becomes of them.

use super::support::*;

fn config() -> GradScalerConfig {
    at_scale(1024.0)
}

/// Gradients of 0.5, or those that overflow, which an optimizer has unscaled.
fn tested(
    optim: &mut ScaledOptimizer,
    model: &Model,
    overflow: bool,
) -> Result<UnscaledGradients, AmpError> {
    let grads = model.scaled(optim.scaler().loss_scale(), overflow);
    optim.unscale(grads, model)
}

/// Throws overflowing gradients away until the run ends; the number before. The 51st in a row is too many.
fn discarded_before_the_end(mut discard: impl FnMut() -> Result<(), AmpError>) -> u32 {
    let mut ends = (0..1000).filter_map(|before| Some((before, discard().err()?)));
    let (before, error) = ends.next().expect("1000 discarded overflows and no end");
    let AmpError::LossScaleExhausted {
        scale,
        skips,
        parameter,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!((skips, parameter.as_str()), (51, "matrix"));
    assert!(scale > 0.0 && (1.0 / f64::from(scale)) as f32 != f32::INFINITY);
    before
}

#[test]
fn a_run_that_only_discards_ends() {
    let model = Model::new();
    let window = |rule| AccumulationConfig::new(4).with_skip_micro_batch(rule);
    let windows = [false, true].map(|rule| sgd_under(config()).with_accumulation(window(rule)));
    // In a window that is tested as a whole, too, whose scale stays the same otherwise.
    for mut optim in [sgd_under(config())].into_iter().chain(windows) {
        let discarded = discarded_before_the_end(|| {
            let grads = tested(&mut optim, &model, true)?;
            optim.discard(grads)
        });
        assert_eq!(discarded, 50);
        assert_eq!(optim.scaler().loss_scale(), 1024.0 * 0.5f32.powi(50));
        let counters = optim.scaler().counters();
        assert_eq!((counters.discarded(), counters.steps()), (51, 0));
    }

    let mut run = Trial::at(1024.0);
    let discarded = discarded_before_the_end(|| {
        run.scaler.discard(run.grads(true))?;
        run.scaler.update().map(drop)
    });
    assert_eq!(discarded, 50);
}

/// Plain gradients that are discarded are looked at by nobody; those that a scope's optimizer has tested count.
#[test]
fn discarding_untested_gradients_on_and_on_warns_once() {
    let model = Model::new();
    let amp = MixedPrecision::f32().with_scaler(config()).unwrap();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let discard = |optim: &mut ScaledOptimizer, times| {
        for _ in 0..times {
            let plain = model.overflowing(1.0).into_params();
            optim.discard(plain).unwrap();
        }
    };
    let messages = captured(Level::Warn, || {
        discard(&mut optim, 30);
        optim.step(0.1, model.clone(), model.clean(1.0).into_params());
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
        discard(&mut optim, 49);
    });
    assert!(messages.is_empty(), "{messages:?}");
    let messages = captured(Level::Warn, || discard(&mut optim, 100));
    says(only(&messages), ["discarded untested"]);
    assert_eq!(amp.loss_scale(), 1024.0);

    let discarded = discarded_before_the_end(|| {
        let grads = optim.unscale(model.overflowing(1.0), &model)?;
        optim.discard(grads)
    });
    assert_eq!(discarded, 50);
    assert!(amp.loss_scale() < 1e-9);
}

/// `if status.norm() > limit { continue }`: PyTorch's `update` uses what `unscale_` has found.
#[test]
fn dropped_gradients_teach_the_scale() {
    let mut run = Trial::new(config().with_growth_interval(2));
    drop(run.grads(true));
    assert_eq!(run.scale(), 1024.0);
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(run.scale(), 512.0);
    let counters = run.scaler.counters();
    assert_eq!((counters.discarded(), counters.steps()), (1, 0));
    assert_eq!(counters.consecutive_skips(), 1);

    for _ in 0..2 {
        assert!(!run.grads(false).has_overflow());
        assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Stepped));
    }
    assert_eq!(run.scale(), 1024.0);
    assert_eq!(run.scaler.counters().consecutive_skips(), 0);
    assert_eq!(run.scaler.update().unwrap(), None);
}

/// The next loss has the lower scale already.
#[test]
fn a_loss_after_a_dropped_overflow_is_scaled_by_less() {
    let mut optim = sgd_under(config());
    let mut model = Model::new();
    let mut scales = Vec::new();
    for _ in 0..8 {
        // Infinite in f32 at each scale above 16.
        let loss = (model.vector.val() * 2e37).sum();
        let grads = optim.backward(loss, &model);
        scales.push(grads.loss_scale());
        let grads = optim.unscale(grads, &model).unwrap();
        if grads.has_overflow() {
            continue;
        }
        model = optim.step(0.0, model, grads);
    }
    let expected = [10, 9, 8, 7, 6, 5, 4, 4].map(|exponent| 2f32.powi(exponent));
    assert_eq!(scales, expected);
    assert_eq!(optim.scaler().loss_scale(), 16.0);
    let counters = optim.scaler().counters();
    assert_eq!((counters.discarded(), counters.stepped()), (6, 2));
    // The next call sees a drop: one more loss has been scaled by then.
    let dropped = discarded_before_the_end(|| tested(&mut optim, &model, true).map(drop));
    assert_eq!(dropped, 51);

    // Clean gradients that are dropped count towards growth, and a disabled scaler scales nothing.
    let growing = config().with_growth_interval(1);
    let disabled = config().with_enabled(false);
    for (config, scales) in [(growing, [1024.0, 2048.0, 4096.0]), (disabled, [1.0; 3])] {
        let mut optim = sgd_under(config);
        for scale in scales {
            let grads = optim.backward(model.vector.val().sum(), &model);
            assert_eq!(grads.loss_scale(), scale);
            drop(optim.unscale(grads, &model).unwrap());
        }
    }
}

/// A loop that leaves `update` out with its step never learns.
#[test]
fn a_loop_that_never_updates_is_warned_once() {
    let mut run = Trial::at(1024.0);
    let messages = captured(Level::Warn, || (0..600).for_each(|_| drop(run.grads(true))));
    says(only(&messages), ["`GradScaler::update`"]);
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(run.scaler.counters().discarded(), 256);
    assert_eq!(run.scale(), 512.0);
}

/// What was stepped with, observed, discarded, accumulated or refused is not learned from twice.
#[test]
fn a_verdict_counts_once() {
    let uses: [fn(&mut Trial); 4] = [
        |run| {
            let grads = run.grads(true);
            let copy = grads.clone();
            run.take(grads).unwrap();
            drop(copy);
        },
        |run| {
            run.scaler.observe(&run.grads(true)).unwrap();
        },
        |run| run.scaler.discard(run.grads(true)).unwrap(),
        |run| {
            let sum = run.grads(false) + run.grads(true);
            run.scaler.discard(sum).unwrap();
        },
    ];
    for step in uses {
        let mut run = Trial::at(1024.0);
        step(&mut run);
        assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
        assert_eq!(run.scaler.update().unwrap(), None);
        assert_eq!(run.scale(), 512.0);
        assert!(run.scaler.counters().discarded() <= 1);
    }

    let window = AccumulationConfig::new(2).with_skip_micro_batch(true);
    let (mut run, mut window) = (Trial::at(1024.0), window.init().unwrap());
    let grads = run.grads(true);
    let full = run.scaler.accumulate(&mut window, grads, &run.model);
    assert!(full.unwrap().is_none());
    assert_eq!(run.scale(), 512.0);
    assert_eq!(run.scaler.update().unwrap(), None);
    assert_eq!(run.scale(), 512.0);
}

/// Those that are still held may be stepped with later.
#[test]
fn gradients_that_are_held_wait() {
    let mut run = Trial::at(1024.0);
    let held = run.grads(true);
    let copy = held.clone();
    drop(held);
    assert_eq!(run.scaler.update().unwrap(), None);
    drop(copy);
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));

    // A copy of the scaler knows nothing of what the other has unscaled.
    let grads = run.grads(true);
    let mut copy = run.scaler.clone();
    drop(grads);
    assert_eq!(copy.update().unwrap(), None);
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
}

#[test]
fn gradients_of_a_loss_that_was_not_scaled_are_refused() {
    let mut scaler = scaler(65536.0);
    let mut model = Model::new();
    let loss = |model: &Model| (model.vector.val() * 3.0).sum();
    let plain = || GradientsParams::from_grads(loss(&model).backward(), &model);
    assert_eq!(scaler.scaled(plain()).err(), Some(AmpError::LossNotScaled));
    let said = AmpError::LossNotScaled.to_string();
    let called = ["scaler.scale(loss)", "scaler.backward(loss, &model)"];
    says(&said, called);
    says(&said, ["no loss was scaled since the last `update`"]);

    // Of a loss that was scaled before the last update: at another scale, perhaps.
    let _ = scaler.scale(loss(&model));
    assert!(scaler.scaled(plain()).is_ok());
    let grads = scaler
        .unscale(scaler.scaled(plain()).unwrap(), &model)
        .unwrap();
    model = scaler.step(&mut SgdConfig::new().init(), 0.1, model, grads);
    let plain = || GradientsParams::from_grads(loss(&model).backward(), &model);
    assert!(scaler.scaled(plain()).is_ok());
    scaler.update().unwrap();
    assert!(scaler.scaled(plain()).is_err());

    // Workers scale with copies.
    let worker = scaler.clone();
    std::thread::scope(|threads| {
        let loss = loss(&model);
        threads.spawn(move || worker.scale(loss).backward());
    });
    assert!(scaler.scaled(plain()).is_ok());

    // Where nothing is scaled there is nothing to forget.
    let disabled = GradScalerConfig::new().with_enabled(false).init().unwrap();
    assert_eq!(disabled.scaled(plain()).unwrap().loss_scale(), 1.0);
    let at_border = GradScaler::from(&MixedPrecision::f16());
    assert_eq!(at_border.scaled(plain()).unwrap().loss_scale(), 1.0);
}

/// `scaler.scale(loss).backward()`, and then a step without `scaler.scaled`: Adam would hide it.
#[test]
fn plain_gradients_after_a_scaled_loss_warn_once() {
    let model = Model::new();
    let loss = || model.vector.val().sum();
    let plain = |loss: Tensor<1>| GradientsParams::from_grads(loss.backward(), &model);
    let window = |size| sgd_under(config()).with_accumulation(size);
    for mut optim in [sgd_under(config()), window(1), window(4)] {
        let messages = captured(Level::Warn, || {
            for _ in 0..2 {
                let scaled = optim.scaler().scale(loss());
                optim.step(0.1, model.clone(), plain(scaled));
            }
        });
        says(only(&messages), ["`scaler.scaled(grads)`"]);
    }
    // Those that were unscaled are plain, and so are all where no loss is scaled.
    for enabled in [true, false] {
        let mut optim = sgd_under(config().with_enabled(enabled));
        let messages = captured(Level::Warn, || {
            optim.step(0.1, model.clone(), plain(loss()));
            let grads = optim.backward(loss(), &model);
            let grads = optim.unscale(grads, &model).unwrap().into_params();
            optim.step(0.1, model.clone(), grads);
        });
        assert!(messages.is_empty(), "{messages:?}");
    }
}

/// As a target network and the one that it follows: the parameters have the same ids.
#[test]
fn two_clones_of_a_network_in_an_iteration() {
    let mut first = Trial::at(64.0);
    let (second, mut other) = (first.model.clone(), SgdConfig::new().init());
    first.step(false).unwrap();
    let grads = first.scaler.unscale(second.clean(64.0), &second).unwrap();
    let second = first.scaler.step(&mut other, 1.0, second, grads);
    let moved = (first.model.values()[0], second.values()[0]);
    assert_eq!(moved, (0.75, 0.5));
    // The same optimizer again is a second step.
    let error = first.step(false).unwrap_err();
    assert!(matches!(error, AmpError::UpdateMissing { .. }));
    assert_eq!(first.scaler.update().unwrap(), Some(StepOutcome::Stepped));
}

#[derive(Module, Debug)]
struct Other {
    inner: Model,
}

#[test]
fn the_log_names_the_overflow_of_every_optimizer() {
    let mut run = Trial::at(64.0);
    let other = Other {
        inner: Model::new(),
    };
    let messages = captured(Level::Info, || {
        run.step(true).unwrap();
        let grads = other.inner.overflowing(64.0).into_params();
        let grads = unscaled(&run.scaler, grads, &other);
        run.scaler
            .step(&mut SgdConfig::new().init(), 0.1, other, grads);
        run.scaler.update().unwrap();
    });
    let expected = "step skipped: gradients overflow, first in `matrix` and in `inner.matrix`, at loss scale 64, next 32";
    assert_eq!(messages, [expected]);
}

#[test]
fn steps_without_gradients_warn_once() {
    let model = Model::new().no_grad();
    let mut optim = sgd_under(config());
    // Nor are they an underflow.
    let loss = Tensor::<1>::ones([1], &Device::flex());
    let messages = captured(Level::Warn, || {
        for _ in 0..3 {
            drop(optim.scaler().scale(loss.clone()));
            let nothing = optim.scaler().scaled(GradientsParams::new());
            optim.step(0.1, model.clone(), nothing.unwrap());
        }
    });
    let parts = ["no gradient", "frozen", "adapters", "copy of the model"];
    says(only(&messages), parts);
}

/// PyTorch steps, and says nothing.
#[test]
fn finite_gradients_under_a_loss_that_is_not_warn_once() {
    let mut model = Model::new();
    let mut optim = sgd_under(config());
    let messages = captured(Level::Warn, || {
        for _ in 0..4 {
            let before = model.values();
            let loss = (model.vector.val() * 2.0).sum() + f32::NAN;
            let grads = optim.backward(loss, &model);
            model = optim.step(0.1, model, grads);
            assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
            assert_ne!(model.values(), before);
        }
    });
    says(only(&messages), ["the loss is infinite or NaN"]);
}

#[test]
fn extreme_scales_are_printed_shortly() {
    let mut run = Trial::at(2f64.powi(100));
    let messages = captured(Level::Info, || {
        run.iterate_with(run.model.overflowing(1.0).into_params());
    });
    assert!(messages[0].len() < 150, "{messages:?}");
    says(&messages[0], ["1.2676506002282294e30"]);
}
