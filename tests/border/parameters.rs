//! Parameters that are neither f32 nor half precision, and those of low-rank adapters.

use burn::module::{QLora, Quantizer};
use burn::tensor::quantization::{Calibration, QuantScheme, QuantValue};

use crate::support::*;

fn linear(width: usize) -> Linear {
    let config = LinearConfig::new(width, width).with_bias(false);
    fill(config.init(&flex()), 1)
}

fn lora() -> Lora {
    Lora::new(2, 4.0)
}

fn input(rows: usize, width: usize) -> Tensor<2> {
    random(1, [rows, width], &flex())
}

/// Weights that a program clips, or moves towards others, still compute in half precision.
#[test]
fn a_mapper_keeps_the_casts_and_a_single_parameter_loses_them() {
    let amp = f16(two(12));
    let reads = |gain: &Gain, dtype: DType| {
        amp.autocast((), |()| assert_eq!(gain.factor.val().dtype(), dtype));
    };
    let mut gain = fill(Gain::at(&[2.0], &amp), 1);
    reads(&gain, DType::F16);
    gain.factor = gain.factor.map(|value| value * 0.5);
    reads(&gain, DType::F32);
}

/// Dtype and values of a weight, which may be quantized.
fn base(linear: &Linear) -> (DType, Vec<f32>) {
    let base = linear.weight.base();
    match base.dtype() {
        dtype @ DType::QFloat(_) => (dtype, values(base.dequantize())),
        dtype => (dtype, values(base)),
    }
}

fn quantizer() -> Quantizer {
    let scheme = QuantScheme::default().with_value(QuantValue::Q8S);
    Quantizer::new(Calibration::MinMax, scheme)
}

/// The base stays as it is, quantized or not; the factors of an adapter are f32 and are cast. So it is with a frozen, quantized layer before one that is trained.
#[test]
fn a_frozen_base_stays_as_it_is_beside_what_trains() {
    // Burn draws the factors: with some, a step of this size is too long.
    let plain = fill(linear(4).apply_lora(lora()), 1);
    let adapted = linear(32).apply_qlora(QLora::new(lora(), quantizer()));
    let quantized = linear(32).quantize_weights(&mut quantizer());
    for (layers, width, steps, trained) in [
        (vec![plain], 4, 20, 2),
        (vec![adapted], 32, 3, 2),
        (vec![quantized, linear(32)], 32, 3, 1),
    ] {
        let before = layers.iter().map(base).collect::<Vec<_>>();
        assert!(width == 4 || matches!(before[0].0, DType::QFloat(_)));
        let mut run = Player::new(layers, &f16(two(12)));
        let losses = (0..steps).map(|_| {
            let forward = |x, layer: &Linear| layer.forward(x);
            let output = (run.amp).autocast(input(8, width), |x| {
                let y = run.model.iter().fold(x, forward);
                assert_eq!(y.dtype(), DType::F16);
                y
            });
            let loss = (output - 0.5).square().mean();
            let before: f32 = loss.clone().into_scalar();
            let grads = run.gradients(loss);
            assert_eq!(grads.len(), trained);
            assert!(!run.step(0.1, grads));
            before
        });
        let losses: Vec<f32> = losses.collect();
        let falls = losses.is_sorted_by(|before, after| before > after);
        assert!(falls || width > 4, "{losses:?}");
        let adapter = run.model[0].weight.adapter();
        assert!(adapter.is_none_or(|adapter| adapter.a.base().dtype() == DType::F32));
        let after = run.model.iter().map(base).collect::<Vec<_>>();
        assert_eq!(after[0], before[0]);
        assert!(after.len() == 1 || after[1] != before[1]);
    }
}

/// An adapter casts its base by hand, so that the base's gradient carries the scale: trained by mistake, it is refused.
#[test]
fn a_low_rank_adapter_over_a_base_that_trains_is_refused() {
    let adapted = linear(4).apply_lora(lora()).unfreeze();
    let mut run = Player::new(adapted, &f16(two(12)));
    let output = run.amp.autocast(input(2, 4), |x| run.model.forward(x));
    let grads = run.gradients(output.square().mean());
    let error = run.try_step(0.1, grads).unwrap_err();
    let expected = "UnfrozenBase { parameter: \"weight\", name: \"lora\" }";
    is_error(&error, expected, []);
}

/// Burn keeps one reparameterization a parameter: the adapters are not attached, and all is frozen.
#[test]
fn mixed_precision_first_then_adapters_is_refused_and_warned_of() {
    let amp = f16(two(12));
    let model = amp.attach(linear(4)).apply_lora(lora());
    assert!(model.weight.adapter().is_none() && !model.weight.base().is_require_grad());
    let checked = amp.check(&model, |m| {
        let output = amp.autocast(input(8, 4), |x| m.forward(x));
        output.square().mean()
    });
    is_error(&checked.unwrap_err(), "NoGradients { gradients: 0 }", []);
}

/// On devices that have Flex32; Flex has not.
#[test]
fn flex32_parameters_are_refused() {
    let device = device();
    if !device.supports_dtype(DType::Flex32) {
        return skipped("the device has no Flex32");
    }
    let amp = f16(two(12));
    let mut model: Linear = LinearConfig::new(3, 3).with_bias(false).init(&device);
    let ones = Tensor::<2>::ones([3, 3], &device).cast(FloatDType::Flex32);
    model.weight = Param::from_tensor(ones);
    let model = amp.attach(model);
    let output = amp.try_autocast(random(1, [4, 3], &device), |x| model.forward(x));
    let expected = "Border { what: Parameter, parameter: Some(\"weight\"), dtype: Flex32 }";
    is_error(&output.unwrap_err(), expected, []);
    assert_eq!(to_full(model).weight.base().dtype(), DType::F32);
}
