//! Gradients and parameters of every float dtype.

use super::support::*;

/// The same values, wide or narrow, make the same step.
#[test]
fn gradients_may_be_wide_or_narrow() {
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let start = to_half(net(&flex()), dtype, &[]);
        let run = |grads: FloatDType| {
            let (mut net, mut optim) = (start.clone(), adam());
            for step in 0..3 {
                let grads = gradients(&net, step, 1.0, grads);
                net = optim.step(0.01, net, grads);
            }
            (parameters(&net), state(&optim))
        };
        let expected = run(FloatDType::F32);
        assert_ne!(expected.0, parameters(&start));
        for grads in [FloatDType::F16, FloatDType::BF16, FloatDType::F64] {
            assert_eq!(run(grads), expected, "{grads:?} to {dtype:?}");
        }
    }
}

fn pair(value: f64, dtype: DType) -> Pair {
    Pair::new([value; 10], &flex(), dtype)
}

fn sgd() -> MasterWeights {
    MasterWeights::new(SgdConfig::new().build())
}

/// What the loss scale has saved reaches the master: `ScaledOptimizer` hands it f32. 2^-30 is too small for f16.
#[test]
fn the_scaled_optimizer_hands_over_f32() {
    for (narrow, moved) in [(false, 2f32.powi(-20)), (true, 0.0)] {
        let scaler = GradScalerConfig::new().with_parameter_dtype_gradients(narrow);
        let mut optim = ScaledOptimizer::new(sgd(), GradScaler::new(scaler).unwrap());
        let model = pair(1.0, DType::F16);
        let grads = model.scaled([2f64.powi(-30); 10], 65536.0);
        let model = optim.step(2f64.powi(10), model, grads);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
        assert_eq!(model.weight.val().dtype(), DType::F16);
        let masters = master_numbers(optim.optimizer(), &model, "bias");
        assert_eq!(masters, [1.0 - moved; 4]);
    }
}

/// f32 and f64 parameters need no master.
#[test]
fn wide_parameters_have_no_master() {
    for dtype in [DType::F32, DType::F64] {
        let (before, mut optim) = (pair(1.0, dtype), adam());
        let after = step(&mut optim, 0.01, before.clone(), 1.0);
        assert_eq!(after.weight.val().dtype(), dtype);
        assert_ne!(parameters(&after), parameters(&before));
        assert_eq!(master(&optim, &after, "weight"), None);
        let moments = state(&optim).tensors;
        assert_eq!(moments.len(), 4);
        assert!(moments.values().all(|(_, values)| values.0 == dtype));
    }
}

/// A master beyond the range of f16 is an infinite parameter, and comes back from there.
#[test]
fn a_master_may_leave_the_range_of_f16() {
    let (mut model, mut optim) = (pair(1.0, DType::F16), sgd());
    let (beyond, back) = ((1e5, f64::INFINITY), (1e3, 1e3));
    for (grad, (wide, value)) in [(-99_999.0, beyond), (99_000.0, back)] {
        let mut grads = pair(0.0, DType::F32).plain([grad; 10]);
        // Without a gradient there is no step, and no master.
        grads.remove::<1>(model.bias.id);
        model = optim.step(1.0, model, grads);
        assert_eq!(master_numbers(&optim, &model, "weight"), [wide; 6]);
        assert_eq!(model.values(), [&[value; 6][..], &[1.0; 4]].concat());
        assert_eq!(master(&optim, &model, "bias"), None);
    }
}
