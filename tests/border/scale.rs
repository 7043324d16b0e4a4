//! The loss scale of a handle: one for all its scopes and optimizers, and each backward pass has that of its own forward.

use crate::support::*;

/// The sum of a gain's outputs.
fn sum(amp: &MixedPrecision, gain: &Gain) -> Tensor<1> {
    amp.autocast(vector(&[1.0]), |x| gain.forward(x)).sum()
}

/// A step that changes nothing, with the gradients of this loss.
fn step(optim: &mut ScaledOptimizer, gain: &Gain, loss: Tensor<1>) -> StepOutcome {
    drop(optim.step(0.0, gain.clone(), backward(loss, gain)));
    optim.scaler().last_outcome().unwrap()
}

/// 1 over the scale must be normal in f32: gradients lose no digit at 2^126, and there is nothing beyond.
#[test]
fn the_scale_ends_at_2_126() {
    let highest = two(126) as f32;
    assert_eq!(f16(two(127)).loss_scale(), highest);
    let config = GradScalerConfig::new().with_growth_interval(1);
    let amp = MixedPrecision::f16();
    let amp = amp.with_scaler(config.with_init_scale(two(124))).unwrap();
    let gain = Gain::at(&[2.0], &amp);
    let mut optim = sgd(&amp);
    for expected in [two(124), two(125), two(126), two(126), two(126)] {
        assert_eq!(f64::from(amp.loss_scale()), expected);
        // 2 to the power of -126 and 1.25 times that: the smallest that f32 holds to all digits.
        let weight = 1.25 * two(-126);
        let grads = backward(sum(&amp, &gain) * weight, &gain);
        assert_eq!(gradient(&grads, gain.factor.id), [weight as f32]);
        assert!(step(&mut optim, &gain, sum(&amp, &gain) * weight).is_stepped());
    }
}

#[test]
fn each_backward_pass_has_the_scale_of_its_own_forward() {
    let amp = f16(two(16));
    let gain = Gain::at(&[2.0], &amp);
    let mut optim = sgd(&amp);
    // Times 2^16 it is in f16, times 2^8 it is below.
    let loss = || sum(&amp, &gain) * two(-36);
    let gradient = |loss| gradient(&backward(loss, &gain), gain.factor.id);
    let early = [loss(), loss()];
    for _ in 0..8 {
        let outcome = step(&mut optim, &gain, sum(&amp, &gain) * two(40));
        assert!(outcome.is_skipped());
    }
    assert_eq!(f64::from(amp.loss_scale()), two(8));
    let [first, second] = early;
    assert_eq!(gradient(first), [two(-36) as f32]);
    assert_eq!(gradient(loss()), [0.0]);
    assert_eq!(gradient(second), [two(-36) as f32]);
}

/// bf16 and f32 need no scale: none is there, and nothing is tested.
#[test]
fn without_scaling_unless_asked() {
    let mut dtypes = halves();
    dtypes.retain(|dtype| *dtype != FloatDType::F16);
    for dtype in dtypes.into_iter().chain([FloatDType::F32]) {
        let amp = MixedPrecision::new(dtype);
        assert_eq!(amp.loss_scale(), 1.0);
        let gain = Gain::at(&[2.0], &amp);
        let mut optim = sgd(&amp);
        assert!(!optim.scaler().is_enabled());
        let grads = backward(sum(&amp, &gain) * f64::INFINITY, &gain);
        let gain = optim.step(0.1, gain, grads);
        assert!(!numbers(&gain)[0].is_finite());
    }
}

/// A constant scale of 1 tests and skips: parameters stay, to the bit, and nothing moves.
#[test]
fn tested_where_asked() {
    for dtype in halves().into_iter().chain([FloatDType::F32]) {
        let config = at_scale(1.0);
        let config = config.with_max_consecutive_skips(Some(2));
        let amp = MixedPrecision::new(dtype).with_scaler(config.with_dynamic(false));
        let amp = amp.unwrap();
        let gain = Gain::at(&[0.1], &amp);
        let mut optim = sgd(&amp);
        let grads = |weight: f64| backward(sum(&amp, &gain) * weight, &gain);
        let stepped = optim.step(0.1, gain.clone(), grads(0.5));
        assert_ne!(numbers(&stepped), numbers(&gain));
        for _ in 0..2 {
            let skipped = optim.step(0.1, gain.clone(), grads(f64::NAN));
            assert_eq!(numbers(&skipped), [0.1]);
        }
        let error = optim.try_step(0.1, gain.clone(), grads(f64::NAN));
        match (dtype, error.map(drop).unwrap_err().error) {
            // f32 has no border that could tell whose fault it was.
            (FloatDType::F32, AmpError::LossScaleExhausted { skips, .. }) => assert_eq!(skips, 3),
            (_, AmpError::LossNotFinite { skips, .. }) => assert_eq!(skips, 3),
            (_, error) => panic!("{error}"),
        }
        assert_eq!(amp.loss_scale(), 1.0);
        assert_eq!(optim.scaler().counters().skipped(), 3);
    }
}

/// With f32, a scale moves by its schedule and multiplies nothing.
#[test]
fn f32_is_never_multiplied() {
    let amp = scaled(FloatDType::F32, two(100));
    let gain = Gain::at(&[2.0], &amp);
    let grads = backward(sum(&amp, &gain) * two(100), &gain);
    assert_eq!(gradient(&grads, gain.factor.id), [two(100) as f32]);
}
