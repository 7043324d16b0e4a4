//! What a scope refuses, and that it closes whatever happens inside.

use rayon::ThreadPoolBuilder;
use std::panic::panic_any;
use std::thread;

use crate::support::*;

/// The error of a scope, which is a panic's message, too. It is of this variant.
fn refused<I: CastFloat, R: CastFloat>(
    amp: &MixedPrecision,
    variant: &str,
    input: impl Fn() -> I,
    forward: impl Fn(I) -> R,
) -> AmpError {
    let error = amp.try_autocast(input(), &forward).map(drop).unwrap_err();
    let message = panic_message(|| drop(amp.autocast(input(), &forward)));
    assert_eq!(message, error.to_string());
    is_error(&error, variant, []);
    assert_closed();
    error
}

fn assert_closed() {
    let debug = format!("{:?}", burn_amp::Scope::current());
    assert_eq!(debug, "Scope { side: None }");
}

fn one() -> Tensor<1> {
    vector(&[1.0])
}

/// Its gradient would be rounded to f16 without the scale: all of it would be lost.
#[test]
fn half_precision_that_requires_gradients_and_comes_from_outside() {
    let amp = f16(two(12));
    let half = || one().cast(FloatDType::F16).require_grad();
    let expected = "Border { what: Input, parameter: None, dtype: F16 }";
    refused(&amp, expected, half, |x| x);
    // In a structure, behind a tensor that is fine.
    refused(
        &amp,
        expected,
        || (one(), Some(vec![half()])),
        |input| input,
    );
    // One that is computed from f32 is as bad: it crosses in f16.
    let computed = || one().require_grad().cast(FloatDType::F16);
    refused(&amp, expected, computed, |x| x);
    // bf16 that a scope in f16 takes in later.
    let bf16 = one().cast(FloatDType::BF16).require_grad();
    let takes_in = |x: Tensor<1>| x + amp.cast(bf16.clone());
    refused(
        &amp,
        "Border { what: Input, parameter: None, dtype: BF16 }",
        one,
        takes_in,
    );
    // A scope in a scope says its own error, not that dtypes clash around it; one that was handled inside is forgotten.
    let inner = f16(two(4));
    let within = |x: Tensor<1>| x + inner.autocast(half(), |x| x);
    refused(&amp, expected, one, |x| in_f32(x, within));
    let handled = |x| {
        assert!(inner.try_autocast(half(), |x| x).is_err());
        x
    };
    assert_eq!(values(amp.autocast(one(), |x| in_f32(x, handled))), [1.0]);
    // Without gradients it is welcome, as data.
    let data = vector(&[1.5]).cast(FloatDType::F16);
    assert_eq!(values(amp.autocast(data, |x| x)), [1.5]);
}

#[test]
fn half_precision_parameters_that_require_gradients() {
    let amp = f16(two(12));
    let half = |gain| to_half(gain, FloatDType::F16, &[]);
    let leaf = "Border { what: Parameter, parameter: Some(\"factor\"), dtype: F16 }";
    // Whatever was done first: both are possible.
    let attached = half(Gain::at(&[2.0], &amp));
    for gain in [amp.attach(half(Gain::new(&[2.0]))), attached] {
        assert_eq!(gain.factor.val().dtype(), DType::F16);
        refused(&amp, leaf, one, |x| gain.forward(x));
        // Frozen, or of a model that is not trained, it is data. Widened, it trains.
        let (frozen, valid, full) = (gain.clone().no_grad(), gain.valid(), to_full(gain));
        for (gain, trains) in [(frozen, false), (valid, false), (full, true)] {
            let x = amp.autocast(one(), |x| x);
            let output = amp.autocast(x, |x| gain.forward(x));
            assert_eq!((output.is_tracked(), values(output)), (trains, vec![2.0]));
        }
    }
}

/// It would get the loss scale times its gradient.
#[test]
fn full_precision_that_requires_gradients_and_is_returned() {
    let amp = f16(two(12));
    let captured = || one().require_grad();
    let output = "Border { what: Output, parameter: None, dtype: F32 }";
    refused(&amp, output, one, |_| captured());
    refused(&amp, output, one, |x| (x, captured()));
    // Out of a region it would have them without its factor.
    refused(&amp, output, one, |x| by(3, x, |_| captured()));
    // A loss that is widened by hand.
    let gain = Gain::at(&[2.0], &amp);
    let widened = |x| gain.forward(x).cast(FloatDType::F32).sum();
    refused(&amp, output, one, widened);
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
    let grad = wide.grad(&output.sum().backward()).unwrap();
    assert_eq!(grad.to_data().as_slice::<f64>().unwrap(), [2.0]);
}

/// A panic names the line of the program, not one of this crate.
#[test]
fn a_panic_names_the_line_of_the_program() {
    let name = "a_panic_names_the_line_of_the_program";
    let Some(printed) = said_in_child(module_path!(), name) else {
        let (amp, nan) = (f16(two(12)), f64::NAN);
        let half = || one().cast(FloatDType::F16).require_grad();
        panic_message(|| amp.autocast(half(), |x| x));
        let captured = || one().require_grad();
        panic_message(|| amp.autocast(captured(), |x| autocast(x, |_| captured())));
        let gain = Gain::at(&[2.0], &amp);
        let grads = || backward(amp.autocast(one(), |x| gain.forward(x)).sum(), &gain);
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

/// What Burn says of two dtypes comes with what to write, and with the parameter that was read last.
#[test]
fn dtypes_that_clash() {
    let (device, amp) = (device(), f16(two(12)));
    let linear = || -> Linear { LinearConfig::new(3, 3).init(&device) };
    let norm: BatchNorm = BatchNormConfig::new(3).init(&device);
    let (bare, pair) = (linear(), amp.attach((linear(), norm)));
    let input = || random::<2>(1, [4, 3], &device);
    let clash = |amp: &MixedPrecision, read: &str, forward: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        let error = refused(amp, "Border { what: Clash", input, forward);
        let found = format!("{error:?}");
        read.split(" .. ")
            .for_each(|part| assert!(found.contains(part), "{found}"));
        assert!(!error.to_string().contains("f64"), "{error}");
    };
    clash(&amp, "Some(\"1.", &|x| pair.1.forward(pair.0.forward(x)));
    // A captured tensor, after the last layer.
    let captured = input();
    clash(&amp, "Some(\"0.bias", &|x| {
        pair.0.forward(x) + captured.clone()
    });
    // A parameter without its casts: Burn has made it anew.
    let mut lost = amp.attach(linear());
    lost.bias = lost.bias.map(|bias| bias.map(|bias| bias * 1.0));
    clash(&amp, "Some(\"weight", &|x| lost.forward(x));
    // A model that was given no `MixedPrecision`, or another one: none of its parameters was read in the scope.
    let (other, alone) = (MixedPrecision::f16(), f16(two(12)));
    let of_other = other.attach(bare.clone());
    clash(&amp, "attached: true .. parameter: None", &|x| {
        bare.forward(x)
    });
    clash(&amp, "attached: true .. parameter: None", &|x| {
        of_other.forward(x)
    });
    clash(&alone, "attached: false .. parameter: None", &|x| {
        bare.forward(x)
    });
    // A tensor that meets the input before the first layer.
    let early = |x: Tensor<2>| pair.0.forward(x - captured.clone());
    clash(&amp, "attached: true .. parameter: None", &early);
    // A target, with the loss inside.
    let inside = |x: Tensor<2>| (pair.0.forward(x) - captured.clone()).square();
    clash(&amp, "Some(\"0.bias", &inside);
    // A thread of a pool that is not in the scope.
    let pool = ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    clash(&amp, "", &|x| pool.install(|| pair.0.forward(x)));
    if device.supports_dtype(DType::F64) {
        let wide = || input().cast(FloatDType::F64);
        let error = refused(&amp, "Border { what: Clash", wide, |x| pair.0.forward(x));
        is_error(&error, "Border { what: Clash", ["f64"]);
    }
}

/// It has no scope: Burn's panic is lost where the thread is joined.
#[test]
fn a_forward_pass_on_a_thread_without_the_scope_is_named() {
    let amp = f16(two(9));
    let gain = Gain::at(&[2.0, 2.0], &amp);
    let joined =
        |x: Tensor<1>| thread::scope(|threads| threads.spawn(|| gain.forward(x)).join().unwrap());
    let scoped = |x: Tensor<1>| {
        let mut output = None;
        thread::scope(|threads| drop(threads.spawn(|| output = Some(gain.forward(x)))));
        output.unwrap()
    };
    let expected = "Border { what: Thread, parameter: Some(\"factor\")";
    refused(&amp, expected, ones, joined);
    refused(&amp, expected, ones, scoped);
    // Of a thread that fails for another reason, nothing is said.
    let failing = || -> Tensor<1> { panic!("its own") };
    let message = panic_message(|| {
        amp.autocast((), |()| thread::spawn(failing).join().unwrap());
    });
    assert!(message.contains("Any { .. }"), "{message}");
}

/// Gradients would lack the loss scale that they are divided by.
#[test]
fn a_backward_pass_inside_the_closure() {
    let amp = f16(two(12));
    let gain = Gain::at(&[2.0, 2.0], &amp);
    let backward_of = |x: Tensor<1>| drop(x.cast(FloatDType::F32).sum().backward());
    let inside = "Border { what: Backward, parameter: Some(\"factor\")";
    refused(&amp, inside, ones, |x| backward_of(gain.forward(x)));
    // Of a scope that is closed, but whose result is in the half precision of one that is not.
    let closed = |x| backward_of(amp.autocast(x, |x| gain.forward(x)));
    refused(&amp, inside, ones, closed);
    // Of a scope that is closed, in the closure of another.
    let inner = || backward(amp.autocast(ones(), |x| gain.forward(x)).sum(), &gain);
    let mut found = None;
    amp.autocast(ones(), |x| {
        found = Some(inner());
        x
    });
    assert_eq!(gradient(&found.unwrap(), gain.factor.id), [1.0, 1.0]);
}

/// Its gradient would be multiplied by the loss scale; of a model that was not attached, on a device that does not refuse two dtypes, it is garbage.
#[test]
fn gradients_that_come_from_no_parameter_of_the_handle() {
    for (dtype, scale) in (halves().into_iter()).flat_map(|dtype| [(dtype, two(12)), (dtype, 1.0)])
    {
        let amp = scaled(dtype, scale);
        let own = || vector(&[2.0, 3.0]).require_grad().cast(dtype);
        let half = DType::from(dtype);
        let expected = |is| {
            format!(
                "Border {{ what: NotAttached {{ attached: {is} }}, parameter: None, dtype: {half:?} }}"
            )
        };
        refused(&amp, &expected(false), ones, |x| x * own());
        let expected = &expected(true);
        let other = Gain::at(&[2.0, 2.0], &scaled(dtype, 1.0));
        let frozen = Gain::at(&[2.0, 2.0], &amp).no_grad();
        refused(&amp, expected, ones, |x| x * own());
        refused(&amp, expected, ones, |x| frozen.forward(x) * own());
        refused(&amp, expected, ones, |x| in_f32(x, |x| x * 2.0) * own());
        let nested = |x: Tensor<1>| amp.autocast(x, |x| x * own());
        refused(&amp, expected, ones, nested);
        let of_other = |x: Tensor<1>| x * other.factor.val().cast(dtype);
        refused(&amp, expected, ones, of_other);
    }
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
        let result = quietly(|| amp.try_autocast(one(), forward));
        // The model is the plain one, and the thread in no scope.
        assert_closed();
        assert_eq!(gain.factor.val().dtype(), DType::F32);
        let input = one().require_grad();
        let grads = backward(amp.autocast(input, |x| gain.forward(x)).sum(), &gain);
        assert_eq!(gradient(&grads, gain.factor.id), [1.0]);
        result.expect_err("it should have panicked")
    };
    assert_eq!(run(&|| panic_any(42u64)).downcast_ref::<u64>(), Some(&42));
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
