//! What a scope refuses, and that it closes whatever happens inside.

use std::panic::panic_any;

use crate::support::*;

/// The error of a scope in f16, which is a panic's message, too.
fn refused<I: CastFloat, R: CastFloat>(
    amp: &MixedPrecision,
    input: impl Fn() -> I,
    forward: impl Fn(I) -> R,
) -> AmpError {
    let error = amp.try_autocast(input(), &forward).map(drop).unwrap_err();
    let message = panic_message(|| drop(amp.autocast(input(), &forward)));
    assert_eq!(message, error.to_string());
    error
}

/// Its gradient would be rounded to f16 without the scale: all of it would be lost.
#[test]
fn half_precision_that_requires_gradients_and_comes_from_outside() {
    let amp = f16(two(12));
    let one = || vector(&[1.0]);
    let half = || one().cast(FloatDType::F16).require_grad();
    let expected = AmpError::HalfPrecisionInput { dtype: DType::F16 };
    says(&expected, ["F16", "`autocast` from outside"]);
    says(&expected, ["pass it in f32, or compute it inside"]);
    assert_eq!(refused(&amp, half, |x| x), expected);
    // In a structure, behind a tensor that is fine.
    let input = || (one(), Some(vec![half()]));
    assert_eq!(refused(&amp, input, |input| input), expected);
    // One that is computed from f32 is as bad: it crosses in f16.
    let computed = || one().require_grad().cast(FloatDType::F16);
    assert_eq!(refused(&amp, computed, |x| x), expected);
    // bf16 that a scope in f16 takes in later.
    let bf16 = one().cast(FloatDType::BF16).require_grad();
    let expected = AmpError::HalfPrecisionInput { dtype: DType::BF16 };
    assert_eq!(refused(&amp, one, |x| x + amp.cast(bf16.clone())), expected);

    // Without gradients it is welcome, as data.
    let data = vector(&[1.5]).cast(FloatDType::F16);
    assert_eq!(values(amp.autocast(data, |x| x)), [1.5]);
}

#[test]
fn half_precision_parameters_that_require_gradients() {
    let amp = f16(two(12));
    let half = |gain| to_half(gain, FloatDType::F16, &[]);
    let input = || vector(&[1.0]);
    let (parameter, dtype) = ("factor".to_string(), DType::F16);
    let expected = AmpError::HalfPrecisionLeaf { parameter, dtype };
    says(&expected, ["`factor` is F16", "`to_full(model)`"]);
    says(&expected, ["`GradScaler`", "`MasterWeights`"]);
    // Whatever was done first: both are possible.
    let attached = half(Gain::at(&[2.0], &amp));
    for gain in [amp.attach(half(Gain::new(&[2.0]))), attached] {
        assert_eq!(gain.factor.val().dtype(), DType::F16);
        assert_eq!(refused(&amp, input, |x| gain.forward(x)), expected);
        // Frozen, or of a model that is not trained, it is data. Widened, it trains.
        let (frozen, valid, full) = (gain.clone().no_grad(), gain.valid(), to_full(gain));
        for (gain, trains) in [(frozen, false), (valid, false), (full, true)] {
            let x = amp.autocast(input(), |x| x);
            let output = amp.autocast(x, |x| gain.forward(x));
            assert_eq!(output.is_tracked(), trains);
            assert_eq!(values(output), [2.0]);
        }
    }
}

/// It would get the loss scale times its gradient.
#[test]
fn full_precision_that_requires_gradients_and_is_returned() {
    let (amp, one) = (f16(two(12)), || vector(&[1.0]));
    let captured = || one().require_grad();
    let expected = AmpError::CapturedOutput { dtype: DType::F32 };
    says(&expected, ["returns a F32 tensor", "outside", "`in_f32`"]);
    says(
        &expected,
        ["Return the half-precision tensor", "`amp.attach(model)`"],
    );
    assert_eq!(refused(&amp, one, |_| captured()), expected);
    assert_eq!(refused(&amp, one, |x| (x, captured())), expected);
    // Out of a region it would have them without its factor.
    assert_eq!(refused(&amp, one, |x| by(3, x, |_| captured())), expected);
    // A loss that is widened by hand.
    let gain = Gain::at(&[2.0], &amp);
    let widened = |x| gain.forward(x).cast(FloatDType::F32).sum();
    assert_eq!(refused(&amp, one, widened), expected);
    // Without gradients: a mask, statistics.
    let output = amp.autocast(one(), |_| vector(&[1e6]));
    assert_eq!(values(output), [1e6]);
}

#[test]
fn f64_passes() {
    let amp = f16(two(12));
    let wide = Tensor::<1>::from_data([1e300], (&device(), DType::F64)).require_grad();
    let output = amp.autocast(wide.clone(), |x| {
        assert_eq!([x.dtype(), amp.cast(x.clone()).dtype()], [DType::F64; 2]);
        in_f32(x, |x| x) * 2.0
    });
    assert_eq!(output.dtype(), DType::F64);
    let grads = output.sum().backward();
    let grad = wide.grad(&grads).unwrap();
    assert_eq!(grad.to_data().as_slice::<f64>().unwrap(), [2.0]);
}

/// A panic names the line of the program, not one of this crate.
#[test]
fn a_panic_names_the_line_of_the_program() {
    let name = "a_panic_names_the_line_of_the_program";
    let Some(printed) = said_in_child(module_path!(), name) else {
        let amp = f16(two(12));
        let half = || vector(&[1.0]).cast(FloatDType::F16).require_grad();
        panic_message(|| amp.autocast(half(), |x| x));
        let captured = || vector(&[1.0]).require_grad();
        panic_message(|| amp.autocast(captured(), |x| autocast(x, |_| captured())));
        let nan = f64::NAN;
        let gain = Gain::at(&[2.0], &amp);
        let grads = || {
            let output = amp.autocast(vector(&[1.0]), |x| gain.forward(x));
            backward(output.sum(), &gain)
        };
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp).with_accumulation(2);
        optim.step(0.1, gain.clone(), grads());
        panic_message(|| optim.flush(nan, gain.clone()));
        panic_message(|| optim.step(nan, gain.clone(), grads()));
        let sgd = SgdConfig::new().init();
        let mut pipelined = PipelinedOptimizer::new(sgd, Device::flex()).unwrap();
        panic_message(|| pipelined.step(nan, gain.clone(), grads()));
        return;
    };
    let here = |line: &&str| line.contains("panicked at") && line.contains(file!());
    // The second panics on its way out of the outer scope, too.
    assert_eq!(printed.lines().filter(here).count(), 6, "{printed}");
}

/// The model is the plain one, and the thread in no scope.
fn assert_closed(amp: &MixedPrecision, gain: &Gain) {
    assert_eq!(gain.factor.val().dtype(), DType::F32);
    let debug = format!("{:?}", burn_amp::Scope::current());
    assert_eq!(debug, "Scope { side: None }");
    let input = vector(&[1.0]).require_grad();
    let output = amp.autocast(input, |x| gain.forward(x));
    let grads = backward(output.sum(), gain);
    assert_eq!(gradient(&grads, gain.factor.id), [1.0]);
}

/// What Burn says of two dtypes comes with what to write, and with the parameter that was read last.
#[test]
fn dtypes_that_clash() {
    let (device, amp) = (device(), f16(two(12)));
    let linear = || LinearConfig::new(3, 3).init(&device);
    let norm: BatchNorm = BatchNormConfig::new(3).init(&device);
    let (bare, pair): (Linear, (Linear, _)) = (linear(), amp.attach((linear(), norm)));
    let input = || random::<2>(1, [4, 3], &device);
    let clash_in = |amp: &MixedPrecision, forward: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        let error = amp.try_autocast(input(), forward).map(drop).unwrap_err();
        let message = error.to_string();
        match error {
            AmpError::DTypeClash {
                dtype: DType::F16,
                parameter,
                ..
            } => (parameter, message),
            error => panic!("{error:?}"),
        }
    };
    let clash = |forward: &dyn Fn(Tensor<2>) -> Tensor<2>| clash_in(&amp, forward);
    let (parameter, message) = clash(&|x| pair.1.forward(pair.0.forward(x)));
    assert!(parameter.unwrap().starts_with("1."), "{message}");
    says(&message, ["dtype", "F16", "amp.cast(tensor)"]);
    says(&message, ["Scope::enter"]);
    says(&message, ["in_f32(x, |x| layer.forward(x))"]);
    // A captured tensor, after the last layer.
    let captured = input();
    let (parameter, _) = clash(&|x| pair.0.forward(x) + captured.clone());
    assert_eq!(parameter.as_deref(), Some("0.bias"));
    // A parameter without its casts: Burn has made it anew.
    let mut lost = amp.attach(linear());
    lost.bias = lost.bias.map(|bias| bias.map(|bias| bias * 1.0));
    let (parameter, message) = clash(&|x| lost.forward(x));
    assert_eq!(parameter.as_deref(), Some("weight"));
    says(&message, ["`Param::map`", "`amp.attach(model)` again"]);
    // A model that was given no `MixedPrecision`, or another one: none of its parameters was read in the scope.
    let other = MixedPrecision::f16().attach(bare.clone());
    let none = |(parameter, message): (Option<_>, String), part: &str| {
        assert_eq!(parameter, None::<String>, "{message}");
        says(&message, [part]);
    };
    for model in [&bare, &other] {
        let found = clash(&|x| model.forward(x));
        says(&found.1, ["it: this model was", "another `MixedPrecision`"]);
        none(found, "no parameter was read");
    }
    // No model was attached at all.
    let found = clash_in(&f16(two(12)), &|x| bare.forward(x));
    none(found, "(no parameter was read: the model was not attached");
    // A tensor that meets the input before the first layer.
    let found = clash(&|x| pair.0.forward(x - captured.clone()));
    none(found, "an f32 tensor of the program meets the input");
    // A thread of a pool that is not in the scope.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let pool = pool.unwrap();
    let (_, message) = clash(&|x| pool.install(|| pair.0.forward(x)));
    says(&message, ["Scope::enter"]);

    assert_closed(&amp, &Gain::at(&[2.0], &amp));
}

/// A scope in a scope says its own error, not that dtypes clash around it.
#[test]
fn an_error_in_an_inner_scope() {
    let (outer, inner) = (f16(two(12)), f16(two(4)));
    let half = vector(&[1.0]).cast(FloatDType::F16).require_grad();
    let within = |x: Tensor<1>| x + inner.autocast(half.clone(), |x| x);
    let error = outer.try_autocast(vector(&[1.0]), |x| in_f32(x, within));
    let expected = AmpError::HalfPrecisionInput { dtype: DType::F16 };
    assert_eq!(error.map(drop).unwrap_err(), expected);
    // One that was handled inside is forgotten.
    let output = outer.autocast(vector(&[1.0]), |x| {
        in_f32(x, |x| {
            assert!(inner.try_autocast(half.clone(), |x| x).is_err());
            x
        })
    });
    assert_eq!(values(output), [1.0]);
}

#[test]
fn other_panics_come_through_unchanged_and_the_scope_closes() {
    let amp = f16(two(12));
    let gain = Gain::at(&[2.0], &amp);
    let run = |panic: &dyn Fn()| {
        let forward = |_| {
            assert_eq!(gain.factor.val().dtype(), DType::F16);
            in_f32((), |()| panic());
        };
        let result = quietly(|| amp.try_autocast(vector(&[1.0]), forward));
        assert_closed(&amp, &gain);
        result.expect_err("it should have panicked")
    };
    let payload = run(&|| panic_any(42u64));
    assert_eq!(payload.downcast_ref::<u64>(), Some(&42));
    // The second is of a program that speaks of dtypes too.
    for message in ["no such token", "the tokens' dtype must be f16"] {
        let payload = run(&|| panic_any(message));
        assert_eq!(payload.downcast_ref::<&str>(), Some(&message));
    }
    // Burn's own, of shapes.
    let payload = run(&|| drop(vector(&[1.0, 2.0]) + vector(&[1.0, 2.0, 3.0])));
    let message = payload.downcast_ref::<String>().unwrap();
    assert!(!message.contains("autocast"), "{message}");
}
