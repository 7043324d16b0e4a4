//! The first loss scale, from a backward pass before the first step.

use crate::support::*;

/// A gain whose output has a gradient of 2^`weight`.
struct Probe {
    amp: MixedPrecision,
    gain: Gain,
}

type Part = fn(&Gain, Tensor<1>) -> Tensor<1>;

impl Probe {
    fn new() -> Self {
        let amp = MixedPrecision::f16();
        let gain = Gain::at(&[1.0, 0.5], &amp);
        Self { amp, gain }
    }

    fn calibrate(&self, weight: i32, part: Part) -> Result<f32, AmpError> {
        self.amp.calibrate(&self.gain, |gain| {
            let output = self.amp.autocast(vector(&[1.0, 1.0]), |x| part(gain, x));
            output.sum() * two(weight)
        })
    }
}

/// 2^15 is the largest power of two in f16, and three binades are left.
#[test]
fn three_binades_below_overflow() {
    let weights = [-100, -60, -40, -24, -10, -3, 0, 3];
    let plain: Part = |gain, x| gain.forward(x);
    let mut cases = weights.map(|weight| (weight, plain, 12 - weight)).to_vec();
    let inside: [(i32, Part); 8] = [
        // Deep in the scope, where no parameter is and no cast: 2^-20 is 2^-10 between the two factors, and 2^-20 again where it
        // meets the parameter.
        (22, |gain, x| gain.forward(x) * two(-10) * two(10)),
        (20, |gain, x| gain.forward(x) * two(-12) * two(12)),
        // In f32 nothing overflows, on the way in and out it does.
        (32, |gain, x| {
            in_f32(x, |x| gain.forward(x) * two(-30) * two(30)) * 1.0
        }),
        (24, |gain, x| {
            in_f32(gain.forward(x) * two(-8), |x| x * two(8))
        }),
        // A part's gradients have the scale times its factor.
        (27, |gain, x| {
            rescaled(Rescale::power_of_two(5), x, |x| gain.forward(x))
        }),
        (32, |gain, x| {
            rescaled(Rescale::power_of_two(0), x, |x| gain.forward(x))
        }),
        (32, |gain, x| {
            rescaled(Rescale::power_of_two(-5), x, |x| gain.forward(x))
        }),
        (32, |gain, x| {
            rescaled(Rescale::dynamic("part"), x, |x| gain.forward(x))
        }),
    ];
    cases.extend(inside.map(|(expected, part)| (-20, part, expected)));
    for (index, (weight, part, expected)) in cases.into_iter().enumerate() {
        let probe = Probe::new();
        let scale = probe.calibrate(weight, part).unwrap();
        let at = format!("case {index}, 2^{weight}");
        assert_eq!(f64::from(scale), two(expected), "{at}");
        assert_eq!(probe.amp.loss_scale(), scale, "{at}");
        assert_eq!(probe.amp.parts(), [], "{at}");
    }
}

/// The head outside is not measured, however large its gradients are.
#[test]
fn only_half_precision_counts() {
    let Probe { amp, gain } = Probe::new();
    let head = Gain::at(&[1.0, 1.0], &amp);
    let scale = amp.calibrate(&(gain, head), |(gain, head)| {
        let output = amp.autocast(vector(&[1.0, 1.0]), |x| gain.forward(x));
        head.forward(output * two(-20)).sum() + head.forward(vector(&[1e9, 1e9])).sum()
    });
    assert_eq!(f64::from(scale.unwrap()), two(32));
}

#[test]
fn when_there_is_no_scale_to_find() {
    let probe = Probe::new();
    let steep: Part = |gain, x| gain.forward(x);
    let [nan, zero]: [Part; 2] = [
        |gain, x| gain.forward(x) * f32::NAN,
        |gain, x| gain.forward(x) * 0.0,
    ];
    let expected = AmpError::GradientsNotFinite {
        parameter: "factor".to_string(),
    };
    assert_eq!(probe.calibrate(0, nan).unwrap_err(), expected);
    assert_eq!(probe.calibrate(50, steep).unwrap_err(), expected);
    let expected = AmpError::NoGradients { gradients: 1 };
    assert_eq!(probe.calibrate(0, zero).unwrap_err(), expected);
    let outside = |gain: &Gain| gain.forward(vector(&[1.0, 1.0])).sum();
    let outside = probe.amp.calibrate(&probe.gain, outside);
    assert_eq!(outside.unwrap_err(), AmpError::NoScope);
    assert_eq!(probe.amp.loss_scale(), 65536.0);
    // Below 1 is a result, with a warning.
    let warning = "overflow in half precision even at a loss scale of 1";
    let lines = logs(warning, || {
        assert_eq!(probe.calibrate(20, steep), Ok(two(-8) as f32));
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn bounds_and_other_precisions() {
    let bounded = |config: GradScalerConfig| {
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        let gain = Gain::at(&[1.0], &amp);
        amp.calibrate(&gain, |gain| {
            amp.autocast(vector(&[1.0]), |x| gain.forward(x)).sum() * two(-20)
        })
    };
    let config = GradScalerConfig::new;
    assert_eq!(bounded(config().with_max_scale(Some(1e6))), Ok(1e6));
    assert_eq!(bounded(config().with_dynamic(false)), Ok(two(32) as f32));
    assert_eq!(bounded(config().with_enabled(false)), Ok(1.0));
    let amp = MixedPrecision::f32();
    let nothing = amp.calibrate(&Gain::new(&[1.0]), |_| -> Tensor<1> { unreachable!() });
    assert_eq!(nothing, Ok(1.0));
}

type Normed = (Linear, BatchNorm, Linear);

fn input() -> Tensor<2> {
    random(3, [12, 6], &device())
}

fn loss(output: Tensor<2>) -> Tensor<1> {
    output.square().mean() * 1e-3
}

fn normed() -> Normed {
    let [first, head] = [(6, 8), (8, 2)].map(|(i, o)| LinearConfig::new(i, o).init(&device()));
    fill((first, BatchNormConfig::new(8).init(&device()), head), 0)
}

fn forward((linear, norm, head): &Normed, x: Tensor<2>) -> Tensor<2> {
    head.forward(in_f32(linear.forward(x), |x| norm.forward(x)))
}

/// As a model for a `Learner`: its scope is that of whoever runs it.
fn loss_of(net: &Normed) -> Tensor<1> {
    loss(autocast(input(), |x| forward(net, x)))
}

/// The parameters and the scale after some steps, and the scale before them.
fn train(calibrated: bool) -> (Vec<f32>, f64, f64) {
    let mut run = Run::new(normed(), MixedPrecision::f16());
    if calibrated {
        let state = |net: &Normed| {
            let statistics = [&net.1.running_mean, &net.1.running_var];
            (
                statistics.map(|state| values(state.value_sync())),
                numbers(net),
            )
        };
        let before = state(&run.model);
        let first = run.amp.calibrate(&run.model, loss_of).unwrap();
        assert_eq!(run.amp.calibrate(&run.model, loss_of), Ok(first));
        assert_eq!(state(&run.model), before);
    }
    let first = run.scale();
    for _ in 0..5 {
        let output = run.amp.autocast(input(), |x| forward(&run.model, x));
        assert!(!run.step(0.1, run.gradients(loss(output))));
    }
    (numbers(&run.model), run.scale(), first)
}

/// Running statistics, counters and parameters are those of a run without it.
#[test]
fn it_leaves_no_trace_but_the_scale() {
    let (plain, scale, _) = train(false);
    let (calibrated, after, first) = train(true);
    assert_eq!((scale, after), (65536.0, first));
    assert_ne!(first, scale);
    assert_eq!(first.log2().fract(), 0.0);
    // Only what was below f16 in one of them differs.
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * a.abs().max(1e-3);
    assert!(plain.iter().zip(&calibrated).all(close));
}

/// The explicit way: parameters in half precision, a loss that is scaled by hand.
#[test]
fn a_scaler_calibrates_itself() {
    let calibrate = |weight: i32| {
        let gain = to_half(Gain::new(&[1.0, 0.5]), FloatDType::F16, &[]);
        let mut scaler: GradScaler = GradScalerConfig::new().init().unwrap();
        let scale = scaler.calibrate(&gain, |gain| {
            let output = gain.forward(vector(&[1.0, 1.0]).cast(FloatDType::F16));
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
    assert!(matches!(error, AmpError::GradientsNotFinite { .. }));
    // That of a `MixedPrecision` is its scale.
    let amp = f16(1024.0);
    let gain = Gain::at(&[1.0], &amp);
    let scale = GradScaler::from(&amp).calibrate(&gain, |gain| {
        amp.autocast(vector(&[1.0]), |x| gain.forward(x)).sum() * two(-20)
    });
    assert_eq!(scale, Ok(two(32) as f32));
    assert_eq!(amp.loss_scale(), two(32) as f32);
}
