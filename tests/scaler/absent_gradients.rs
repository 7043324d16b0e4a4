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
