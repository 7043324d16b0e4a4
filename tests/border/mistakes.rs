//! Programs that would train wrongly, or in f32, without a word.

use crate::support::*;

fn gain(amp: &MixedPrecision) -> Gain {
    Gain::at(&[2.0, 2.0], amp)
}

fn ones() -> Tensor<1> {
    vector(&[1.0, 1.0])
}

/// Gradients would lack the loss scale that they are divided by.
#[test]
fn a_backward_pass_inside_the_closure_is_refused() {
    let amp = f16(two(12));
    let gain = gain(&amp);
    let inside = |x| {
        let loss = gain.forward(x).cast(FloatDType::F32).sum();
        drop(loss.backward());
    };
    let error = amp.try_autocast(ones(), inside);
    let message = error.unwrap_err().to_string();
    says(&message, ["`factor`", "take the loss outside"]);
    assert_eq!(panic_message(|| amp.autocast(ones(), inside)), message);

    // Of a scope that is closed, but whose result is in the half precision of one that is not.
    let error = amp.try_autocast(ones(), |x| {
        let output = amp.autocast(x, |x| gain.forward(x));
        drop(output.cast(FloatDType::F32).sum().backward());
    });
    assert_eq!(error.unwrap_err().to_string(), message);

    // Of a scope that is closed, in the closure of another.
    let mut inner = None;
    amp.autocast(ones(), |x| {
        let output = amp.autocast(ones(), |x| gain.forward(x));
        inner = Some(backward(output.sum(), &gain));
        x
    });
    assert_eq!(gradient(&inner.unwrap(), gain.factor.id), [1.0, 1.0]);
}

/// At a scale that no other test has: the lines are those of all tests.
#[test]
fn burns_optimizer_in_place_of_a_scaled_one_is_warned_of() {
    let warned = |scale: f64, scaled: bool| {
        let amp = f16(scale);
        let mut gain = gain(&amp);
        let mut plain: ModuleOptimizer = SgdConfig::new().init();
        let mut optim = scaled.then(|| sgd(&amp));
        let lines = logs("never tested", || {
            for _ in 0..40 {
                let loss = amp.autocast(ones(), |x| gain.forward(x)).sum() * two(-10);
                let grads = backward(loss, &gain);
                gain = match &mut optim {
                    Some(optim) => optim.step(0.1, gain.clone(), grads),
                    None => plain.step(0.1, gain.clone(), grads),
                };
            }
        });
        let of_scale = format!(" {scale}");
        lines.iter().filter(|line| line.contains(&of_scale)).count()
    };
    assert_eq!(warned(5.0 * two(7), false), 1);
    assert_eq!(warned(5.0 * two(8), true), 0);
}

#[test]
fn a_dry_run_refuses_what_would_not_train_in_half_precision() {
    let (amp, other) = (f16(two(9)), f16(two(9)));
    let gain = gain(&amp);
    let two_gains = (gain.clone(), self::gain(&other));
    let frozen = self::gain(&other).no_grad();

    let inside = amp.check(&gain, |m| amp.autocast(ones(), |x| m.forward(x).mean()));
    let error = inside.map(drop).unwrap_err();
    assert!(matches!(error, AmpError::HalfPrecisionLoss { .. }));

    // In a loop of one's own a free `autocast` does nothing.
    let free = amp.check(&gain, |m| autocast(ones(), |x| m.forward(x)).mean());
    let error = free.map(drop).unwrap_err();
    assert_eq!(error, AmpError::NoScope);
    assert!(error.to_string().contains("free `autocast`"), "{error}");
    // Nor in one part of it.
    let partly = amp.check(&gain, |m| {
        let hidden = amp.autocast(ones(), |x| m.forward(x));
        autocast(hidden, |x| m.forward(x)).mean()
    });
    assert_eq!(partly.map(drop).unwrap_err(), AmpError::NoScope);

    let chain = amp.check(&two_gains, |(first, second)| {
        let hidden = amp.autocast(ones(), |x| first.forward(x));
        other.autocast(hidden, |x| second.forward(x)).mean()
    });
    // Nobody moves one of the scales.
    says(&chain.map(drop).unwrap_err(), ["two `MixedPrecision`s"]);
    // One that gradients do not pass is none of its business.
    let teacher = amp.check(&gain, |m| {
        let target = other.autocast(ones(), |x| frozen.forward(x)) * 2.0;
        let output = amp.autocast(ones(), |x| m.forward(x));
        (output - target).square().mean()
    });
    teacher.unwrap();
}

/// Its own scale is not to blame, and neither is the loss. Whether the host decides a step or the device.
#[test]
fn an_overflow_at_the_scale_of_another_handle_is_named() {
    fn error<O: ModuleOptim>(optimizer: O) -> String {
        let config = at_scale(two(9));
        let config = config.with_max_consecutive_skips(Some(2));
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        let other = f16(two(20));
        let model = (gain(&amp), gain(&other));
        let mut optim = ScaledOptimizer::new(optimizer, &amp);
        let mut step = |_: i32| {
            let hidden = amp.autocast(ones(), |x| model.0.forward(x));
            let loss = other.autocast(hidden, |x| model.1.forward(x)).sum();
            let grads = backward(loss, &model);
            optim.try_step(0.1, model.clone(), grads).err()
        };
        let failed = (0..30).find_map(&mut step).expect("every step is skipped");
        assert_eq!(optim.scaler().counters().bad_losses(), 0);
        assert_eq!(f64::from(amp.loss_scale()), two(9));
        failed.error.to_string()
    }
    let burns: ModuleOptimizer = SgdConfig::new().init();
    let fused = FusedSgd::new(SgdConfig::new());
    for message in [error(burns), error(fused)] {
        assert!(message.contains("two `MixedPrecision`s"), "{message}");
    }
}
