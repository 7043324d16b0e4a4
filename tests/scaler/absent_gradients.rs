//! Gradients that are not there: none at all, no parameters, frozen or unreached parameters, strangers, tensors without values.

use burn::nn::Relu;
use burn_amp_tests::{prelude::*, trial::*};

fn pair() -> Pair {
    Pair::new([0.0; 10], &flex(), DType::F32)
}

/// The step is counted, and the scale stays: no gradients are no evidence that it is fine. Nor do they break a row of overflows.
/// They may follow each other without `update`: nothing was stepped.
fn check_empty_steps<M: Module>(model: M, grads: impl Fn() -> GradientsParams) {
    for (history, row) in [("x.", 0), (".x", 1)] {
        let config = GradScalerConfig::new().with_growth_interval(2);
        let (mut before, mut run) = (ByHand::new(config), ByHand::of(model.clone(), config));
        before.iterations(history);
        run.scaler = before.scaler;
        let schedule = run.scaler.schedule();
        for _ in 0..2 {
            let grads = run.unscale(grads());
            assert_eq!(*grads.status(), GradientStatus::default());
            run.take(grads).unwrap();
            assert_eq!(run.outcome(), Some(StepOutcome::NoGradients));
        }
        assert_eq!(run.scaler.update().unwrap(), None);
        assert_eq!(run.scaler.schedule(), schedule);
        let counters = run.counters();
        let steps = (counters.steps(), counters.stepped());
        assert_eq!((steps, counters.consecutive_skips()), ((4, 3), row));
        assert_eq!(parameters(&run.model), parameters(&model));
    }
}

/// Nor are there any without parameters. An infinity in the gradient of another module's parameter is no overflow here.
#[test]
fn no_gradients() {
    let none = GradientsParams::new;
    let strangers = || {
        let mut grads = none();
        let bad = Tensor::<1>::from_floats([f32::INFINITY], &Device::flex());
        grads.register(ParamId::new(), bad);
        grads
    };
    check_empty_steps(pair(), none);
    check_empty_steps(pair(), strangers);
    check_empty_steps(Relu::new(), none);
    check_empty_steps(Relu::new(), strangers);
    let status = inspect(&none(), &pair()).unwrap();
    assert_eq!(status, GradientStatus::default());
    assert!(!status.is_all_zero());
    assert_eq!((status.norm(), status.zero_share()), (0.0, 0.0));
}

/// A tensor has no values, among others or alone.
#[test]
fn tensors_without_values() {
    for (has_others, counts, length) in [(true, (3, 10), 1.0), (false, (1, 0), 0.0)] {
        let empty = Param::from_tensor(Tensor::<2>::zeros([0, 3], &flex()));
        let mut run = ByHand::of((empty, pair()), at_scale(8.0));
        let mut grads = match has_others {
            true => run.model.1.plain([8.0; 10]),
            false => GradientsParams::new(),
        };
        let empty = Tensor::<2>::zeros([0, 3], &Device::flex());
        grads.register(run.model.0.id, empty);
        let grads = run.unscale(grads);
        let status = grads.status();
        assert_eq!((status.gradients(), status.elements()), counts);
        assert_eq!((status.max_abs(), status.zero_share()), (length, 0.0));
        assert!((status.norm() - length * 10f64.sqrt()).abs() < 1e-6);
        assert!(!status.has_overflow() && !status.is_all_zero());
        run.take(grads).unwrap();
        assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
        assert_eq!(run.model.1.values(), [-length; 10]);
        assert_eq!(run.model.0.val().dims(), [0, 3]);
    }
}
