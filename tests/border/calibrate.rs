//! The first loss scale, from a backward pass before the first step.

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
    optim::{GradientsParams, SgdConfig},
    tensor::{FloatDType, Tensor},
};
use burn_amp::{
    AmpError, GradScaler, GradScalerConfig, MixedPrecision, Rescale, ScaledOptimizer, autocast,
    in_f32, rescaled, to_half,
};

use crate::support::{Gain, device, f16, fill, logs, parameters, random, two, values, vector};

/// A gain whose output has a gradient of 2^`weight`.
struct Probe {
    amp: MixedPrecision,
    gain: Gain,
}

impl Probe {
    fn new() -> Self {
        let amp = MixedPrecision::f16();
        Self {
            gain: Gain::new(&[1.0, 0.5]).apply_reparameterization(amp.clone()),
            amp,
        }
    }

    fn calibrate(
        &self,
        weight: i32,
        part: impl Fn(&Gain, Tensor<1>) -> Tensor<1>,
    ) -> Result<f32, AmpError> {
        self.amp.calibrate(&self.gain, |gain| {
            let output = self.amp.autocast(vector(&[1.0, 1.0]), |x| part(gain, x));
            output.sum() * two(weight)
        })
    }
}

fn forward(gain: &Gain, x: Tensor<1>) -> Tensor<1> {
    gain.forward(x)
}

/// 2^15 is the largest power of two in f16, and three binades are left.
#[test]
fn three_binades_below_overflow() {
    for weight in [-100, -60, -40, -24, -10, -3, 0, 3] {
        let probe = Probe::new();
        let scale = probe.calibrate(weight, forward).unwrap();
        assert_eq!(f64::from(scale), two(15 - 3 - weight), "2^{weight}");
        assert_eq!(probe.amp.loss_scale(), scale);
    }
}

/// Deep in the scope, where no parameter is and no cast.
#[test]
fn what_overflows_between_two_casts_counts() {
    // 2^-20 is 2^-10 between the two factors, and 2^-20 again where it meets the parameter.
    let deep = |gain: &Gain, x: Tensor<1>| gain.forward(x) * two(-10) * two(10);
    let lifted = |gain: &Gain, x: Tensor<1>| gain.forward(x) * two(-12) * two(12);
    let scales = [
        Probe::new().calibrate(-20, forward),
        Probe::new().calibrate(-20, deep),
        Probe::new().calibrate(-20, lifted),
    ];
    let scales = scales.map(|scale| f64::from(scale.unwrap()).log2());
    assert_eq!(scales, [32.0, 22.0, 20.0]);
}

/// In f32 nothing overflows, on the way in and out it does. The head outside is not measured, however large its gradients are.
#[test]
fn only_half_precision_counts() {
    let island = |gain: &Gain, x: Tensor<1>| {
        let hidden = in_f32(x, |x| gain.forward(x) * two(-30) * two(30));
        hidden * 1.0
    };
    let scale = Probe::new().calibrate(-20, island).unwrap();
    assert_eq!(f64::from(scale), two(32));
    let steep = |gain: &Gain, x: Tensor<1>| in_f32(gain.forward(x) * two(-8), |x| x * two(8));
    let scale = Probe::new().calibrate(-20, steep).unwrap();
    assert_eq!(f64::from(scale), two(24));

    let probe = Probe::new();
    let head = Gain::new(&[1.0, 1.0]).apply_reparameterization(probe.amp.clone());
    #[derive(Module, Debug)]
    struct Net {
        gain: Gain,
        head: Gain,
    }
    let gain = probe.gain.clone();
    let scale = probe.amp.calibrate(&Net { gain, head }, |net| {
        let output = probe
            .amp
            .autocast(vector(&[1.0, 1.0]), |x| net.gain.forward(x));
        net.head.forward(output * two(-20)).sum() + net.head.forward(vector(&[1e9, 1e9])).sum()
    });
    assert_eq!(f64::from(scale.unwrap()), two(32));
}

/// A part's gradients have the scale times its factor.
#[test]
fn factors_of_parts_count() {
    let part = |k: i32| move |gain: &Gain, x: Tensor<1>| rescaled(k, x, |x| gain.forward(x));
    for (k, expected) in [(5, 27), (0, 32), (-5, 32)] {
        let scale = Probe::new().calibrate(-20, part(k)).unwrap();
        assert_eq!(f64::from(scale), two(expected), "{k}");
    }
    let probe = Probe::new();
    let named =
        |gain: &Gain, x: Tensor<1>| rescaled(Rescale::dynamic("part"), x, |x| gain.forward(x));
    probe.calibrate(-20, named).unwrap();
    assert_eq!(probe.amp.parts(), []);
}

#[test]
fn when_there_is_no_scale_to_find() {
    let probe = Probe::new();
    let nan = |gain: &Gain, x: Tensor<1>| gain.forward(x) * f32::NAN;
    let expected = AmpError::GradientsNotFinite {
        parameter: "factor".to_string(),
    };
    assert_eq!(probe.calibrate(0, nan).unwrap_err(), expected);
    let steep = |gain: &Gain, x: Tensor<1>| gain.forward(x);
    assert_eq!(probe.calibrate(50, steep).unwrap_err(), expected);
    let zero = |gain: &Gain, x: Tensor<1>| gain.forward(x) * 0.0;
    let expected = AmpError::NoGradients { gradients: 1 };
    assert_eq!(probe.calibrate(0, zero).unwrap_err(), expected);
    let outside = probe
        .amp
        .calibrate(&probe.gain, |gain| gain.forward(vector(&[1.0, 1.0])).sum());
    assert_eq!(outside.unwrap_err(), AmpError::NoScope);
    assert_eq!(probe.amp.loss_scale(), 65536.0);
    // Below 1 is a result, with a warning.
    let lines = logs(
        "overflow in half precision even at a loss scale of 1",
        || {
            let scale = probe.calibrate(20, steep).unwrap();
            assert_eq!(f64::from(scale), two(-8));
        },
    );
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn bounds_and_other_precisions() {
    let bounded = |config: GradScalerConfig| {
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        let gain = Gain::new(&[1.0]).apply_reparameterization(amp.clone());
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

#[derive(Module, Debug)]
struct Normed {
    linear: Linear,
    norm: BatchNorm,
    head: Linear,
}

impl Normed {
    fn new() -> Self {
        let linear = |i, o| LinearConfig::new(i, o).init(&device());
        let net = Self {
            linear: linear(6, 8),
            norm: BatchNormConfig::new(8).init(&device()),
            head: linear(8, 2),
        };
        fill(net, 0)
    }

    /// As a model for a `Learner`: its scope is that of whoever runs it.
    fn loss(&self) -> Tensor<1> {
        let output = autocast(random::<2>(3, [12, 6], &device()), |x| {
            let hidden = self.linear.forward(x);
            self.head.forward(in_f32(hidden, |x| self.norm.forward(x)))
        });
        output.square().mean() * 1e-3
    }
}

/// Steps of a run, the scale and the parameters after them.
fn run(calibrated: bool) -> (Vec<f32>, f32, f32) {
    let amp = MixedPrecision::f16();
    let mut net = Normed::new().apply_reparameterization(amp.clone());
    let mut first = 0.0;
    if calibrated {
        first = amp.calibrate(&net, Normed::loss).unwrap();
        assert_eq!(amp.calibrate(&net, Normed::loss).unwrap(), first);
    }
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    for _ in 0..5 {
        let output = amp.autocast(random::<2>(3, [12, 6], &device()), |x| {
            let hidden = net.linear.forward(x);
            net.head.forward(in_f32(hidden, |x| net.norm.forward(x)))
        });
        let loss = output.square().mean() * 1e-3;
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        net = optim.step(0.1, net, grads);
        assert!(optim.scaler().last_outcome().unwrap().is_stepped());
    }
    (parameters(&net), amp.loss_scale(), first)
}

/// Running statistics, counters and parameters are those of a run without it.
#[test]
fn it_leaves_no_trace_but_the_scale() {
    let amp = MixedPrecision::f16();
    let net = Normed::new().apply_reparameterization(amp.clone());
    let statistics = || {
        [
            net.norm.running_mean.value_sync(),
            net.norm.running_var.value_sync(),
        ]
        .map(values)
    };
    let (before, stored) = (statistics(), parameters(&net));
    amp.calibrate(&net, Normed::loss).unwrap();
    assert_eq!(statistics(), before);
    assert_eq!(parameters(&net), stored);

    let (plain, scale, _) = run(false);
    let (calibrated, after, first) = run(true);
    assert_eq!((scale, after), (65536.0, first));
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
    assert!(matches!(
        calibrate(60),
        Err(AmpError::GradientsNotFinite { .. })
    ));
    // That of a `MixedPrecision` is its scale.
    let amp = f16(1024.0);
    let gain = Gain::new(&[1.0]).apply_reparameterization(amp.clone());
    let scale = GradScaler::from(&amp).calibrate(&gain, |gain| {
        amp.autocast(vector(&[1.0]), |x| gain.forward(x)).sum() * two(-20)
    });
    assert_eq!(scale, Ok(two(32) as f32));
    assert_eq!(amp.loss_scale(), two(32) as f32);
}
