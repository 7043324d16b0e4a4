//! The first loss scale, from a backward pass before the first step.

use crate::support::*;

type Forward = fn(&Gain, Tensor<1>) -> Tensor<1>;

fn gain(amp: &MixedPrecision) -> Gain {
    Gain::at(&[1.0, 0.5], amp)
}

/// Where the output of a gain has a gradient of 2^`weight`.
fn calibrate(amp: &MixedPrecision, weight: i32, forward: Forward) -> Result<f32, AmpError> {
    let output = |gain: &Gain| amp.autocast(ones(), |x| forward(gain, x));
    amp.calibrate(&gain(amp), |gain| output(gain).sum() * two(weight))
}

/// 2^15 is the largest power of two in f16, and three binades are left.
#[test]
fn three_binades_below_overflow() {
    let weights = [-100, -60, -40, -24, -10, -3, 0, 3];
    let plain: Forward = |gain, x| gain.forward(x);
    let in_full: Forward = |gain, x| in_f32(x, |x| gain.forward(x) * two(-30) * two(30)) * 1.0;
    let in_region: Forward = |gain, x| rescaled(Rescale::dynamic("region"), x, |x| gain.forward(x));
    let inside: [(i32, Forward); 7] = [
        // Deep in the scope, where no parameter is and no cast: 2^-20 is 2^-10 between the two factors, and 2^-20 again where it
        // reaches the parameter.
        (22, |gain, x| gain.forward(x) * two(-10) * two(10)),
        (20, |gain, x| gain.forward(x) * two(-12) * two(12)),
        // In f32 nothing overflows, on the way in and out it does.
        (32, in_full),
        (24, |gain, x| {
            in_f32(gain.forward(x) * two(-8), |x| x * two(8))
        }),
        // A region's gradients have the scale times its factor.
        (27, |gain, x| by(5, x, |x| gain.forward(x))),
        (32, |gain, x| by(-5, x, |x| gain.forward(x))),
        (32, in_region),
    ];
    let inside = inside.map(|(expected, forward)| (-20, forward, expected));
    let cases = weights.map(|weight| (weight, plain, 12 - weight));
    for (index, (weight, forward, expected)) in cases.into_iter().chain(inside).enumerate() {
        let amp = MixedPrecision::f16();
        let scale = calibrate(&amp, weight, forward).unwrap();
        let at = format!("case {index}, 2^{weight}");
        assert_eq!(f64::from(scale), two(expected), "{at}");
        assert_eq!((amp.loss_scale(), amp.regions()), (scale, vec![]), "{at}");
    }
}

/// The head outside is not measured, however large its gradients are.
#[test]
fn only_half_precision_counts() {
    let amp = MixedPrecision::f16();
    let scale = amp.calibrate(&(gain(&amp), gain(&amp)), |(gain, head)| {
        let output = amp.autocast(ones(), |x| gain.forward(x));
        head.forward(output * two(-20)).sum() + head.forward(ones() * 1e9).sum()
    });
    assert_eq!(scale, Ok(two(32) as f32));
}

#[test]
fn when_there_is_no_scale_to_find() {
    let amp = MixedPrecision::f16();
    let steep: Forward = |gain, x| gain.forward(x);
    let parameter = "factor".to_string();
    let not_finite = AmpError::GradientsNotFinite { parameter };
    let nan: Forward = |gain, x| gain.forward(x) * f32::NAN;
    let zero: Forward = |gain, x| gain.forward(x) * 0.0;
    for (weight, forward, expected) in [
        (0, nan, not_finite.clone()),
        (50, steep, not_finite),
        (0, zero, AmpError::NoGradients { gradients: 1 }),
    ] {
        assert_eq!(calibrate(&amp, weight, forward), Err(expected));
    }
    let outside = amp.calibrate(&gain(&amp), |gain| gain.forward(ones()).sum());
    assert_eq!(outside, Err(AmpError::NoScope));
    assert_eq!(amp.loss_scale(), 65536.0);
    // Below 1 is a result, with a warning.
    let warning = "no room for a loss scale of 1 in half precision";
    let lines = logs(warning, || {
        assert_eq!(calibrate(&amp, 20, steep), Ok(two(-8) as f32));
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
        let found = calibrate(&f16_under(config), -20, |gain, x| gain.forward(x));
        assert_eq!(found, Ok(expected));
    }
    let amp = MixedPrecision::f32();
    let nothing = amp.calibrate(&gain(&amp), |_| -> Tensor<1> { unreachable!() });
    assert_eq!(nothing, Ok(1.0));
}

type Normed = (Linear, BatchNorm, Linear);

/// Running statistics, counters and parameters are as they were, and nothing overflows.
#[test]
fn it_leaves_no_trace_but_the_scale() {
    let [first, head] = [(6, 8), (8, 2)].map(|(i, o)| LinearConfig::new(i, o).init(&device()));
    let norm: BatchNorm = BatchNormConfig::new(8).init(&device());
    let net: Normed = fill((first, norm, head), 0);
    let mut run = Player::new(net, &MixedPrecision::f16());
    let input = || random::<2>(3, [12, 6], &device());
    let forward = |(linear, norm, head): &Normed, x: Tensor<2>| {
        head.forward(in_f32(linear.forward(x), |x| norm.forward(x)))
    };
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
    assert_ne!(first, 65536.0);
    assert_eq!(first.log2().fract(), 0.0);
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
        let mut scaler: GradScaler = default_scaler();
        let scale = scaler.calibrate(&gain, |gain| {
            let output = gain.forward(ones().cast(FloatDType::F16));
            output.cast(FloatDType::F32).sum() * two(weight)
        });
        assert_eq!(scaler.loss_scale(), *scale.as_ref().unwrap_or(&65536.0));
        assert_eq!(scaler.counters().steps(), 0);
        scale
    };
    for weight in [-40, -20, -3, 0, 5] {
        assert_eq!(calibrate(weight), Ok(two(12 - weight) as f32), "{weight}");
    }
    let error = calibrate(60).unwrap_err();
    is_error(&error, "GradientsNotFinite", []);
    // That of a `MixedPrecision` is its scale.
    let amp = f16(1024.0);
    let scale = GradScaler::from(&amp).calibrate(&gain(&amp), |gain| {
        amp.autocast(ones(), |x| gain.forward(x)).sum() * two(-20)
    });
    assert_eq!(scale, Ok(two(32) as f32));
    assert_eq!(amp.loss_scale(), two(32) as f32);
}

/// A step in flight that overflows lowers the scale that it was made at, and not the one that is found.
#[test]
fn steps_in_flight_are_over_before() {
    let amp = MixedPrecision::f16();
    let mut run = Player::with(FusedSgd::new(SgdConfig::new()), gain(&amp), &amp);
    let output = amp.autocast(ones(), |x| run.model.forward(x));
    run.train(0.1, output.sum() * two(40));
    let scale = calibrate(&amp, 0, |gain, x| gain.forward(x)).unwrap();
    run.optim.synchronize().unwrap();
    assert_eq!((run.counters().skipped(), amp.loss_scale()), (1, scale));
}
