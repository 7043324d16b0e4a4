//! Programs that would train wrongly, or in f32, without a word.

use crate::support::*;

fn gain(amp: &MixedPrecision) -> Gain {
    Gain::at(&[2.0, 2.0], amp)
}

/// Gradients would lack the loss scale that they are divided by.
#[test]
fn a_backward_pass_inside_the_closure_is_refused() {
    let amp = f16(two(12));
    let gain = gain(&amp);
    let backward_of = |x: Tensor<1>| drop(x.cast(FloatDType::F32).sum().backward());
    let inside = |x| backward_of(gain.forward(x));
    let error = amp.try_autocast(ones(), inside);
    let message = error.unwrap_err().to_string();
    says(&message, ["`factor`", "take the loss outside"]);
    assert_eq!(panic_message(|| amp.autocast(ones(), inside)), message);

    // Of a scope that is closed, but whose result is in the half precision of one that is not.
    let closed = |x| backward_of(amp.autocast(x, |x| gain.forward(x)));
    let error = amp.try_autocast(ones(), closed);
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

#[test]
fn burns_optimizer_in_place_of_a_scaled_one_is_warned_of() {
    for (exists, steps) in [(false, false), (true, false), (true, true)] {
        let amp = f16(two(7));
        let (mut gain, mut plain) = (gain(&amp), ModuleOptimizer::from(SgdConfig::new().build()));
        let mut optim = exists.then(|| ScaledOptimizer::new(plain.clone(), &amp));
        let lines = captured(Level::Warn, || {
            for _ in 0..if exists { 200 } else { 40 } {
                let loss = amp.autocast(ones(), |x| gain.forward(x)).sum() * two(-10);
                let (module, grads) = (gain.clone(), backward(loss, &gain));
                gain = match &mut optim {
                    Some(optim) if steps => optim.step(0.1, module, grads),
                    _ => plain.step(0.1, module, grads),
                };
            }
        });
        let warned = lines.iter().filter(|line| line.contains("never tested"));
        assert_eq!(warned.count(), usize::from(!steps), "{lines:?}");
    }
}

#[test]
fn a_dry_run_refuses_what_would_not_train_in_half_precision() {
    let (amp, other, in_f32) = (f16(two(9)), f16(two(9)), MixedPrecision::f32());
    let gain = gain(&amp);
    let two_gains = (gain.clone(), self::gain(&other));
    let frozen = self::gain(&other).no_grad();

    let inside = amp.check(&gain, |m| amp.autocast(ones(), |x| m.forward(x).mean()));
    is_error(&inside.map(drop).unwrap_err(), "HalfPrecisionLoss", []);
    // In f32 it loses nothing.
    let beside = amp.check(&(gain.clone(), self::gain(&in_f32)), |(m, critic)| {
        let hidden = amp.autocast(ones(), |x| m.forward(x));
        in_f32.autocast(hidden, |x| critic.forward(x).mean())
    });
    beside.unwrap();

    // In a loop of one's own a free `autocast` does nothing. Nor in one part of it.
    let free = amp.check(&gain, |m| autocast(ones(), |x| m.forward(x)).mean());
    let partly = amp.check(&gain, |m| {
        let hidden = amp.autocast(ones(), |x| m.forward(x));
        autocast(hidden, |x| m.forward(x)).mean()
    });
    for checked in [free, partly] {
        let error = checked.map(drop).unwrap_err();
        is_error(&error, "NoScope", ["free `autocast`"]);
    }

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

/// Of a model that nobody has run, Burn draws the parameters in the first run.
#[test]
fn a_dry_run_of_a_new_model_sees_a_leak_beside_dropout() {
    let name = "a_dry_run_of_a_new_model_sees_a_leak_beside_dropout";
    let Some(_) = said_in_child(module_path!(), name) else {
        let amp = f16(two(9));
        let dropout = DropoutConfig::new(0.5).init();
        let model: Linear = amp.attach(LinearConfig::new(4, 4).init(&flex()));
        let ones = || Tensor::<2>::ones([8, 4], &flex());
        let checked = amp.check(&model, |m| {
            let mut hidden = None;
            let keep = |x| hidden.insert(m.forward(x)).clone();
            let output = amp.autocast(dropout.forward(ones()), keep);
            output.mean() + hidden.unwrap().cast(FloatDType::F32).mean()
        });
        is_error(&checked.map(drop).unwrap_err(), "BorderLeak", ["`weight`"]);
        return;
    };
}

/// What was carried out of a scope meets f32 outside.
#[test]
fn a_dry_run_names_half_precision_that_was_carried_out() {
    let amp = f16(two(9));
    let checked = amp.check(&gain(&amp), |m| {
        let mut hidden = None;
        let output = amp.autocast(ones(), |x| hidden.insert(m.forward(x)).clone());
        output + hidden.unwrap()
    });
    let carried = ["meet outside half precision", "carried out of the closure"];
    is_error(&checked.map(drop).unwrap_err(), "DTypeClash", carried);
}

/// Its own scale is not the cause, and neither is the loss. Whether the host decides a step or the device.
#[test]
fn an_overflow_at_the_scale_of_another_handle_is_named() {
    fn error<O: ModuleOptim>(optimizer: O) -> String {
        let amp = f16_under(at_scale(two(9)).with_max_consecutive_skips(Some(2)));
        let other = f16(two(20));
        let model = (Gain::new(&[2.0, 2.0]), gain(&other));
        let mut run = Player::with(optimizer, model, &amp);
        let mut step = |_: i32| {
            let hidden = amp.autocast(ones(), |x| run.model.0.forward(x));
            let loss = other.autocast(hidden, |x| run.model.1.forward(x)).sum();
            run.try_step(0.1, run.gradients(loss)).err()
        };
        let error = (0..30).find_map(&mut step).expect("every step is skipped");
        assert_eq!((run.counters().bad_losses(), run.scale()), (0, two(9)));
        error.to_string()
    }
    let burns: ModuleOptimizer = SgdConfig::new().init();
    let fused = FusedSgd::new(SgdConfig::new());
    for message in [error(burns), error(fused)] {
        assert!(message.contains("two `MixedPrecision`s"), "{message}");
    }
}

/// Two trainings in turn, of which one is in the middle of a window: the other's NaN is that of its own loss.
#[test]
fn a_bad_loss_beside_another_training_is_named() {
    let [mut run, mut other] = [(); 2].map(|()| {
        let amp = f16(two(9));
        Player::new(gain(&amp), &amp)
    });
    other.optim = other.optim.with_accumulation(8);
    let step = |run: &mut Player<Gain>, factor: f32| {
        let output = run.amp.autocast(ones(), |x| run.model.forward(x));
        run.train(0.1, output.sum() * factor);
    };
    for _ in 0..3 {
        step(&mut other, 1.0);
        step(&mut run, f32::NAN);
    }
    assert_eq!(run.counters().bad_losses(), 3);
}

/// What one of two mistakes says: `step` takes a step with the gain and its handle.
fn warned_of_two_scales(name: &str, step: impl FnOnce(Gain, &MixedPrecision)) {
    let Some(said) = said_in_child(module_path!(), name) else {
        let amp = f16(two(9));
        return step(gain(&amp), &amp);
    };
    says(
        &said,
        [
            "a `GradScaler` has scaled the loss",
            "overflow",
            "`ScaledOptimizer::new(optim, &amp)`",
        ],
    );
}

#[test]
fn a_scaler_of_its_own_around_the_optimizer_is_warned_of() {
    warned_of_two_scales(
        "a_scaler_of_its_own_around_the_optimizer_is_warned_of",
        |gain, amp| {
            let scaler = at_scale(two(9)).init().unwrap();
            let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
            let loss = amp.autocast(ones(), |x| gain.forward(x)).sum();
            let grads = optim.backward(loss, &gain);
            optim.step(0.1, gain, grads);
        },
    );
}

#[test]
fn a_scaler_of_its_own_beside_the_optimizer_is_warned_of() {
    warned_of_two_scales(
        "a_scaler_of_its_own_beside_the_optimizer_is_warned_of",
        |gain, amp| {
            let scaler = at_scale(two(9)).init().unwrap();
            let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), amp);
            let loss = scaler.scale(amp.autocast(ones(), |x| gain.forward(x)).sum());
            let grads = backward(loss, &gain);
            optim.step(0.1, gain, grads);
        },
    );
}

/// Each with a model and a scale of its own, in turn on one thread.
#[test]
fn two_trainings_of_which_each_scales_once_are_not_warned_of() {
    let name = "two_trainings_of_which_each_scales_once_are_not_warned_of";
    let Some(said) = said_in_child(module_path!(), name) else {
        let amp = f16(two(9));
        let mut run = Player::new(gain(&amp), &amp);
        let mut other = Gain::new(&[2.0, 2.0]);
        // One of half precision too, whose scopes do not scale.
        let other_amp = f16_under(GradScalerConfig::new().with_enabled(false));
        let mut half = self::gain(&other_amp);
        let scaler = || at_scale(two(9)).init().unwrap();
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler());
        let mut half_optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler());
        for _ in 0..3 {
            let loss = other_amp.autocast(ones(), |x| half.forward(x)).sum();
            let grads = half_optim.backward(loss, &half);
            half = half_optim.step(0.1, half, grads);
            let output = run.amp.autocast(ones(), |x| run.model.forward(x));
            run.train(0.1, output.sum());
            let grads = optim.backward(other.forward(ones()).sum(), &other);
            other = optim.step(0.1, other, grads);
        }
        return;
    };
    assert!(!said.contains("GradScaler"), "{said}");
}

/// By hand, beyond what the loss scale can make good.
#[test]
fn overflows_that_go_on_name_what_may_cause_them() {
    let amp = f16_under(at_scale(two(9)).with_max_consecutive_skips(Some(8)));
    let mut run = Player::new(gain(&amp), &amp);
    let mut error = None;
    let lines = captured(Level::Warn, || {
        for _ in 0..9 {
            let output = run.amp.autocast(ones(), |x| run.model.forward(x));
            let loss = output.sum() * 1e30;
            error = run.try_step(0.1, run.gradients(loss)).err();
        }
    });
    let causes = lines.iter().filter(|line| line.contains("scaled twice"));
    assert_eq!(causes.count(), 1, "{lines:?}");
    let exhausted = error.expect("nothing helps");
    for cause in [
        "an operation inside `autocast` overflows: put it into `in_f32`",
        "multiplied by a scale of your own",
        "second `GradScaler`",
    ] {
        says(&exhausted, [cause]);
    }
}

/// Where Burn refuses two dtypes, the message says which mistake it may be.
#[test]
fn a_clash_names_f64_inputs_and_targets() {
    let amp = f16(two(9));
    let gain = gain(&amp);
    if device().supports_dtype(DType::F64) {
        let wide = ones().cast(FloatDType::F64);
        let error = amp.try_autocast(wide, |x| gain.forward(x)).map(drop);
        says(&error.unwrap_err(), ["f64 as it is", "as f32"]);
    }
    let target = ones();
    let error = amp.try_autocast(ones(), |x| (gain.forward(x) - target).square());
    let error = error.map(drop).unwrap_err();
    says(&error, ["A target", "take the loss outside"]);
    assert!(!error.to_string().contains("f64"), "{error}");
}

/// Its gradient would be too small by the loss scale. What leaves a part in f32 has it.
#[test]
fn a_cast_of_its_own_out_of_a_scope_is_warned_of() {
    let name = "a_cast_of_its_own_out_of_a_scope_is_warned_of";
    let Some(said) = said_in_child(module_path!(), name) else {
        let amp = f16(two(9));
        let gain = gain(&amp);
        let backward_of = |carry: fn(Tensor<1>) -> Tensor<1>| {
            let mut carried = None;
            amp.autocast(ones(), |x| {
                let hidden = gain.forward(x);
                carried = Some(carry(hidden.clone()));
                hidden
            });
            backward(carried.unwrap().sum(), &gain)
        };
        let by_hand = |x: Tensor<1>| x.cast(FloatDType::F32);
        let in_region = |x: Tensor<1>| {
            let mut wide = None;
            in_f32(x, |x| wide = Some(x));
            wide.unwrap()
        };
        let right = backward_of(in_region);
        assert_eq!(gradient(&right, gain.factor.id), [1.0; 2]);
        amp.autocast(ones(), |x| gain.forward(x)).sum().backward();
        eprintln!("now");
        let wrong = backward_of(by_hand);
        assert_eq!(gradient(&wrong, gain.factor.id), [two(-9) as f32; 2]);
        return;
    };
    let (before, after) = said.split_once("now").unwrap();
    assert!(!before.contains("lacks the loss scale"), "{before}");
    says(
        after,
        [
            "the gradient of `factor` lacks the loss scale",
            "`amp.check`",
        ],
    );
}

/// It has no scope: Burn's panic is lost where the thread is joined.
#[test]
fn a_forward_pass_on_a_thread_without_the_scope_is_named() {
    let amp = f16(two(9));
    let gain = gain(&amp);
    let joined = |x: Tensor<1>| {
        std::thread::scope(|threads| threads.spawn(|| gain.forward(x)).join().unwrap())
    };
    let scoped = |x: Tensor<1>| {
        let mut output = None;
        std::thread::scope(|threads| {
            threads.spawn(|| output = Some(gain.forward(x)));
        });
        output.unwrap()
    };
    for forward in [&joined as &dyn Fn(Tensor<1>) -> Tensor<1>, &scoped] {
        let error = amp.try_autocast(ones(), forward).map(drop);
        let expected = ["`factor` is f32 there", "`scope.enter(|| ..)`"];
        is_error(&error.unwrap_err(), "OtherThread", expected);
    }
    // Of a thread that fails for another reason, nothing is said.
    let failing = || -> Tensor<1> { panic!("its own") };
    let message = panic_message(|| {
        amp.autocast((), |()| std::thread::spawn(failing).join().unwrap());
    });
    assert!(message.contains("Any { .. }"), "{message}");
}
