//! Gradients of parts of a batch, as several devices compute them: `step_multi` and `sum_of_devices`.

use half::f16;

use crate::support::*;

/// As Burn's own `step_multi` without scaling, bit for bit; an overflow in one part skips the step for all.
#[test]
fn follows_burn_and_skips_on_an_overflow_in_one_part() {
    compare_on_devices(&Net::full(&flex()), AdamConfig::new().init());
}

/// Each part fits into f16, and their sum does not: it must not be taken there.
#[test]
fn half_precision_parts_are_summed_in_full_precision() {
    let config = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let optim = sgd_under(config);
    let mut run = Trial::new(optim).with_dtype(DType::F16);
    let part = || run.model.plain([60000.0; 10]);
    let parts = multi(&Device::default(), vec![part(), part()]);
    let sum = sum_of_devices(parts, &run.model);
    run.take(scaled_by_hand(run.optim.scaler(), sum));
    assert!(!run.status().has_overflow());
    let expected = f64::from(f16::from_f32(120000.0 / 65536.0).to_f32());
    assert_eq!(run.status().max_abs(), expected);
    assert_eq!(run.values(), [-expected; 10]);
}
