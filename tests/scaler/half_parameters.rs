//! The dtype in which gradients come out, and what becomes of parameters in half precision.

use burn_amp_tests::{prelude::*, trial::*};

/// With momentum, for its state.
fn trial(dtype: DType, scale: f64) -> ByHand {
    let mut run = ByHand::of(Pair::new([0.0; 10], &flex(), dtype), at_scale(scale));
    let momentum = Some(MomentumConfig::new());
    run.optim = SgdConfig::new().with_momentum(momentum).init();
    run
}

/// A gradient of a wider or a narrower dtype than the parameter's comes out as if it were the parameter's.
#[test]
fn the_parameter_decides_and_not_the_gradient() {
    let run = trial(DType::F32, 16.0);
    for dtype in [FloatDType::F64, FloatDType::F16] {
        let grads = run.unscale(gradients(&run.model, 0, 16.0, dtype));
        let expected = gradients(&run.model, 0, 1.0, FloatDType::F32);
        let all = [grads.params(), &expected].map(|all| gradients_by_path(all, &run.model));
        assert_eq!(all[0], all[1]);
    }
}

#[test]
fn a_plain_optimizer_refuses_half_precision_parameters() {
    for dtype in [DType::F16, DType::BF16] {
        let mut run = trial(dtype, 1024.0);
        let error = run.step(ONES).unwrap_err();
        let start = format!("parameter `weight` is {dtype:?} but its unscaled gradient is F32");
        is_error(&error, "HalfPrecisionParameter", [start.as_str()]);
        says(&error, ["MasterWeights", "MixedPrecision"]);
        says(&error, ["parameter_dtype_gradients"]);
        assert!(run.optim.to_record().is_empty());
        assert_eq!(run.counters(), StepCounters::default());
        assert_eq!((run.outcome(), run.scaler.last_status()), (None, None));
        assert_eq!(run.scaler.update().unwrap(), None);
        assert_eq!(run.scaler.growth_tracker(), 0);
        assert_eq!(run.model.values(), [0.0; 10]);
    }
}

/// One half-precision parameter among others is found wherever it is; without a gradient it is no obstacle.
#[test]
fn one_half_precision_parameter_among_others() {
    let half = Param::from_tensor(Tensor::<1>::ones([2], (&flex(), DType::BF16)));
    let mut run = ByHand::of((trial(DType::F32, 1.0).model, half), at_scale(1.0));
    for has_gradient in [false, true] {
        let mut grads = run.model.0.plain(ONES);
        if has_gradient {
            let grad = Tensor::<1>::ones([2], (&Device::flex(), DType::BF16));
            grads.register(run.model.1.id, grad);
        }
        let result = run.take(run.unscale(grads));
        match has_gradient {
            false => drop(result.and_then(|()| run.scaler.update()).unwrap()),
            true => says(&result.unwrap_err(), ["`1`"]),
        }
    }
}
