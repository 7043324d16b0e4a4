//! Nothing that was found in gradients is lost, whatever becomes of them.

use burn_amp_tests::{prelude::*, trial::*};

fn config() -> GradScalerConfig {
    at_scale(1024.0)
}

/// With a scale of the optimizer's own, in windows too, whose scale stays the same otherwise, or with that of a scope. The 51st overflow in a row is
/// too many. One that is dropped is counted by the next call.
#[test]
fn a_run_that_only_throws_gradients_away_ends() {
    let made: [fn() -> ScaledOptimizer; 4] = [
        || sgd_under(config()),
        || sgd_under(config()).with_accumulation(windows(4, false)),
        || sgd_under(config()).with_accumulation(windows(4, true)),
        || run::sgd(&MixedPrecision::f32().with_scaler(config()).unwrap()),
    ];
    for (make, discards) in made.iter().flat_map(|make| [(make, true), (make, false)]) {
        let mut run = Trial::new(make());
        let throw_away = |run: &mut Trial| {
            let grads = run.optim.unscale(run.scaled(BAD), &run.model)?;
            match discards {
                true => run.optim.discard(grads),
                // It is dropped.
                false => Ok(()),
            }
        };
        let mut ends = (0..1000).filter_map(|before| Some((before, throw_away(&mut run).err()?)));
        let (before, error) = ends.next().expect("1000 overflows and no end");
        let parts = ["after 51 skipped steps", "`bias`"];
        is_error(&error, "LossScaleExhausted", parts);
        assert_eq!(before, if discards { 50 } else { 51 });
        assert_eq!(run.scale(), 1024.0 * 0.5f32.powi(50));
        let counters = run.counters();
        assert_eq!((counters.discarded(), counters.steps()), (51, 0));
    }
}

/// Plain gradients that are discarded are looked at by nobody.
#[test]
fn discarding_untested_gradients_on_and_on_warns_once() {
    let amp = MixedPrecision::f32().with_scaler(config()).unwrap();
    let mut run = Trial::at_border(&amp);
    let discard = |run: &mut Trial, times| {
        (0..times).for_each(|_| run.optim.discard(run.model.plain(BAD)).unwrap());
    };
    no_warning(|| {
        discard(&mut run, 30);
        run.take(run.model.plain(ONES));
        assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
        discard(&mut run, 49);
    });
    warns_once(["discarded untested"], || discard(&mut run, 100));
    assert_eq!(amp.loss_scale(), 1024.0);
}

/// The next loss has the scale that an overflow leaves, or a finite gradient that counts towards growth. A disabled scaler scales nothing.
/// Whether gradients are dropped or discarded.
#[test]
fn a_loss_after_dropped_gradients_has_the_next_scale() {
    let growing = config().with_growth_interval(1);
    let disabled = config().with_enabled(false);
    for (config, factor, exponents) in [
        // Infinite in f32 at each scale above 16.
        (config(), 2e37, [10, 9, 8, 7, 6, 5, 4, 4]),
        (growing, 1.0, [10, 11, 12, 13, 14, 15, 16, 17]),
        (disabled, 1.0, [0; 8]),
    ] {
        for discard in [false, true] {
            let mut run = Trial::new(sgd_under(config));
            let scales = [(); 8].map(|()| {
                let grads = run.backward((run.model.bias.val() * factor).sum());
                let scale = grads.loss_scale();
                let grads = run.optim.unscale(grads, &run.model).unwrap();
                match discard {
                    true => run.optim.discard(grads).unwrap(),
                    false => drop(grads),
                }
                scale
            });
            assert_eq!(scales, exponents.map(|exponent| 2f32.powi(exponent)));
            assert!(!discard || run.outcome() == Some(StepOutcome::Dropped));
            assert_eq!(run.counters().steps(), 0);
        }
    }
}

#[test]
fn gradients_of_a_loss_that_was_not_scaled_are_refused() {
    let mut run = ByHand::at(65536.0);
    let loss = Tensor::<1>::ones([1], &flex());
    let scaled = |run: &ByHand| run.scaler.scaled(run.model.plain(ONES));
    let error = scaled(&run).unwrap_err();
    is_error(&error, "LossNotScaled", ["scaler.scale(loss)"]);

    // Of a loss that was scaled before the last update: at another scale, perhaps.
    drop(run.scaler.scale(loss.clone()));
    assert!(scaled(&run).is_ok());
    let grads = run.scaler.unscale(scaled(&run).unwrap(), &run.model);
    run.take(grads.unwrap()).unwrap();
    assert!(scaled(&run).is_ok());
    run.scaler.update().unwrap();
    assert!(scaled(&run).is_err());

    // Workers scale with copies.
    let worker = run.scaler.clone();
    std::thread::scope(|threads| drop(threads.spawn(move || worker.scale(loss))));
    assert!(scaled(&run).is_ok());

    // Where nothing is scaled there is nothing to forget.
    let disabled = GradScaler::new(config().with_enabled(false)).unwrap();
    for scaler in [disabled, GradScaler::from(&MixedPrecision::f16())] {
        let grads = scaler.scaled(run.model.plain(ONES));
        assert_eq!(grads.unwrap().loss_scale(), 1.0);
    }
}

/// `scaler.scale(loss).backward()`, and then a step without `scaler.scaled`: Adam would hide it.
#[test]
fn plain_gradients_after_a_scaled_loss_warn_once() {
    let plain =
        |run: &Trial, loss: Tensor<1>| GradientsParams::from_grads(loss.backward(), &run.model);
    let window = |size| sgd_under(config()).with_accumulation(size);
    for optim in [sgd_under(config()), window(1), window(4)] {
        let mut run = Trial::new(optim);
        warns_once(["`scaler.scaled(grads)`"], || {
            for _ in 0..2 {
                let scaled = run.optim.scaler().scale(run.model.bias.val().sum());
                run.take(plain(&run, scaled));
            }
        });
    }
    // Those that were unscaled are plain, and so are all where no loss is scaled.
    for enabled in [true, false] {
        let mut run = Trial::new(sgd_under(config().with_enabled(enabled)));
        no_warning(|| {
            run.take(plain(&run, run.model.bias.val().sum()));
            let grads = run.backward(run.model.bias.val().sum());
            let grads = run.optim.unscale(grads, &run.model).unwrap();
            run.take(grads.into_params());
        });
    }
}
