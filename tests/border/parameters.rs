//! Parameters that are neither f32 nor half precision, and those of low-rank adapters.

use burn::{
    module::{Lora, Module, Param, QLora, Quantizer},
    nn::{Linear, LinearConfig},
    optim::{GradientsParams, SgdConfig},
    tensor::{
        DType, Device, FloatDType, Tensor,
        quantization::{Calibration, QuantScheme, QuantValue},
    },
};
use burn_amp::{AmpError, ScaledOptimizer, StepOutcome, to_full};

use crate::support::{device, f16, fill, random, two, values};

fn linear(device: &Device) -> Linear {
    fill(LinearConfig::new(4, 4).init(device), 1)
}

#[test]
fn adapters_first_then_mixed_precision_trains_the_factors() {
    let device = Device::flex().autodiff();
    let amp = f16(two(12));
    let mut model = linear(&device)
        .apply_lora(Lora::new(2, 4.0))
        .apply_reparameterization(amp.clone());
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let base = values(model.weight.base());
    let input = random(1, [8, 4], &device);
    let mut losses = Vec::new();
    for _ in 0..20 {
        let output = amp.autocast(input.clone(), |x| {
            let y = model.forward(x);
            assert_eq!(y.dtype(), DType::F16);
            y
        });
        let loss = (output - 0.5).square().mean();
        losses.push(loss.clone().into_scalar::<f32>());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        assert_eq!(grads.len(), 2);
        model = optim.step(0.1, model, grads);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
    }
    assert!(
        losses.is_sorted_by(|before, after| before > after),
        "{losses:?}"
    );
    assert_eq!(values(model.weight.base()), base);
    let adapter = model.weight.adapter().unwrap();
    assert_eq!(adapter.a.base().dtype(), DType::F32);
}

/// Burn keeps one reparameterization a parameter: the adapters are not attached, and all is frozen.
#[test]
fn mixed_precision_first_then_adapters_is_refused_and_warned_of() {
    let device = Device::flex().autodiff();
    let amp = f16(two(12));
    let model = linear(&device)
        .apply_reparameterization(amp.clone())
        .apply_lora(Lora::new(2, 4.0));
    let input: Tensor<2> = random(1, [8, 4], &device);
    let result = amp.check(&model, |m| {
        amp.autocast(input.clone(), |x| m.forward(x))
            .square()
            .mean()
    });
    let error = result.unwrap_err();
    assert_eq!(error, AmpError::NoGradients { gradients: 0 });
    assert!(error.to_string().contains("adapters"), "{error}");
}

fn quantizer() -> Quantizer {
    let scheme = QuantScheme::default().with_value(QuantValue::Q8S);
    Quantizer::new(Calibration::MinMax, scheme)
}

/// The quantized base stays as it is; the factors are f32 and are cast.
#[test]
fn a_quantized_base_with_adapters_trains_the_factors() {
    let device = Device::flex().autodiff();
    let amp = f16(two(12));
    let plain: Linear = fill(LinearConfig::new(32, 32).with_bias(false).init(&device), 1);
    let mut model = plain
        .apply_qlora(QLora::new(Lora::new(2, 4.0), quantizer()))
        .apply_reparameterization(amp.clone());
    assert!(matches!(model.weight.base().dtype(), DType::QFloat(_)));
    let base = values(model.weight.base().dequantize());
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    for _ in 0..3 {
        let output = amp.autocast(random(1, [4, 32], &device), |x| model.forward(x));
        let grads = GradientsParams::from_grads(output.square().mean().backward(), &model);
        assert_eq!(grads.len(), 2);
        model = optim.step(0.1, model, grads);
        assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
    }
    assert!(matches!(model.weight.base().dtype(), DType::QFloat(_)));
    assert_eq!(values(model.weight.base().dequantize()), base);
}

#[derive(Module, Debug)]
struct Two {
    first: Linear,
    second: Linear,
}

/// A frozen, quantized layer before one that is trained.
#[test]
fn a_quantized_layer_stays_as_it_is() {
    let device = Device::flex().autodiff();
    let amp = f16(two(12));
    let layer = || -> Linear { fill(LinearConfig::new(32, 32).with_bias(false).init(&device), 1) };
    let model = Two {
        first: layer().quantize_weights(&mut quantizer()),
        second: layer(),
    };
    let mut model = model.apply_reparameterization(amp.clone());
    assert!(matches!(
        model.first.weight.base().dtype(),
        DType::QFloat(_)
    ));
    let before = values(model.first.weight.base().dequantize());
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let output = amp.autocast(random(1, [4, 32], &device), |x| {
        model.second.forward(model.first.forward(x))
    });
    let grads = GradientsParams::from_grads(output.square().mean().backward(), &model);
    assert!(grads.get::<2>(model.second.weight.id).is_some());
    let second = values(model.second.weight.base());
    model = optim.step(0.1, model, grads);
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Stepped));
    assert_ne!(values(model.second.weight.base()), second);
    assert_eq!(values(model.first.weight.base().dequantize()), before);
}

/// On devices that have Flex32; Flex has not.
#[test]
fn flex32_parameters_are_refused() {
    let device = device();
    if !device.supports_dtype(DType::Flex32) {
        return;
    }
    let amp = f16(two(12));
    let mut model: Linear = LinearConfig::new(3, 3).with_bias(false).init(&device);
    let ones = Tensor::<2>::ones([3, 3], &device).cast(FloatDType::Flex32);
    model.weight = Param::from_tensor(ones);
    let model = model.apply_reparameterization(amp.clone());
    let output = amp.try_autocast(random(1, [4, 3], &device), |x| model.forward(x));
    let expected = AmpError::HalfPrecisionLeaf {
        parameter: "weight".to_string(),
        dtype: DType::Flex32,
    };
    assert_eq!(output.unwrap_err(), expected);
    assert_eq!(to_full(model).weight.base().dtype(), DType::F32);
}
