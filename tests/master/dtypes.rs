//! Parameters of every float dtype, and what lies beyond that of the parameter.

use super::support::*;

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
        let masters = master_numbers(optim.optimizer(), &model, "bias");
        assert_eq!(masters, [1.0 - moved; 4]);
    }
}

/// f64 parameters need no master; nor do those in f32, see `trajectory`.
#[test]
fn wide_parameters_have_no_master() {
    let (before, mut optim) = (pair(1.0, DType::F64), adam());
    let after = step(&mut optim, 0.01, before.clone(), 1.0);
    assert_eq!(after.weight.val().dtype(), DType::F64);
    assert_ne!(parameters(&after), parameters(&before));
    let moments = state(&optim).tensors;
    assert!(moments.keys().all(|name| name.contains("moment")));
    assert_eq!(moments.len(), 4);
    assert!(moments.values().all(|(_, values)| values.0 == DType::F64));
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
