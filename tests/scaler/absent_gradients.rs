//! Gradients that are not there: no parameters, strangers, tensors without values. What comes of a step without any is in `iterations.rs`.

use burn::nn::Relu;
use burn_amp_tests::{prelude::*, trial::*};

/// Nor are there any without parameters. An infinity in the gradient of another module's parameter is no overflow here.
#[test]
fn no_gradients() {
    fn check<M: Module>(model: M) {
        let mut run = ByHand::of(model, at_scale(8.0));
        let mut grads = GradientsParams::new();
        let bad = Tensor::<1>::from_floats([f32::INFINITY], &Device::flex());
        grads.register(ParamId::new(), bad);
        let grads = run.unscale(grads);
        assert_eq!(*grads.status(), GradientStatus::default());
        let before = parameters(&run.model);
        run.take(grads).unwrap();
        assert_eq!(run.outcome(), Some(StepOutcome::NoGradients));
        assert_eq!(parameters(&run.model), before);
    }
    let pair = Pair::new([0.0; 10], &flex(), DType::F32);
    check(pair.clone());
    check(Relu::new());
    let status = inspect(&GradientsParams::new(), &pair).unwrap();
    assert_eq!(status, GradientStatus::default());
    assert!(!status.is_all_zero());
    assert_eq!((status.norm(), status.zero_share()), (0.0, 0.0));
}

/// A tensor has no values, among others or alone.
#[test]
fn tensors_without_values() {
    for (has_others, counts, length) in [(true, (3, 10), 1.0), (false, (1, 0), 0.0)] {
        let empty = Param::from_tensor(Tensor::<2>::zeros([0, 3], &flex()));
        let pair = Pair::new([0.0; 10], &flex(), DType::F32);
        let mut run = ByHand::of((empty, pair), at_scale(8.0));
        let mut grads = match has_others {
            true => run.model.1.plain([8.0; 10]),
            false => GradientsParams::new(),
        };
        grads.register(run.model.0.id, run.model.0.val().inner());
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
