//! What a dry run says of a loss beside the same in f32, and what a scope says of gradients that come from nowhere.

use crate::support::*;

/// A tensor of one's own that requires gradients, cast by hand.
fn by_hand(dtype: FloatDType) -> Tensor<1> {
    vector(&[2.0, 3.0]).require_grad().cast(dtype)
}

/// Its gradient would be multiplied by the loss scale; of a model that was not attached, on a device that does not refuse two dtypes, it is garbage.
#[test]
fn a_scope_whose_gradients_come_from_no_parameter_of_its_handle_is_refused() {
    for dtype in halves() {
        for amp in [scaled(dtype, two(12)), scaled(dtype, 1.0)] {
            let attached = Gain::at(&[2.0, 2.0], &scaled(dtype, 1.0));
            let frozen = Gain::at(&[2.0, 2.0], &amp).no_grad();
            let scopes: [&dyn Fn(Tensor<1>) -> Tensor<1>; 5] = [
                &|x| x * by_hand(dtype),
                &|x| frozen.forward(x) * by_hand(dtype),
                &|x| in_f32(x, |x| x * 2.0) * by_hand(dtype),
                &|x| amp.autocast(x, |x| x * by_hand(dtype)),
                &|x| x * attached.factor.val().cast(dtype),
            ];
            for (index, scope) in scopes.into_iter().enumerate() {
                let error = amp.try_autocast(ones(), scope).map(drop).unwrap_err();
                is_error(&error, "NotAttached", ["`amp.cast(tensor)`"]);
                says(&error, ["another `MixedPrecision`"]);
                assert_eq!(
                    panic_message(|| amp.autocast(ones(), scope)),
                    error.to_string(),
                    "{index}"
                );
            }
            let bare = scaled(dtype, 1.0);
            let error = bare.try_autocast(ones(), |x| x * by_hand(dtype));
            says(
                &error.map(drop).unwrap_err(),
                ["not attached", "amp.prepare(model, optim)"],
            );
        }
    }
}

/// Gradients of inputs alone, of no parameter at all, of other scopes' parameters, and none.
#[test]
fn scopes_without_a_parameter_that_are_right() {
    for dtype in halves() {
        let amp = scaled(dtype, two(12));
        let gain = Gain::at(&[2.0, 4.0], &amp);
        let frozen = gain.clone().no_grad();
        let tracked = || ones().require_grad();
        let own = tracked();
        let scopes: [(bool, &dyn Fn() -> Tensor<1>); 12] = [
            // Adversarial inputs.
            (true, &|| amp.autocast(tracked(), |x| frozen.forward(x))),
            (true, &|| amp.autocast((ones(), tracked()), |(x, y)| x * y)),
            // A function between other scopes.
            (true, &|| {
                amp.autocast(amp.autocast(ones(), |x| gain.forward(x)), tanh)
            }),
            (true, &|| {
                amp.autocast(ones(), |x| amp.autocast(gain.forward(x), tanh))
            }),
            (true, &|| {
                amp.autocast(ones(), |x| tanh(amp.autocast(x, |x| gain.forward(x))))
            }),
            // A learned tensor.
            (true, &|| amp.autocast((), |()| amp.cast(own.clone()))),
            (true, &|| {
                amp.autocast(ones(), |x| in_f32(x, |x| x * own.clone()))
            }),
            (true, &|| {
                amp.autocast(ones(), |x| in_f32(x, |x| gain.forward(x)))
            }),
            (true, &|| {
                amp.autocast(ones(), |x| by(3, x, |x| gain.forward(x)))
            }),
            // On another thread.
            (true, &|| {
                amp.autocast(ones(), |x| {
                    let scope = Scope::current();
                    let work = || scope.enter(|| gain.forward(x));
                    std::thread::scope(|threads| threads.spawn(work).join().unwrap())
                })
            }),
            // Validation.
            (false, &|| amp.autocast(ones(), |x| frozen.forward(x))),
            (false, &|| {
                Tensor::from_inner(amp.autocast(ones().inner(), |x| gain.valid().forward(x)))
            }),
        ];
        for (index, (requires, scope)) in scopes.into_iter().enumerate() {
            assert_eq!(scope().is_tracked(), requires, "{index}");
        }
    }
}

/// A norm that a program writes itself.
fn norm(x: Tensor<2>) -> Tensor<2> {
    let mean = x.clone().square().mean_dim(1);
    x / (mean + 1e-5).sqrt()
}

/// Two layers around something.
#[derive(Module, Debug)]
struct Two {
    first: Linear,
    last: Linear,
}

impl Two {
    fn at(amp: &MixedPrecision) -> Self {
        let linear = |seed| fill(LinearConfig::new(8, 8).init(&device()), seed);
        let [first, last] = [linear(1), linear(2)];
        amp.attach(Self { first, last })
    }
}

/// What `check` says of two layers around something, on inputs of this size, and its warnings.
fn checked(
    amp: &MixedPrecision,
    height: f64,
    between: impl Fn(Tensor<2>) -> Tensor<2>,
    loss: impl Fn(Tensor<2>) -> Tensor<1>,
) -> (Result<(), AmpError>, Vec<String>) {
    let (net, input) = (Two::at(amp), random::<2>(7, [16, 8], &device()) * height);
    let mut result = None;
    let warnings = captured(Level::Warn, || {
        let checked = amp.check(&net, |net| {
            let output = amp.autocast(input.clone(), |x| {
                net.last.forward(between(net.first.forward(x)))
            });
            loss(output)
        });
        result = Some(checked.map(drop));
    });
    (result.unwrap(), warnings)
}

fn squares(output: Tensor<2>) -> Tensor<1> {
    output.square().mean()
}

#[test]
fn a_loss_that_is_far_from_f32_is_refused() {
    let amp = f16(two(9));
    let far = |between: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        let (result, _) = checked(&amp, 1.0, between, squares);
        is_error(
            &result.unwrap_err(),
            "FarFromF32",
            ["the loss is", "in_f32", "% off"],
        );
    };
    // As where the bytes of f32 are read as f16.
    let is_half = |x: &Tensor<2>| x.dtype() == DType::F16;
    far(&|x| if is_half(&x) { x * 3.0 } else { x });
    far(&|x| {
        if is_half(&x) {
            x.slice_fill([0..16, 0..4], 0.0)
        } else {
            x
        }
    });
    // A random loss has no excuse, if it is not that random.
    let dropout = DropoutConfig::new(0.1).init();
    far(&|x| dropout.forward(if is_half(&x) { x * 9.0 } else { x }));
}

#[test]
fn a_layer_that_gives_zeros_in_half_precision_alone_is_warned_of() {
    let amp = f16(two(4));
    let (result, warnings) = checked(&amp, 6000.0, norm, squares);
    is_error(&result.unwrap_err(), "FarFromF32", []);
    says(
        only(&warnings),
        ["`last.weight`", "all zero in F16", "`in_f32`"],
    );
    // At the end of a scope, and of a region with a name.
    let net = Two::at(&amp);
    let input = random::<2>(7, [16, 8], &device()) * 6000.0;
    let warnings = captured(Level::Warn, || {
        let _ = amp.check(&net, |net| {
            let output = amp.autocast(input.clone(), |x| norm(net.first.forward(x)));
            (output + net.last.weight.val().slice([0..1, 0..8]))
                .square()
                .mean()
        });
    });
    says(&warnings[0], ["all that leaves `autocast` is zero in F16"]);

    let (result, warnings) = checked(&amp, 6000.0, |x| in_f32(x, norm), squares);
    assert_eq!((result, warnings), (Ok(()), vec![]));
}

/// None of them may be refused, or warned of. In a process of its own: on Flex all threads draw from one generator.
#[test]
fn honest_programs_are_let_through() {
    if said_in_child(module_path!(), "honest_programs_are_let_through").is_some() {
        return;
    }
    let dropout = DropoutConfig::new(0.5).init();
    let betweens: [&dyn Fn(Tensor<2>) -> Tensor<2>; 5] = [
        &|x| x,
        &|x| (0..24).fold(x, |x, _| tanh(x * 1.7)),
        &|x| burn::tensor::activation::softmax(x * 40.0, 1),
        &|x| dropout.forward(x),
        // Drawn in another way in each dtype.
        &|x| x.clone() + x.random_like(Distribution::Normal(0.0, 1.0)),
    ];
    let losses: [&dyn Fn(Tensor<2>) -> Tensor<1>; 4] = [
        &squares,
        &|output| output.square().sum() * 1e-6,
        // Of critics: a difference of means that is small.
        &|output| output.clone().slice([0..8, 0..8]).mean() - output.slice([8..16, 0..8]).mean(),
        &|output| {
            -burn::tensor::activation::log_softmax(output, 1)
                .slice([0..16, 0..1])
                .mean()
        },
    ];
    for dtype in halves() {
        for (i, between) in betweens.into_iter().enumerate() {
            for (j, loss) in losses.into_iter().enumerate() {
                let found = checked(&MixedPrecision::new(dtype), 1.0, between, loss);
                assert_eq!(found, (Ok(()), vec![]), "{dtype:?} {i} {j}");
            }
        }
        // A model that fits as well as half precision can hold.
        let (amp, input) = (
            MixedPrecision::new(dtype),
            random::<2>(7, [16, 8], &device()),
        );
        let net = Two::at(&amp);
        let forward = |net: &Two, x| net.last.forward(net.first.forward(x));
        let target = forward(&net, input.clone()).detach() + 1e-6;
        let warnings = captured(Level::Warn, || {
            let checked = amp.check(&net, |net| {
                let output = amp.autocast(input.clone(), |x| forward(net, x));
                (output - target.clone()).square().mean()
            });
            checked.unwrap();
        });
        assert_eq!(warnings, [""; 0]);
    }
}

/// Differences that are divided by a small step, as in a physics-informed network.
#[test]
fn a_loss_that_magnifies_rounding_is_warned_of() {
    let (amp, step) = (f16(two(4)), 1e-3);
    let (net, input) = (Two::at(&amp), random::<2>(7, [16, 8], &device()));
    let at = |net: &Two, shift: f64| {
        amp.autocast(input.clone() + shift, |x| {
            net.last.forward(tanh(net.first.forward(x)))
        })
    };
    let warnings = captured(Level::Warn, || {
        let checked = amp.check(&net, |net| {
            let second = (at(net, step) + at(net, -step) - at(net, 0.0) * 2.0) / (step * step);
            second.square().mean()
        });
        checked.unwrap();
    });
    says(only(&warnings), ["magnifies", "the same but for rounding"]);
}

/// A program that names its half precision cannot be run in f32.
#[test]
fn a_loss_that_cannot_be_computed_in_f32_is_checked_without() {
    let amp = f16(two(9));
    let half = |x: Tensor<2>| {
        assert_eq!(x.dtype(), DType::F16, "made for f16");
        x
    };
    let (result, warnings) = quietly(|| checked(&amp, 1.0, half, squares)).unwrap();
    result.unwrap();
    says(
        only(&warnings),
        ["cannot be computed in f32", "made for f16", "x.dtype()"],
    );
}
