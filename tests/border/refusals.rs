//! What a scope refuses, and that it closes whatever happens inside.

use std::panic::panic_any;
use std::thread;

use crate::support::{graph::*, *};

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

/// What a scope gets, what is done in it, and its error. Of half precision from outside the gradient would be rounded without the scale, whether it is a leaf
/// or crosses in it; as data it is welcome. Full precision that is returned would get the loss scale times its gradient, and so would what comes from no
/// parameter of the handle; out of a region it would lack its factor. Gradients of a backward pass inside would lack the scale that they are divided by, unless
/// the loss is outside of that scope. Gradients of inputs alone are right, and of a function between other scopes, of a learned tensor, in islands, regions and
/// on threads. A scope in a scope says its own error, not that dtypes clash around it.
const SCOPES: &str = r#"
ones half > *0 > right
tracked > R > right
tracked = ones > taken > right
tracked = ones > ( times ) > right
[ T ] > tanh > right
ones > T [ tanh ] > right
ones > [ T ] tanh > right
ones > ( T ) > right
ones > {3 T } > right
ones > thread( T ) > right
ones half leaf > *0 > Border { what: Input, parameter: None, dtype: HALF
tracked half > *0 > Border { what: Input, parameter: None, dtype: HALF
ones > ( tracked half [b *0 ] ) > Border { what: Input, parameter: None, dtype: HALF
ones > ones > right
ones > tracked > Border { what: Output, parameter: None, dtype: F32
ones > {3 tracked } > Border { what: Output, parameter: None, dtype: F32
ones > O full sum > Border { what: Output, parameter: None, dtype: F32
ones > = ones [ O ] backward kept > right
ones > O backward > Border { what: Backward, parameter: Some("factor")
ones > [ O ] backward > Border { what: Backward, parameter: Some("factor")
tracked half = ones > times > Border { what: NotAttached { attached: true }, parameter: None, dtype: HALF
tracked half = ones > R times > Border { what: NotAttached { attached: true }, parameter: None, dtype: HALF
tracked half = ones > ( *1 ) times > Border { what: NotAttached { attached: true }, parameter: None, dtype: HALF
tracked half = ones > [ times ] > Border { what: NotAttached { attached: true }, parameter: None, dtype: HALF
ones > borrowed > Border { what: NotAttached { attached: true }, parameter: None, dtype: HALF
"#;

#[test]
fn what_a_scope_gets_and_gives() {
    for (dtype, scale) in (halves().into_iter()).flat_map(|dtype| [(dtype, two(12)), (dtype, 1.0)])
    {
        let (amp, other) = (scaled(dtype, scale), scaled(dtype, 1.0));
        let own = || ones().require_grad().cast(dtype);
        let bare = "Border { what: NotAttached { attached: false }";
        refused(&amp, bare, ones, |x| x * own());
        let mut net = attached(net(), [&amp, &other]);
        net.right = net.right.no_grad();
        // Where nothing is scaled, the others lose nothing.
        let has_all = dtype == FloatDType::F16 && scale > 1.0;
        let is_tried = |row: &[&str; 3]| has_all || row[2].contains("NotAttached");
        for [before, inside, expected] in rows(SCOPES).filter(is_tried) {
            let expected = expected.replace("HALF", &format!("{:?}", DType::from(dtype)));
            match scope_of([&amp, &other], &net, [before, inside]) {
                Ok(_) => assert_eq!(expected, "right", "{before}, {inside}"),
                Err(error) => is_error(&error, &expected, []),
            }
            assert_closed();
        }
    }
    let amp = f16(two(12));
    let half = || ones().cast(FloatDType::F16).require_grad();
    // In a structure, behind a tensor that is fine; of another half precision, which a scope takes in later.
    let input = "Border { what: Input, parameter: None, dtype: F16 }";
    refused(&amp, input, || (ones(), Some(vec![half()])), |input| input);
    let bf16 = ones().cast(FloatDType::BF16).require_grad();
    let takes_in = |x: Tensor<1>| x + amp.cast(bf16.clone());
    let input = "Border { what: Input, parameter: None, dtype: BF16 }";
    refused(&amp, input, ones, takes_in);
    // One that was handled inside is forgotten.
    let handled = |x| {
        assert!(amp.try_autocast(half(), |x| x).is_err());
        x
    };
    let output = amp.autocast(ones(), |x| in_f32(x, handled));
    assert_eq!(values(output), [1.0; 2]);
}

#[test]
fn half_precision_parameters_that_require_gradients() {
    let amp = f16(two(12));
    let half = |gain| to_half(gain, FloatDType::F16, &[]);
    let leaf = "Border { what: Parameter, parameter: Some(\"factor\"), dtype: F16 }";
    // Whatever was done first: both are possible.
    let attached = half(Gain::at(&[2.0; 2], &amp));
    for gain in [amp.attach(half(Gain::new(&[2.0; 2]))), attached] {
        assert_eq!(gain.factor.val().dtype(), DType::F16);
        refused(&amp, leaf, ones, |x| gain.forward(x));
        // Frozen, or of a model that is not trained, it is data. Widened, it trains.
        let (frozen, valid, full) = (gain.clone().no_grad(), gain.valid(), to_full(gain));
        for (gain, trains) in [(frozen, false), (valid, false), (full, true)] {
            let x = amp.autocast(ones(), |x| x);
            let output = amp.autocast(x, |x| gain.forward(x));
            assert_eq!(output.is_tracked(), trains);
            assert_eq!(values(output), [2.0; 2]);
        }
    }
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
        let half = || ones().cast(FloatDType::F16).require_grad();
        panic_message(|| amp.autocast(half(), |x| x));
        let captured = || ones().require_grad();
        panic_message(|| amp.autocast(captured(), |x| autocast(x, |_| captured())));
        let gain = Gain::at(&[2.0; 2], &amp);
        let grads = || backward(amp.autocast(ones(), |x| gain.forward(x)).sum(), &gain);
        let mut optim = ScaledOptimizer::new(sgd(), &amp).with_accumulation(2);
        optim.step(0.1, gain.clone(), grads());
        panic_message(|| optim.flush(nan, gain.clone()));
        panic_message(|| optim.step(nan, gain.clone(), grads()));
        let mut pipelined = PipelinedOptimizer::new(sgd(), Device::flex()).unwrap();
        panic_message(|| pipelined.step(nan, gain.clone(), grads()));
        return;
    };
    let here = |line: &&str| line.contains("panicked at") && line.contains(file!());
    // The second panics on its way out of the outer scope, too.
    assert_eq!(printed.lines().filter(here).count(), 6, "{printed}");
}

/// It has no scope: Burn's panic is lost where the thread is joined.
#[test]
fn a_forward_pass_on_a_thread_without_the_scope_is_named() {
    let amp = f16(two(9));
    let gain = Gain::at(&[2.0; 2], &amp);
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
        amp.autocast((), |()| {
            // It has read no parameter, but an island of this one has.
            in_f32((), |()| drop(gain.factor.val()));
            thread::spawn(failing).join().unwrap()
        });
    });
    assert!(message.contains("Any { .. }"), "{message}");
}

#[test]
fn other_panics_come_through_unchanged_and_the_scope_closes() {
    let amp = f16(two(12));
    let gain = Gain::at(&[2.0; 2], &amp);
    let run = |panic: &dyn Fn()| {
        let forward = |_| {
            assert_eq!(gain.factor.val().dtype(), DType::F16);
            in_f32((), |()| by(3, (), |()| panic()));
        };
        let result = quietly(|| amp.try_autocast(ones(), forward));
        // The model is the plain one, and the thread in no scope.
        assert_closed();
        assert_eq!(gain.factor.val().dtype(), DType::F32);
        let input = ones().require_grad();
        let grads = backward(amp.autocast(input, |x| gain.forward(x)).sum(), &gain);
        assert_eq!(all_gradients(&grads, &gain), [[1.0; 2]]);
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
