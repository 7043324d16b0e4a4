//! No verdict on gradients is lost, whatever becomes of them; and each call tells what it has done.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;
use burn_amp_tests::{only, says};
use log::Level;

use crate::support::{Model, captured, scaler, unscaled};

fn optimizer(config: GradScalerConfig) -> ScaledOptimizer {
    ScaledOptimizer::new(SgdConfig::new().init(), config.init().unwrap())
}

fn config() -> GradScalerConfig {
    GradScalerConfig::new().with_init_scale(1024.0)
}

/// Throws overflowing gradients away until the run ends; the number before, and the error.
fn discard_until_the_end(mut discard: impl FnMut() -> Result<(), AmpError>) -> (u32, AmpError) {
    for discarded in 0..1000 {
        if let Err(error) = discard() {
            return (discarded, error);
        }
    }
    panic!("1000 discarded overflows and no end")
}

fn discard_overflow(optim: &mut ScaledOptimizer, model: &Model) -> Result<(), AmpError> {
    let scale = optim.scaler().loss_scale();
    let grads = optim.unscale(model.overflowing(scale), model)?;
    optim.discard(grads)
}

fn check_exhausted(error: &AmpError, expected: u64) {
    let AmpError::LossScaleExhausted {
        scale,
        skips,
        parameter,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!((*skips, parameter.as_str()), (expected, "matrix"));
    assert!(*scale > 0.0 && (1.0 / f64::from(*scale)) as f32 != f32::INFINITY);
}

#[test]
fn a_run_that_only_discards_ends() {
    let model = Model::new();
    let window = |rule| AccumulationConfig::new(4).with_skip_micro_batch(rule);
    let windows = [false, true].map(|rule| optimizer(config()).with_accumulation(window(rule)));
    // In a window that is tested as a whole, too, whose scale stays the same otherwise.
    for optim in [Ok(optimizer(config()))].into_iter().chain(windows) {
        let mut optim = optim.unwrap();
        let (discarded, error) = discard_until_the_end(|| discard_overflow(&mut optim, &model));
        assert_eq!(discarded, 50);
        check_exhausted(&error, 51);
        assert_eq!(optim.scaler().loss_scale(), 1024.0 * 0.5f32.powi(50));
        let counters = optim.scaler().counters();
        assert_eq!((counters.discarded(), counters.steps()), (51, 0));
    }

    let mut scaler = scaler(1024.0);
    let (discarded, error) = discard_until_the_end(|| {
        let grads = scaler
            .unscale(model.overflowing(scaler.loss_scale()), &model)
            .unwrap();
        scaler.discard(grads)?;
        scaler.update().map(drop)
    });
    assert_eq!(discarded, 50);
    check_exhausted(&error, 51);
}

/// Plain gradients that are discarded are looked at by nobody; those that a scope's optimizer has tested count.
#[test]
fn discarding_untested_gradients_on_and_on_warns_once() {
    let model = Model::new();
    let amp = MixedPrecision::f32().with_scaler(config()).unwrap();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let messages = captured(Level::Warn, || {
        for _ in 0..30 {
            optim.discard(model.overflowing(1.0).into_params()).unwrap();
        }
        optim.step(0.1, model.clone(), model.clean(1.0).into_params());
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
        for _ in 0..49 {
            optim.discard(model.overflowing(1.0).into_params()).unwrap();
        }
    });
    assert!(messages.is_empty(), "{messages:?}");
    let messages = captured(Level::Warn, || {
        for _ in 0..100 {
            optim.discard(model.overflowing(1.0).into_params()).unwrap();
        }
    });
    says(only(&messages), ["discarded untested"]);
    assert_eq!(amp.loss_scale(), 1024.0);

    let (discarded, error) = discard_until_the_end(|| {
        let grads = optim.unscale(model.overflowing(1.0), &model)?;
        optim.discard(grads)
    });
    assert_eq!(discarded, 50);
    check_exhausted(&error, 51);
    assert!(amp.loss_scale() < 1e-9);
}

#[test]
fn discard_returns_an_overflow_too_many() {
    let mut optim = optimizer(config().with_max_consecutive_skips(Some(0)));
    let model = Model::new();
    let grads = optim.unscale(model.overflowing(1024.0), &model).unwrap();
    let message = optim.discard(grads).unwrap_err().to_string();
    let part = "still overflow at loss scale 1024 after 1 skipped steps in a row";
    assert!(message.contains(part), "{message}");
}

/// `if status.norm() > limit { continue }`: PyTorch's `update` uses what `unscale_` has found.
#[test]
fn dropped_gradients_teach_the_scale() {
    let mut scaler = config().with_growth_interval(2).init().unwrap();
    let model = Model::new();
    drop(scaler.unscale(model.overflowing(1024.0), &model).unwrap());
    assert_eq!(scaler.loss_scale(), 1024.0);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.loss_scale(), 512.0);
    assert_eq!(scaler.counters().consecutive_skips(), 1);
    assert_eq!(scaler.counters().discarded(), 1);
    assert_eq!(scaler.counters().steps(), 0);

    for _ in 0..2 {
        let status = scaler
            .unscale(model.clean(512.0), &model)
            .unwrap()
            .status()
            .clone();
        assert!(!status.has_overflow());
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
    }
    assert_eq!(scaler.loss_scale(), 1024.0);
    assert_eq!(scaler.counters().consecutive_skips(), 0);
    assert_eq!(scaler.update().unwrap(), None);
}

#[test]
fn a_loop_of_the_optimizer_that_drops_its_overflows_goes_on_and_ends() {
    let mut optim = optimizer(config());
    let mut model = Model::new();
    // An overflow at each scale above 16. The next call learns of it: one more loss has been scaled by then.
    for _ in 0..12 {
        let scale = optim.scaler().loss_scale();
        let grads = match scale > 16.0 {
            true => model.overflowing(scale),
            false => model.clean(scale),
        };
        let grads = optim.unscale(grads, &model).unwrap();
        if grads.has_overflow() {
            continue;
        }
        model = optim.step(0.1, model, grads);
    }
    assert_eq!(optim.scaler().loss_scale(), 8.0);
    assert_eq!(optim.scaler().counters().discarded(), 7);
    assert_eq!(optim.scaler().counters().stepped(), 5);

    let (dropped, error) = discard_until_the_end(|| {
        let scale = optim.scaler().loss_scale();
        optim.unscale(model.overflowing(scale), &model).map(drop)
    });
    assert_eq!(dropped, 51);
    check_exhausted(&error, 51);
}

/// The next loss has the lower scale already.
#[test]
fn a_loss_after_a_dropped_overflow_is_scaled_by_less() {
    let mut optim = optimizer(config());
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
    assert_eq!(
        scales,
        [1024.0, 512.0, 256.0, 128.0, 64.0, 32.0, 16.0, 16.0]
    );
    assert_eq!(optim.scaler().loss_scale(), 16.0);
    assert_eq!(optim.scaler().counters().discarded(), 6);
    assert_eq!(optim.scaler().counters().stepped(), 2);

    // Clean gradients that are dropped count towards growth, and a disabled scaler scales nothing.
    let mut optim = optimizer(config().with_growth_interval(1));
    let loss = || model.vector.val().sum();
    for scale in [1024.0, 2048.0, 4096.0] {
        let grads = optim.backward(loss(), &model);
        assert_eq!(grads.loss_scale(), scale);
        drop(optim.unscale(grads, &model).unwrap());
    }
    let mut optim = optimizer(config().with_enabled(false));
    for _ in 0..2 {
        let grads = optim.backward(loss(), &model);
        assert_eq!(grads.loss_scale(), 1.0);
        drop(optim.unscale(grads, &model).unwrap());
    }
}

/// A loop that leaves `update` out with its step never learns.
#[test]
fn a_loop_that_never_updates_is_warned_once() {
    let mut scaler = scaler(1024.0);
    let model = Model::new();
    let messages = captured(Level::Warn, || {
        for _ in 0..600 {
            drop(scaler.unscale(model.overflowing(1024.0), &model).unwrap());
        }
    });
    says(only(&messages), ["`GradScaler::update`"]);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert_eq!(scaler.counters().discarded(), 256);
    assert_eq!(scaler.loss_scale(), 512.0);
}

/// What was stepped with, observed, discarded, accumulated or refused is not learned from twice.
#[test]
fn a_verdict_counts_once() {
    let model = Model::new();
    let mut sgd = SgdConfig::new().init();
    let uses: [&mut dyn FnMut(&mut GradScaler); 4] = [
        &mut |scaler| {
            let grads = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
            let copy = grads.clone();
            scaler.step(&mut sgd, 0.1, model.clone(), grads);
            drop(copy);
        },
        &mut |scaler| {
            let grads = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
            scaler.observe(&grads).unwrap();
        },
        &mut |scaler| {
            let grads = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
            scaler.discard(grads).unwrap();
        },
        &mut |scaler| {
            let first = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
            let second = scaler.unscale(model.clean(1024.0), &model).unwrap();
            scaler.discard(second.add(first, 1.0)).unwrap();
        },
    ];
    for step in uses {
        let mut scaler = scaler(1024.0);
        step(&mut scaler);
        assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
        assert_eq!(scaler.update().unwrap(), None);
        assert_eq!(scaler.loss_scale(), 512.0);
        assert!(scaler.counters().discarded() <= 1);
    }

    let window = AccumulationConfig::new(2).with_skip_micro_batch(true);
    let (mut scaler, mut window) = (scaler(1024.0), window.init().unwrap());
    let grads = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
    assert!(
        scaler
            .accumulate(&mut window, grads, &model)
            .unwrap()
            .is_none()
    );
    assert_eq!(scaler.loss_scale(), 512.0);
    assert_eq!(scaler.update().unwrap(), None);
    assert_eq!(scaler.loss_scale(), 512.0);
}

/// Those that are still held may be stepped with later.
#[test]
fn gradients_that_are_held_wait() {
    let mut scaler = scaler(1024.0);
    let model = Model::new();
    let held = scaler.unscale(model.overflowing(1024.0), &model).unwrap();
    let copy = held.clone();
    drop(held);
    assert_eq!(scaler.update().unwrap(), None);
    drop(copy);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));

    // A copy of the scaler knows nothing of what the other has unscaled.
    let grads = scaler.unscale(model.overflowing(512.0), &model).unwrap();
    let mut copy = scaler.clone();
    drop(grads);
    assert_eq!(copy.update().unwrap(), None);
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
}

#[test]
fn gradients_of_a_loss_that_was_not_scaled_are_refused() {
    let mut scaler = scaler(65536.0);
    let mut model = Model::new();
    let loss = |model: &Model| (model.vector.val() * 3.0).sum();
    let plain = || GradientsParams::from_grads(loss(&model).backward(), &model);
    assert_eq!(scaler.scaled(plain()).err(), Some(AmpError::LossNotScaled));
    says(
        &AmpError::LossNotScaled,
        [
            "no loss was scaled since the last `update`",
            "scaler.scale(loss)",
            "scaler.backward(loss, &model)",
        ],
    );

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
    let window = |size| optimizer(config()).with_accumulation(size).unwrap();
    for mut optim in [optimizer(config()), window(1), window(4)] {
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
        let mut optim = optimizer(config().with_enabled(enabled));
        let messages = captured(Level::Warn, || {
            optim.step(0.1, model.clone(), plain(loss()));
            let grads = optim.backward(loss(), &model);
            let grads = optim.unscale(grads, &model).unwrap().into_params();
            optim.step(0.1, model.clone(), grads);
        });
        assert!(messages.is_empty(), "{messages:?}");
    }
}

#[test]
fn each_call_tells_what_it_has_done() {
    let mut model = Model::new();
    let mut optim = optimizer(config())
        .with_accumulation(AccumulationConfig::new(2).with_skip_micro_batch(true))
        .unwrap();
    assert_eq!(optim.scaler().last_outcome(), None);
    let scale = 1024.0;
    model = optim.step(0.1, model.clone(), model.clean(scale));
    assert_eq!(
        optim.scaler().last_outcome(),
        Some(StepOutcome::Accumulated)
    );
    assert!(optim.scaler().last_status().is_some());
    model = optim.step(0.1, model.clone(), model.clean(scale));
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
    model = optim.step(0.1, model.clone(), model.overflowing(scale));
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Dropped));
    model = optim.flush(0.1, model);
    assert_eq!(
        optim.scaler().last_outcome(),
        Some(StepOutcome::NoGradients)
    );
    assert!(optim.scaler().last_status().is_none());
    optim.discard(model.clean(512.0)).unwrap();
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Dropped));

    // A call that is refused has done nothing, and tells nothing of the one before.
    let result = optim.try_step(f64::NAN, model.clone(), model.clean(512.0));
    assert!(result.is_err());
    assert_eq!(optim.scaler().last_outcome(), None);

    // Nor does one that ends the run for gradients that were dropped before.
    let ending: [&dyn Fn(&mut ScaledOptimizer) -> bool; 3] = [
        &|optim| {
            optim
                .try_step(0.1, model.clone(), model.clean(scale))
                .is_err()
        },
        &|optim| optim.try_flush(0.1, model.clone()).is_err(),
        &|optim| optim.discard(model.clean(scale)).is_err(),
    ];
    for ends in ending {
        let mut optim = optimizer(config().with_max_consecutive_skips(Some(0)));
        optim.step(0.1, model.clone(), model.clean(scale));
        drop(optim.unscale(model.overflowing(scale), &model).unwrap());
        assert!(ends(&mut optim));
        assert_eq!(optim.scaler().last_outcome(), None);
    }

    // What is returned is what is told.
    let mut alone = scaler(64.0);
    let nothing = unscaled(&alone, GradientsParams::new(), &model);
    assert_eq!(alone.observe(&nothing).unwrap(), StepOutcome::NoGradients);
    assert_eq!(alone.last_outcome(), Some(StepOutcome::NoGradients));

    let mut optim = optimizer(config());
    model = optim.step(0.1, model.clone(), model.overflowing(scale));
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Skipped));
    optim.step(0.1, model, GradientsParams::new());
    assert_eq!(
        optim.scaler().last_outcome(),
        Some(StepOutcome::NoGradients)
    );
}

/// In a window that is tested as a whole nothing is known of a micro-batch.
#[test]
fn the_status_is_that_of_the_call() {
    let model = Model::new();
    let mut optim = optimizer(config())
        .with_accumulation(AccumulationConfig::new(2))
        .unwrap();
    for _ in 0..2 {
        let model = optim.step(0.1, model.clone(), model.clean(1024.0));
        assert!(optim.scaler().last_status().is_none());
        optim.step(0.1, model.clone(), model.overflowing(1024.0));
        assert!(optim.scaler().last_status().unwrap().has_overflow());
    }
}

/// As a target network and the one that it follows: the parameters have the same ids.
#[test]
fn two_clones_of_a_network_in_an_iteration() {
    let mut scaler = scaler(64.0);
    let (first, second) = {
        let model = Model::new();
        (model.clone(), model)
    };
    let (mut one, mut other) = (SgdConfig::new().init(), SgdConfig::new().init());
    let grads = scaler.unscale(first.clean(64.0), &first).unwrap();
    let first = scaler.step(&mut one, 0.5, first, grads);
    let grads = scaler.unscale(second.clean(64.0), &second).unwrap();
    let second = scaler.step(&mut other, 1.0, second, grads);
    assert_eq!((first.values()[0], second.values()[0]), (0.75, 0.5));
    // The same optimizer again is a second step.
    let grads = scaler.unscale(first.clean(64.0), &first).unwrap();
    let error = scaler.try_step(&mut one, 0.5, first, grads).unwrap_err();
    assert!(matches!(error.error, AmpError::UpdateMissing { .. }));
    assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Stepped));
}

#[derive(Module, Debug)]
struct Other {
    inner: Model,
}

#[test]
fn the_log_names_the_overflow_of_every_optimizer() {
    let mut scaler = scaler(64.0);
    let (model, other) = (
        Model::new(),
        Other {
            inner: Model::new(),
        },
    );
    let messages = captured(Level::Info, || {
        let grads = scaler.unscale(model.overflowing(64.0), &model).unwrap();
        scaler.step(&mut SgdConfig::new().init(), 0.1, model, grads);
        let grads = other.inner.overflowing(64.0).into_params();
        let grads = unscaled(&scaler, grads, &other);
        scaler.step(&mut SgdConfig::new().init(), 0.1, other, grads);
        scaler.update().unwrap();
    });
    assert_eq!(
        messages,
        [
            "step skipped: gradients overflow, first in `matrix` and in `inner.matrix`, at loss scale 64, next 32"
        ]
    );
}

#[test]
fn steps_without_gradients_warn_once() {
    let model = Model::new().no_grad();
    let mut optim = optimizer(config());
    let messages = captured(Level::Warn, || {
        for _ in 0..3 {
            optim.step(0.1, model.clone(), GradientsParams::new());
        }
    });
    says(
        only(&messages),
        ["no gradient", "frozen", "adapters", "copy of the model"],
    );
}

/// PyTorch steps, and says nothing.
#[test]
fn finite_gradients_under_a_loss_that_is_not_warn_once() {
    let mut model = Model::new();
    let mut optim = optimizer(config());
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

/// Each worker scales its loss with a copy of the scaler; the gradients meet on the first device.
#[test]
fn gradients_that_underflow_on_several_workers_warn() {
    let model = Model::new();
    let mut scaler = scaler(4096.0);
    let messages = captured(Level::Warn, || {
        for value in [0.0, 1.0] {
            let workers = [scaler.clone(), scaler.clone()];
            std::thread::scope(|threads| {
                for worker in workers {
                    threads.spawn(move || {
                        let loss = Tensor::<1>::from_floats([value], &Device::flex());
                        let _ = worker.scale(loss);
                    });
                }
            });
            let grads = scaled_by_hand(&scaler, model.gradients(|_| 0.0));
            let grads = scaler.unscale(grads, &model).unwrap();
            scaler.step(&mut SgdConfig::new().init(), 0.1, model.clone(), grads);
            scaler.update().unwrap();
        }
    });
    says(only(&messages), ["underflow"]);
}

#[test]
fn extreme_scales_are_printed_shortly() {
    let mut scaler = scaler(2f64.powi(100));
    for (bad, shown) in [(1e300, "1e300"), (-1e-300, "-1e-300"), (0.5e-45, "5e-46")] {
        let message = scaler.set_loss_scale(bad).unwrap_err().to_string();
        assert!(message.contains(&format!("is {shown},")), "{message}");
    }
    let model = Model::new();
    let messages = captured(Level::Info, || {
        let grads = unscaled(&scaler, model.overflowing(1.0).into_params(), &model);
        scaler.step(&mut SgdConfig::new().init(), 0.1, model.clone(), grads);
        scaler.update().unwrap();
    });
    assert!(messages[0].len() < 150, "{messages:?}");
    says(&messages[0], ["1.2676506002282294e30"]);
}
