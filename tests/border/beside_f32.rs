//! What a dry run says of a loss beside the same in f32.

use burn::tensor::activation::{log_softmax, softmax};

use crate::support::*;

/// A norm that a program writes itself.
fn norm(x: Tensor<2>) -> Tensor<2> {
    let mean = x.clone().square().mean_dim(1);
    x / (mean + 1e-5).sqrt()
}

/// What `check` says of a loss of two layers, on inputs of this size, and its warnings.
fn checked(
    amp: &MixedPrecision,
    height: f64,
    loss: impl Fn(&[Linear; 2], Tensor<2>) -> Tensor<1>,
) -> (Result<(), AmpError>, Vec<String>) {
    let linear = |seed| fill(LinearConfig::new(8, 8).init(&device()), seed);
    let net = amp.attach([1, 2].map(linear));
    let input = random::<2>(7, [16, 8], &device()) * height;
    let mut result = Ok(());
    let warnings = captured(Level::Warn, || {
        let checked = amp.check(&net, |net| loss(net, input.clone()));
        result = checked.map(drop);
    });
    (result, warnings)
}

/// The output of the layers with something between.
fn around(
    amp: &MixedPrecision,
    between: impl Fn(Tensor<2>) -> Tensor<2>,
) -> impl Fn(&[Linear; 2], Tensor<2>) -> Tensor<2> {
    move |[first, last], x| amp.autocast(x, |x| last.forward(between(first.forward(x))))
}

/// The same as in [`checked`], of a loss that is the mean of the output's squares.
fn squared(
    amp: &MixedPrecision,
    height: f64,
    between: impl Fn(Tensor<2>) -> Tensor<2>,
) -> (Result<(), AmpError>, Vec<String>) {
    let output = around(amp, between);
    checked(amp, height, |net, x| output(net, x).square().mean())
}

/// As where the bytes of f32 are read as f16. A random loss has no excuse, if it is not that random.
#[test]
fn a_loss_that_is_far_from_f32_is_refused() {
    let amp = f16(two(9));
    let dropout = DropoutConfig::new(0.1).init();
    for wrong in 0..3 {
        let (result, _) = squared(&amp, 1.0, |x| match (x.dtype(), wrong) {
            (DType::F32, _) => x,
            (_, 0) => x * 3.0,
            (_, 1) => x.slice_fill([0..16, 0..4], 0.0),
            _ => dropout.forward(x * 9.0),
        });
        is_error(&result.unwrap_err(), "FarFromF32", []);
    }
}

#[test]
fn a_layer_that_gives_zeros_in_half_precision_alone_is_warned_of() {
    let amp = f16(two(4));
    let (result, warnings) = squared(&amp, 6000.0, norm);
    is_error(&result.unwrap_err(), "FarFromF32", []);
    let words = ["`1.weight`", "all zero in F16", "`in_f32`"];
    says(only(&warnings), words);
    // At the end of a scope.
    let (_, warnings) = checked(&amp, 6000.0, |[first, last], x| {
        let output = amp.autocast(x, |x| norm(first.forward(x)));
        let row = last.weight.val().slice([0..1, 0..8]);
        (output + row).square().mean()
    });
    says(&warnings[0], ["all that leaves `autocast` is zero in F16"]);
    let right = squared(&amp, 6000.0, |x| in_f32(x, norm));
    assert_eq!(right, (Ok(()), vec![]));
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
        &|x| softmax(x * 40.0, 1),
        &|x| dropout.forward(x),
        // Drawn in another way in each dtype.
        &|x| x.clone() + x.random_like(Distribution::Normal(0.0, 1.0)),
    ];
    let losses: [&dyn Fn(Tensor<2>) -> Tensor<1>; 4] = [
        &|y| y.square().mean(),
        &|y| y.square().sum() * 1e-6,
        // Of critics: a difference of means that is small.
        &|y| y.clone().slice([0..8, 0..8]).mean() - y.slice([8..16, 0..8]).mean(),
        &|y| -log_softmax(y, 1).slice([0..16, 0..1]).mean(),
    ];
    let right = (Ok(()), vec![]);
    for amp in halves().into_iter().map(MixedPrecision::new) {
        for (i, j) in (0..20).map(|at| (at / 4, at % 4)) {
            let output = around(&amp, betweens[i]);
            let found = checked(&amp, 1.0, |net, x| losses[j](output(net, x)));
            assert_eq!(found, right, "{amp:?} {i} {j}");
        }
        // A model that fits as well as half precision can hold.
        let found = checked(&amp, 1.0, |[first, last], x| {
            let forward = |x| last.forward(first.forward(x));
            let target = forward(x.clone()).detach() + 1e-6;
            (amp.autocast(x, forward) - target).square().mean()
        });
        assert_eq!(found, right, "{amp:?}");
    }
}

/// Differences that are divided by a small step, as in a physics-informed network.
#[test]
fn a_loss_that_magnifies_rounding_is_warned_of() {
    let (amp, step) = (f16(two(4)), 1e-3);
    let (result, warnings) = checked(&amp, 1.0, |net, x| {
        let at = |shift: f64| around(&amp, tanh)(net, x.clone() + shift);
        let second = (at(step) + at(-step) - at(0.0) * 2.0) / (step * step);
        second.square().mean()
    });
    assert_eq!(result, Ok(()));
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
    let (result, warnings) = quietly(|| squared(&amp, 1.0, half)).unwrap();
    assert_eq!(result, Ok(()));
    let words = ["cannot be computed in f32", "made for f16", "x.dtype()"];
    says(only(&warnings), words);
}
