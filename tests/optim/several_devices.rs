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
    let half = |values: [f32; 2], device: &Device| {
        Tensor::<1>::from_data(values.map(f16::from_f32), (device, DType::F16))
    };
    let param = Param::from_tensor(half([1.0; 2], &flex()));
    let part = || {
        let mut grads = GradientsParams::new();
        grads.register(param.id, half([60000.0, 0.5], &Device::flex()));
        grads
    };
    let config = GradScalerConfig::new().with_parameter_dtype_gradients(true);
    let mut optim = sgd_under(config);
    let sum = sum_of_devices(multi(&Device::flex(), vec![part(), part()]), &param);
    let sum = scaled_by_hand(optim.scaler(), sum);
    let param = optim.step(1.0, param.clone(), sum);

    let status = optim.scaler().last_status().unwrap();
    assert!(!status.has_overflow());
    let expected = f64::from(f16::from_f32(120000.0 / 65536.0).to_f32());
    assert_eq!(status.max_abs(), expected);
    let rounded = f16::from_f64(1.0 - expected).to_f32();
    assert_eq!(values(param.val())[0], rounded);
}
