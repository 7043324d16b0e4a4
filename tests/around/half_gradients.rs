//! Factors that half precision cannot hold, on gradients in half precision.

use crate::support::*;

// Exact in f16 and bf16; their norm is 57,000.
const WEIGHT: [f32; 6] = [24576.0, -32768.0, 12288.0, 0.0, -20480.0, 28672.0];
const BIAS: [f32; 4] = [-2048.0, 4096.0, 20480.0, -12288.0];

/// How far a value may be off after so many roundings to this dtype, relative to the value. `values` rounds to f32 itself; the
/// factor is f32 off the device.
fn tolerance(dtype: DType, roundings: f64) -> f64 {
    let one = match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-23),
        _ => 2f64.powi(-52),
    };
    (roundings * one).max(4.0 * 2f64.powi(-23))
}

/// Every combination of a parameter's dtype and the gradient's, and gradients that no scaler has touched.
fn unscaled() -> Vec<(Pair, DType, UnscaledGradients)> {
    let mut all = Vec::new();
    for parameter in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        if !Device::default().supports_dtype(parameter) {
            continue;
        }
        for (enabled, narrow) in [(true, true), (true, false), (false, false)] {
            let scaler = at_scale(1.0)
                .with_enabled(enabled)
                .with_parameter_dtype_gradients(narrow);
            let model = Pair::zeros(parameter);
            let grads = model.gradients((WEIGHT, BIAS), 1.0);
            let grads = scaler.init().unwrap().unscale(grads, &model).unwrap();
            let dtype = grads.get::<1>(model.bias.id).unwrap().dtype();
            all.push((model, dtype, grads));
        }
    }
    all
}

/// All gradients are the constants times `factor`, in their dtype, rounded no more than `roundings` times.
fn assert_times(
    grads: &UnscaledGradients,
    model: &Pair,
    dtype: DType,
    factor: f64,
    roundings: f64,
) {
    let weight = grads.get::<2>(model.weight.id).unwrap();
    let bias = grads.get::<1>(model.bias.id).unwrap();
    assert_eq!((weight.dtype(), bias.dtype()), (dtype, dtype));
    let found = [values(weight), values(bias)].concat();
    for (found, original) in found.iter().zip(WEIGHT.iter().chain(&BIAS)) {
        let expected = f64::from(*original) * factor;
        let error = (f64::from(*found) - expected).abs();
        let allowed = tolerance(dtype, roundings) * expected.abs();
        assert!(error <= allowed, "{dtype:?}: {found} instead of {expected}");
    }
}

#[test]
fn a_global_norm_is_met_within_one_rounding() {
    let factor = 1.0 / (l2(&[WEIGHT.as_slice(), &BIAS].concat()) + 1e-6);
    for (model, dtype, grads) in unscaled() {
        let clipped = grads.clip(&GradientClip::GlobalNorm(1.0)).unwrap();
        assert_times(&clipped, &model, dtype, factor, 1.0);
        // Still what an optimizer takes.
        let mut optim = MasterWeights::new(SgdConfig::new().build());
        let mut scaler = GradScalerConfig::new().init().unwrap();
        scaler.try_step(&mut optim, 0.1, model, clipped).unwrap();
    }
}

#[test]
fn a_norm_is_met_within_one_rounding() {
    for (model, dtype, grads) in unscaled() {
        let clipped = grads.clip(&GradientClip::Norm(1.0)).unwrap();
        let weight = clipped.get::<2>(model.weight.id).unwrap();
        assert_eq!(weight.dtype(), dtype);
        let found = l2(&values(weight));
        let error = (found - 1.0).abs();
        assert!(error <= tolerance(dtype, 1.0), "{dtype:?}: {found}");
    }
}

#[test]
fn a_factor_that_f16_cannot_hold_is_not_lost() {
    for (model, dtype, grads) in unscaled() {
        // 1e-8 is zero in f16; the largest products are normal numbers there.
        let factor = 1e-8;
        let grads = grads.mul_scalar(factor);
        let found = f64::from(values(grads.get::<2>(model.weight.id).unwrap())[1]);
        let expected = f64::from(WEIGHT[1]) * factor;
        let error = (found - expected).abs();
        let allowed = tolerance(dtype, 1.0) * expected.abs();
        assert!(error <= allowed, "{dtype:?}: {found}");
        // And back: no more than these two roundings off. The smallest are subnormal in f16.
        if dtype != DType::F16 {
            assert_times(&grads.mul_scalar(1e8), &model, dtype, 1.0, 2.0);
        }
    }
}

#[test]
fn a_weight_that_f16_cannot_hold_is_not_rounded() {
    let weight = 1.0 / 60000.0;
    for ((model, dtype, grads), (_, _, other)) in unscaled().into_iter().zip(unscaled()) {
        let zeros = grads.clone().mul_scalar(0.0);
        let sum = zeros.add_weighted(other.clone(), weight);
        assert_times(&sum, &model, dtype, weight, 1.0);

        // A gradient that only the other has.
        let mut none = grads;
        none.params_mut().remove::<2>(model.weight.id);
        none.params_mut().remove::<1>(model.bias.id);
        let sum = none.add_weighted(other, weight);
        assert_times(&sum, &model, dtype, weight, 1.0);
    }
}
