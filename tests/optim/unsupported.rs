//! A dtype that the device lacks, on the device that the features choose: WGSL has no bf16.

use half::bf16;

use crate::support::*;

#[test]
fn an_error_that_names_device_and_dtypes_or_none() {
    let device = Device::default();
    for dtype in [FloatDType::F16, FloatDType::BF16, FloatDType::F32] {
        let checked = MixedPrecision::new(dtype).check_device(&device);
        match device.supports_dtype(DType::from(dtype)) {
            true => assert_eq!(checked, Ok(())),
            false => {
                let missing = format!("has no {:?}", DType::from(dtype));
                says(&checked.unwrap_err(), [&missing, "F32"]);
            }
        }
    }
}

#[test]
fn gradients_of_a_dtype_that_is_there_or_not() {
    let Trial { mut optim, model } = Trial::new(sgd_under(GradScalerConfig::new()));
    let device = Device::default();
    let gradients = || {
        let data = TensorData::new(vec![bf16::ONE; 4], [4]);
        let mut grads = GradientsParams::new();
        let grad = Tensor::<1>::from_data(data, (&device, DType::BF16));
        grads.register(model.bias.id, grad);
        grads
    };
    let before = optim.scaler().bits();
    let looked = inspect(&gradients(), &model);
    let scaled = scaled_by_hand(optim.scaler(), gradients());
    let stepped = optim.try_step(0.1, model.clone(), scaled);
    if device.supports_dtype(DType::BF16) {
        assert_eq!(looked.unwrap().max_abs(), 1.0);
        assert!(stepped.is_ok());
        return;
    }
    let plain = optim.try_step(0.1, model.clone(), gradients());
    let [stepped, plain] = [stepped, plain].map(|step| step.unwrap_err().error);
    for error in [looked.unwrap_err(), stepped, plain] {
        is_error(&error, "UnsupportedDType", []);
    }
    assert_eq!(optim.scaler().bits(), before);
}
