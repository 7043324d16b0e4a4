//! The loss scale of a handle: one for all its scopes and optimizers, and each backward pass has that of its own forward.

use crate::support::{graph::*, *};

fn gradients(run: &Training, loss: Tensor<1>) -> Vec<Vec<f32>> {
    all_gradients(&run.gradients(loss), &run.model)
}

/// The loss of a pass, times `weight`.
fn weighted<O: ModuleOptim>(run: &Training<O>, weight: f64) -> Tensor<1> {
    loss(&run.amp, &run.model, "[ T ] sum") * weight
}

/// 1 over the scale must be normal in f32: gradients lose no digit at 2^126, and there is nothing beyond.
#[test]
fn the_scale_ends_at_2_126() {
    assert_eq!(f64::from(f16(two(127)).loss_scale()), two(126));
    let amp = f16_under(at_scale(two(124)).with_growth_interval(1));
    let mut run = Player::new(net(), &amp);
    for expected in [two(124), two(125), two(126), two(126), two(126)] {
        assert_eq!(run.scale(), expected);
        // 2 to the power of -126 and 1.25 times that: the smallest that f32 holds to all digits.
        let weight = 1.25 * two(-126);
        let found = gradients(&run, weighted(&run, weight));
        assert_eq!(found, [[weight as f32; 2]]);
        assert!(!run.train(0.0, weighted(&run, weight)));
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
    let mut run = Player::new(net(), &f16(two(16)));
    // Times 2^16 it is in f16, times 2^8 it is below.
    let [first, second] = [(); 2].map(|()| weighted(&run, two(-36)));
    assert!((0..8).all(|_| step(&mut run, "[ T ] ^40")));
    assert_eq!(run.scale(), two(8));
    assert_eq!(gradients(&run, first), [[two(-36) as f32; 2]]);
    assert_eq!(gradients(&run, weighted(&run, two(-36))), [[0.0; 2]]);
    assert_eq!(gradients(&run, second), [[two(-36) as f32; 2]]);
}

/// f32 is not tested by itself, and bf16 not where it is turned off.
#[test]
fn untested_in_f32_or_where_it_is_turned_off() {
    let off = GradScalerConfig::new().with_enabled(false);
    let off = |dtype| MixedPrecision::new(dtype).with_scaler(off).unwrap();
    for amp in (halves().into_iter().map(off)).chain([MixedPrecision::f32()]) {
        let mut run = Player::new(net(), &amp);
        assert_eq!(run.scale(), 1.0);
        assert!(!run.optim.scaler().is_enabled());
        run.train(0.1, weighted(&run, f64::INFINITY));
        assert!(!numbers(&run.model)[0].is_finite());
    }
}

/// bf16 by itself, and wherever a constant scale of 1 asks for it. Host and device decide alike: parameters stay, to the bit, nothing moves, it is counted and
/// logged, and a run that only skips ends, after so many. That a skip leaves no trace, `tests/oracle` draws.
#[test]
fn tested_and_not_scaled() {
    fn skips<O: ModuleOptim>(optim: O, amp: &MixedPrecision, most: u32) {
        let mut run = Player::with(optim, net(), amp);
        let mut ends = |factors: &[f64]| {
            let ended = factors.iter().find_map(|factor| {
                let grads = run.gradients(weighted(&run, *factor));
                run.try_step(0.01, grads).err()
            });
            let ended = ended.or_else(|| run.optim.synchronize().err());
            (ended, numbers(&run.model))
        };
        let first = ends(&[0.5]);
        assert_eq!(ends(&[f64::INFINITY, f64::NAN]), first);
        let second = ends(&[0.5]);
        assert_ne!(second, first);
        let (error, last) = ends(&vec![f64::NAN; most as usize + 1]);
        let expected = format!("LossNotFinite {{ skips: {}", most + 1);
        is_error(&error.unwrap(), &expected, []);
        assert_eq!((None, last), second);
        let counts = [run.counters().skipped(), run.counters().bad_losses()];
        assert_eq!(counts, [u64::from(most) + 3; 2]);
        assert_eq!(amp.loss_scale(), 1.0);
    }
    let asked = |dtype| {
        let config = at_scale(1.0).with_max_consecutive_skips(Some(2));
        let amp = MixedPrecision::new(dtype).with_scaler(config.with_dynamic(false));
        (amp.unwrap(), 2)
    };
    let all = halves().into_iter().chain([FloatDType::F32]);
    let bf16 = halves().contains(&FloatDType::BF16);
    let bf16 = bf16.then(|| (MixedPrecision::bf16(), 50));
    assert!(!MixedPrecision::bf16().is_scaled());
    for (amp, most) in all.map(asked).chain(bf16) {
        let logged = captured(Level::Warn, || {
            skips::<ModuleOptimizer>(AdamConfig::new().init(), &amp, most);
            skips(FusedAdam::new(AdamConfig::new()), &amp, most);
        });
        says(&logged[0], ["step skipped", "infinite or NaN"]);
        let skips = logged.iter().filter(|line| line.contains("step skipped"));
        assert_eq!(skips.count(), 2 * (most as usize + 2), "{logged:?}");
    }
}

/// With f32, a scale moves by its schedule and multiplies nothing.
#[test]
fn f32_is_never_multiplied() {
    let run = Player::new(net(), &scaled(FloatDType::F32, two(100)));
    let found = gradients(&run, weighted(&run, two(100)));
    assert_eq!(found, [[two(100) as f32; 2]]);
}
