//! The loss scale of a handle: one for all its scopes and optimizers, and each backward pass has that of its own forward.

use crate::support::*;

fn run(amp: &MixedPrecision, factor: f32) -> Player<Gain> {
    Player::new(Gain::new(&[factor]), amp)
}

/// The gain's output, times `weight`.
fn loss<O: ModuleOptim>(run: &Player<Gain, O>, weight: f64) -> Tensor<1> {
    (run.amp).autocast(vector(&[1.0]), |x| run.model.forward(x)) * weight
}

fn gradient_of(run: &Player<Gain>, loss: Tensor<1>) -> Vec<f32> {
    gradient(&run.gradients(loss), run.model.factor.id)
}

/// 1 over the scale must be normal in f32: gradients lose no digit at 2^126, and there is nothing beyond.
#[test]
fn the_scale_ends_at_2_126() {
    assert_eq!(f64::from(f16(two(127)).loss_scale()), two(126));
    let amp = f16_under(at_scale(two(124)).with_growth_interval(1));
    let mut run = run(&amp, 2.0);
    for expected in [two(124), two(125), two(126), two(126), two(126)] {
        assert_eq!(run.scale(), expected);
        // 2 to the power of -126 and 1.25 times that: the smallest that f32 holds to all digits.
        let weight = 1.25 * two(-126);
        assert_eq!(gradient_of(&run, loss(&run, weight)), [weight as f32]);
        assert!(!run.train(0.0, loss(&run, weight)));
    }
}

/// Settings with which the scale could never be what scopes apply. Where nothing is scaled, they are let be.
#[test]
fn a_scale_that_no_scope_applies_is_refused() {
    let bounded = |exponent| at_scale(two(exponent)).with_min_scale(Some(two(exponent)));
    for precision in [MixedPrecision::f16, MixedPrecision::f32] {
        for (config, field) in [(at_scale(two(-127)), "init"), (bounded(127), "min")] {
            let error = precision().with_scaler(config).unwrap_err();
            let expected = format!("InvalidValue {{ field: \"{field}_scale\"");
            is_error(&error, &expected, ["2^"]);
            let schedule = config.schedule().unwrap();
            assert_eq!(precision().with_schedule(schedule).unwrap_err(), error);
            assert!(precision().with_scaler(config.with_enabled(false)).is_ok());
        }
    }
    for exponent in [-126, 126] {
        let amp = f16_under(bounded(exponent));
        assert_eq!(f64::from(amp.loss_scale()), two(exponent));
        assert_eq!(GradScaler::from(&amp).loss_scale(), amp.loss_scale());
    }
}

#[test]
fn each_backward_pass_has_the_scale_of_its_own_forward() {
    let mut run = run(&f16(two(16)), 2.0);
    // Times 2^16 it is in f16, times 2^8 it is below.
    let small = |run: &Player<Gain>| loss(run, two(-36));
    let [first, second] = [small(&run), small(&run)];
    for _ in 0..8 {
        assert!(run.train(0.0, loss(&run, two(40))));
    }
    assert_eq!(run.scale(), two(8));
    assert_eq!(gradient_of(&run, first), [two(-36) as f32]);
    assert_eq!(gradient_of(&run, small(&run)), [0.0]);
    assert_eq!(gradient_of(&run, second), [two(-36) as f32]);
}

/// f32 is not tested by itself, and bf16 not where it is turned off.
#[test]
fn untested_in_f32_or_where_it_is_turned_off() {
    let off = GradScalerConfig::new().with_enabled(false);
    let off = |dtype| MixedPrecision::new(dtype).with_scaler(off).unwrap();
    for amp in (halves().into_iter().map(off)).chain([MixedPrecision::f32()]) {
        let mut run = run(&amp, 2.0);
        assert_eq!(run.scale(), 1.0);
        assert!(!run.optim.scaler().is_enabled());
        run.train(0.1, loss(&run, f64::INFINITY));
        assert!(!numbers(&run.model)[0].is_finite());
    }
}

/// Host and device decide alike; it is counted and logged, and a run that only skips ends. That a skip leaves no trace, `tests/oracle` draws.
#[test]
fn bf16_is_tested_and_not_scaled() {
    fn train<O: ModuleOptim>(optim: O) {
        let amp = MixedPrecision::bf16();
        let mut run = Player::with(optim, Gain::new(&[0.1]), &amp);
        let parameters = [0.5, f64::INFINITY, f64::NAN, 0.5].map(|factor| {
            run.train(0.01, loss(&run, factor));
            numbers(&run.model)
        });
        run.optim.synchronize().unwrap();
        assert_eq!((amp.loss_scale(), amp.is_scaled()), (1.0, false));
        let counts = [run.counters().skipped(), run.counters().bad_losses()];
        assert_eq!(counts, [2; 2]);
        assert!(parameters[1] == parameters[0] && parameters[2] == parameters[0]);
        assert_ne!(parameters[3], parameters[2]);
    }
    if !halves().contains(&FloatDType::BF16) {
        return skipped("the device has no bf16");
    }
    let logged = captured(Level::Warn, || {
        train::<ModuleOptimizer>(AdamConfig::new().init());
        train(FusedAdam::new(AdamConfig::new()));
    });
    assert_eq!(logged.len(), 4, "{logged:?}");
    says(&logged[0], ["step skipped", "infinite or NaN"]);
}

/// bf16 by itself, and wherever a constant scale of 1 asks for it: parameters stay, to the bit, nothing moves, and a run that only skips ends.
#[test]
fn tested_where_asked() {
    let asked = |dtype| {
        let config = at_scale(1.0).with_max_consecutive_skips(Some(2));
        let amp = MixedPrecision::new(dtype).with_scaler(config.with_dynamic(false));
        (amp.unwrap(), 2)
    };
    let all = halves().into_iter().chain([FloatDType::F32]);
    let bf16 = halves().contains(&FloatDType::BF16);
    let bf16 = bf16.then(|| (MixedPrecision::bf16(), 50));
    for (amp, most) in all.map(asked).chain(bf16) {
        let mut run = run(&amp, 0.1);
        let nan = |run: &Player<Gain>| run.gradients(loss(run, f64::NAN));
        for _ in 0..most {
            assert!(run.step(0.1, nan(&run)));
            assert_eq!(numbers(&run.model), [0.1]);
        }
        let error = run.try_step(0.1, nan(&run)).unwrap_err();
        let expected = format!("LossNotFinite {{ skips: {}", most + 1);
        is_error(&error, &expected, []);
        assert_eq!(run.scale(), 1.0);
    }
}

/// With f32, a scale moves by its schedule and multiplies nothing.
#[test]
fn f32_is_never_multiplied() {
    let run = run(&scaled(FloatDType::F32, two(100)), 2.0);
    let weight = two(100);
    assert_eq!(gradient_of(&run, loss(&run, weight)), [weight as f32]);
}
