//! The dtype in which gradients come out, and what becomes of parameters in half precision.

use burn_amp_tests::{prelude::*, trial::*};

/// A gradient of a wider or a narrower dtype than the parameter's comes out as if it were the parameter's.
#[test]
fn the_parameter_decides_and_not_the_gradient() {
    let run = ByHand::at(16.0);
    for dtype in [FloatDType::F64, FloatDType::F16] {
        let grads = run.unscale(gradients(&run.model, 0, 16.0, dtype));
        let expected = gradients(&run.model, 0, 1.0, FloatDType::F32);
        let all = [grads.params(), &expected].map(|all| gradients_by_path(all, &run.model));
        assert_eq!(all[0], all[1]);
    }
}

/// Wherever it is among others. Without a gradient it is no obstacle.
#[test]
fn a_plain_optimizer_refuses_half_precision_parameters() {
    for dtype in [DType::F16, DType::BF16] {
        let half = Param::from_tensor(Tensor::<1>::ones([2], (&flex(), dtype)));
        let model = (Pair::new([0.0; 10], &flex(), DType::F32), half);
        let mut run = ByHand::of(model, at_scale(1024.0));
        // For its state.
        let momentum = Some(MomentumConfig::new());
        run.optim = SgdConfig::new().with_momentum(momentum).init();
        let mut grads = run.model.0.plain(ONES);
        let ones = Tensor::<1>::ones([2], (&Device::flex(), dtype));
        grads.register(run.model.1.id, ones);
        let error = run.take(run.unscale(grads)).unwrap_err();
        let start = format!("parameter `1` is {dtype:?} but its unscaled gradient is F32");
        is_error(&error, "HalfPrecisionParameter", [start.as_str()]);
        assert!(run.optim.to_record().is_empty());
        assert_eq!(run.counters(), StepCounters::default());
        assert_eq!((run.outcome(), run.scaler.last_status()), (None, None));
        assert_eq!(run.scaler.update().unwrap(), None);
        assert_eq!(run.scaler.growth_tracker(), 0);
        assert_eq!(run.model.0.values(), [0.0; 10]);

        let grads = run.model.0.plain(ONES);
        run.take(run.unscale(grads)).unwrap();
        assert_eq!(run.outcome(), Some(StepOutcome::Stepped));
    }
}
