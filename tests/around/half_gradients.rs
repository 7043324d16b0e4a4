//! Factors that half precision cannot hold, on gradients in half precision.

use crate::support::*;

/// Exact in f16 and bf16; their norm is 57,000.
const GRADIENT: [f64; 10] = [
    24576.0, -32768.0, 12288.0, 0.0, -20480.0, 28672.0, -2048.0, 4096.0, 20480.0, -12288.0,
];

/// Every combination of a parameter's dtype and the gradient's, and gradients that no scaler has touched; and that dtype.
fn unscaled() -> Vec<(Pair, DType, UnscaledGradients)> {
    let mut all = Vec::new();
    for parameter in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        if !Device::default().supports_dtype(parameter) {
            continue;
        }
        let is_wide = parameter == DType::F64;
        let full = if is_wide { parameter } else { DType::F32 };
        for (enabled, narrow) in [(true, true), (true, false), (false, false)] {
            let dtype = if enabled && !narrow { full } else { parameter };
            let config = at_scale(1.0).with_enabled(enabled);
            let config = config.with_parameter_dtype_gradients(narrow);
            let run = ByHand::of(Pair::new([0.0; 10], &device(), parameter), config);
            let grads = run.unscaled(GRADIENT);
            all.push((run.model, dtype, grads));
        }
    }
    all
}

/// All gradients are the constants times a factor of the weight's and one of the bias's, in this dtype, rounded no more than `roundings`
/// times: the list has them in f32, and the factor is f32 off the device.
fn assert_times(of: (&Pair, DType), grads: &UnscaledGradients, factors: [f64; 2], roundings: f64) {
    let (model, dtype) = of;
    // Below the smallest normal number of f16 there are fewer digits.
    let (one, smallest) = match dtype {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-14)),
        DType::BF16 => (2f64.powi(-8), 0.0),
        _ => (2f64.powi(-21), 0.0),
    };
    let found = gradients_by_path(grads.params(), model).into_iter();
    let found = found.flat_map(|(_, found, values)| {
        assert_eq!(found, dtype);
        values
    });
    for (index, found) in found.enumerate() {
        let expected = GRADIENT[index] * factors[usize::from(index > 5)];
        let error = (f64::from(found) - expected).abs();
        let allowed = roundings * one * expected.abs().max(smallest);
        assert!(error <= allowed, "{dtype:?}: {found} instead of {expected}");
    }
}

/// Clipping, products and sums round once, and lose no factor that f16 cannot hold.
#[test]
fn factors_are_not_rounded_to_half_precision() {
    let [weight, bias] = [&GRADIENT[..6], &GRADIENT[6..]].map(l2);
    let global = 1.0 / (l2(&GRADIENT) + 1e-6);
    // 1e-8 is zero in f16; the largest products are normal numbers there.
    let (tiny, small) = (1e-8, 1.0 / 60000.0);
    for (model, dtype, grads) in unscaled() {
        let own = || grads.clone();
        let clipped = |clip| own().clip(&clip).unwrap();
        // A gradient that only the other has.
        let mut none = own();
        none.params_mut().remove::<2>(model.weight.id);
        none.params_mut().remove::<1>(model.bias.id);
        for (found, factors) in [
            (clipped(GradientClip::GlobalNorm(1.0)), [global; 2]),
            (clipped(GradientClip::Norm(1.0)), [1.0 / weight, 1.0 / bias]),
            (own().mul_scalar(tiny), [tiny; 2]),
            (own().mul_scalar(0.0).add_weighted(own(), small), [small; 2]),
            (none.add_weighted(own(), small), [small; 2]),
        ] {
            assert_times((&model, dtype), &found, factors, 1.0);
            // Still what an optimizer takes.
            let mut optim = MasterWeights::new(SgdConfig::new().build());
            let mut scaler = at_scale(1.0).init().unwrap();
            let stepped = scaler.try_step(&mut optim, 0.1, model.clone(), found);
            stepped.unwrap();
        }
        // And back: no more than these two roundings off. The smallest are subnormal in f16.
        if dtype != DType::F16 {
            let back = own().mul_scalar(tiny).mul_scalar(1.0 / tiny);
            assert_times((&model, dtype), &back, [1.0; 2], 2.0);
        }
    }
}
