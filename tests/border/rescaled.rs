//! Regions with a factor of their own, which a program has fixed: what it multiplies, and that nobody sees it outside.

use crate::nesting::chain;
use crate::support::{graph::*, *};

fn input() -> Tensor<1> {
    vector(&[1.0, 2.0])
}

/// The exponent of the factor that a value has inside. f32 needs none, but what is in half precision in it has that of the region.
const FACTORS: &str = "
5 > [ ]
9 > [ {4 } ]
9 > {4 [ ] }
12 > [ {3 {4 } } ]
12 > {4 [ {3 [free ] } ] }
5 > [ ( {4 } ) ]
9 > [ ( {4 [free ] } ) ]
";

#[test]
fn factors_are_multiplied() {
    let gradient = |amp: &MixedPrecision, line: &str| {
        let input = vector(&[1.0]).require_grad();
        let loss = loss_of([amp, amp], &net(), input.clone(), line);
        values(input.grad(&loss.backward()).unwrap())[0]
    };
    let amp = f16(two(5));
    for [expected, line] in rows(FACTORS) {
        // That at which it becomes infinite.
        let overflows = |exponent| gradient(&amp, &format!("{line} ^{exponent}")).is_infinite();
        let first = (-60..60).find(|exponent| overflows(*exponent)).unwrap();
        assert_eq!((16 - first).to_string(), expected, "{line}");
    }
    // Without half precision there is nothing to multiply.
    let plain = gradient(&MixedPrecision::f32(), "[ {100 } ] ^100");
    assert_eq!(f64::from(plain), two(100));
}

#[test]
fn a_region_in_f32_stays_f32_and_a_panic_leaves_the_region() {
    let amp = f16(two(9));
    let gain = Gain::at(&[2.0, 4.0], &amp);
    let fails = |x| by(3, x, |_| -> Tensor<1> { panic!("here") });
    panic_message(|| amp.autocast(input(), fails));
    assert_eq!(gain.factor.val().dtype(), DType::F32);
    let output = by(3, input(), |x| gain.forward(x));
    assert_eq!(output.dtype(), DType::F32);
}

/// Regions at any factor k: they are given what they use, or take in what is captured in f32.
const RIGHT: [&str; 3] = [
    "[ T {k L tanh } R ] ^-12",
    "[ T = &{k L tanh times } R ] ^-12",
    "tracked = ones [ T {k L tanh taken } R ] ^-12",
];

/// Also where its gradients are lost without the factor.
#[test]
fn a_region_without_a_leak_passes_at_any_factor() {
    let amp = f16(two(9));
    let net = amp.attach(chain());
    let check = |line: &str| {
        let loss = |net: &Net| loss_of([&amp, &amp], net, input(), line);
        assert_eq!(amp.check(&net, loss).map(drop), Ok(()), "{line}");
    };
    for k in [-12, -8, -5, -4, -3, 1, 2, 3, 4, 5, 8, 12] {
        RIGHT
            .iter()
            .for_each(|line| check(&line.replace("{k", &format!("{{{k}"))));
    }
    for weight in [-16, -18, -20, -22] {
        check(&format!("[ T {{14 L tanh *{weight} }} R ] ^-12"));
    }
}

/// In a scope, and outside of one that opens in the region. The largest ones are taken.
#[test]
fn an_exponent_out_of_range_is_refused_by_the_scope() {
    let amp = f16(two(9));
    for (k, is_refused) in [(126, false), (-126, false), (127, true), (i32::MIN, true)] {
        let inside = amp.try_autocast(input(), |x| by(k, x, |x| x)).err();
        let outside = by(k, input(), |x| amp.try_autocast(x, |x| x)).err();
        assert_eq!((inside.is_some(), &outside), (is_refused, &inside));
        let field = "InvalidValue { field: \"power_of_two\"";
        inside
            .iter()
            .for_each(|error| is_error(error, field, ["between -126 and 126"]));
    }
}

#[test]
fn settings_outside_their_range() {
    let (config, region) = (GradScalerConfig::new(), Rescale::dynamic("region"));
    let of_fixed = Rescale::power_of_two(3).with_scaler(config).unwrap_err();
    let of_region = region.with_scaler(config.with_growth_factor(1.0));
    for (field, error) in [
        ("underflow_share", AdaLoss::new(0.0, 16.0).unwrap_err()),
        ("total_limit", AdaLoss::new(0.1, f64::INFINITY).unwrap_err()),
        ("growth_factor", of_region.unwrap_err()),
        ("with_scaler", of_fixed),
    ] {
        let expected = format!("InvalidValue {{ field: \"{field}\"");
        is_error(&error, &expected, []);
    }
}
