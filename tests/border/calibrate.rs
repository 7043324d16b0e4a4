//! The first loss scale, from a backward pass before the first step.

use crate::support::{graph::*, *};

fn calibrate(amp: &MixedPrecision, line: &str) -> Result<f32, AmpError> {
    amp.calibrate(&amp.attach(net_of(1.0)), |net| loss(amp, net, line))
}

/// 2^15 is the largest power of two in f16, and three binades are left: the exponent of the scale for a loss.
const SCALES: &str = "
112 > [ T ] ^-100
12 > [ T ] ^0
9 > [ T ] ^3
22 > [ T *-10 *10 ] ^-20
20 > [ T *-12 *12 ] ^-20
32 > [ ( T *-30 *30 ) *0 ] ^-20
24 > [ T *-8 ( *8 ) ] ^-20
27 > [ {5 T } ] ^-20
32 > [ {-5 T } ] ^-20
32 > [ {region:0 T } ] ^-20
32 > [ T ] *-20 O ^0 + O infinite ^0
";

/// Deep in the scope, where no parameter is and no cast: 2^-20 is 2^-10 between the two factors, and 2^-20 again where it reaches the parameter.
/// In f32 nothing overflows, on the way in and out it does. A region's gradients have the scale times its factor. A head outside is not measured.
#[test]
fn three_binades_below_overflow() {
    for [exponent, line] in rows(SCALES) {
        let amp = MixedPrecision::f16();
        let scale = two(exponent.parse().unwrap()) as f32;
        assert_eq!(calibrate(&amp, line), Ok(scale), "{line}");
        assert_eq!((amp.loss_scale(), amp.regions()), (scale, vec![]), "{line}");
    }
}

#[test]
fn when_there_is_no_scale_to_find() {
    let amp = MixedPrecision::f16();
    let not_finite = "GradientsNotFinite { parameter: \"trunk.factor\" }";
    for (line, expected) in [
        ("[ T ] nan", not_finite),
        ("[ T ] ^50", not_finite),
        ("[ T ] zero", "NoGradients { gradients: 1 }"),
        ("T ^0", "NoScope"),
    ] {
        is_error(&calibrate(&amp, line).unwrap_err(), expected, []);
    }
    assert_eq!(amp.loss_scale(), 65536.0);
    // Below 1 is a result, with a warning.
    let warning = "no room for a loss scale of 1 in half precision";
    let lines = logs(warning, || {
        assert_eq!(calibrate(&amp, "[ T ] ^20"), Ok(two(-8) as f32));
    });
    only(&lines);
}

#[test]
fn bounds_and_other_precisions() {
    let config = GradScalerConfig::new;
    for (config, expected) in [
        (config().with_max_scale(Some(1e6)), 1e6),
        (config().with_dynamic(false), two(32) as f32),
        (config().with_enabled(false), 1.0),
    ] {
        assert_eq!(calibrate(&f16_under(config), "[ T ] ^-20"), Ok(expected));
    }
    let amp = MixedPrecision::f32();
    let nothing = amp.calibrate(&net(), |_| -> Tensor<1> { unreachable!() });
    assert_eq!(nothing, Ok(1.0));
}

type Normed = (Linear, BatchNorm);

/// Running statistics, counters and parameters are as they were, and nothing overflows.
#[test]
fn it_leaves_no_trace_but_the_scale() {
    let linear = LinearConfig::new(6, 8).init(&device());
    let norm = BatchNormConfig::new(8).init(&device());
    let mut run = Player::new(fill((linear, norm), 0), &MixedPrecision::f16());
    let input = || random::<2>(3, [12, 6], &device());
    let forward = |(linear, norm): &Normed, x| in_f32(linear.forward(x), |x| norm.forward(x));
    let loss = |output: Tensor<2>| output.square().mean() * 1e-3;
    // As a model for a `Learner`: its scope is that of whoever runs it.
    let loss_of = |net: &Normed| loss(autocast(input(), |x| forward(net, x)));
    let state = |run: &Player<Normed>| {
        let statistics = [&run.model.1.running_mean, &run.model.1.running_var];
        let statistics = statistics.map(|state| values(state.value_sync()));
        (statistics, numbers(&run.model), run.counters())
    };
    let before = state(&run);
    let first = run.amp.calibrate(&run.model, loss_of).unwrap();
    assert_eq!(run.amp.calibrate(&run.model, loss_of), Ok(first));
    assert_eq!(state(&run), before);
    assert!(first != 65536.0 && first.log2().fract() == 0.0);
    for _ in 0..5 {
        let output = run.amp.autocast(input(), |x| forward(&run.model, x));
        assert!(!run.train(0.1, loss(output)));
    }
    assert_eq!(run.amp.loss_scale(), first);
}

/// The explicit way: parameters in half precision, a loss that is scaled by hand.
#[test]
fn a_scaler_calibrates_itself() {
    let calibrate = |weight: i32| {
        let gain = to_half(Gain::new(&[1.0, 0.5]), FloatDType::F16, &[]);
        let mut scaler = default_scaler();
        let scale = scaler.calibrate(&gain, |gain| {
            let output = gain.forward(ones().cast(FloatDType::F16));
            output.cast(FloatDType::F32).sum() * two(weight)
        });
        assert_eq!(scaler.loss_scale(), *scale.as_ref().unwrap_or(&65536.0));
        assert_eq!(scaler.counters().steps(), 0);
        scale
    };
    for weight in [-40, -3, 5] {
        assert_eq!(calibrate(weight), Ok(two(12 - weight) as f32), "{weight}");
    }
    is_error(&calibrate(60).unwrap_err(), "GradientsNotFinite", []);
    // That of a `MixedPrecision` is its scale.
    let (amp, found) = (f16(1024.0), two(32) as f32);
    let mut scaler = GradScaler::from(&amp);
    let scale = scaler.calibrate(&amp.attach(net()), |net| loss(&amp, net, "[ T ] ^-20"));
    assert_eq!((scale, amp.loss_scale()), (Ok(found), found));
}

/// A step in flight that overflows lowers the scale that it was made at, and not the one that is found.
#[test]
fn steps_in_flight_are_over_before() {
    let amp = MixedPrecision::f16();
    let mut run = Player::with(fused(), net(), &amp);
    step(&mut run, "[ T ] ^40");
    let scale = calibrate(&amp, "[ T ] ^0").unwrap();
    run.optim.synchronize().unwrap();
    assert_eq!((run.counters().skipped(), amp.loss_scale()), (1, scale));
}
