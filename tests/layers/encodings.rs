//! Encodings and noise, which make f32 tensors of their own: in an f32 island they run.

use burn::{
    module::Module,
    nn::{
        GaussianNoise, GaussianNoiseConfig, Linear, LinearConfig, PositionalEncoding,
        PositionalEncodingConfig, RotaryEncoding, RotaryEncodingConfig,
    },
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp::in_f32;

use crate::support::{check, panic_message, precision, tensor};

#[derive(Module, Debug)]
struct Positions {
    stem: Linear,
    positions: PositionalEncoding,
}

impl Positions {
    fn new(device: &Device) -> Self {
        Self {
            stem: LinearConfig::new(4, 6).init(device),
            positions: PositionalEncodingConfig::new(6)
                .with_max_sequence_size(8)
                .init(device),
        }
    }
}

#[test]
fn positional_encoding() {
    check(Positions::new, &["positions"], |model, half, device| {
        let stem = model.stem.forward(half.cast(tensor([2, 3, 4], device)));
        in_f32(stem, |x| model.positions.forward(x))
    });
}

#[derive(Module, Debug)]
struct Rotations {
    stem: Linear,
    rotations: RotaryEncoding,
}

impl Rotations {
    fn new(device: &Device) -> Self {
        Self {
            stem: LinearConfig::new(4, 6).init(device),
            rotations: RotaryEncodingConfig::new(8, 6).init(device),
        }
    }
}

#[test]
fn rotary_encoding() {
    check(Rotations::new, &["rotations"], |model, half, device| {
        let stem = model.stem.forward(half.cast(tensor([2, 3, 4], device)));
        in_f32(stem, |x| model.rotations.forward(x))
    });
}

#[derive(Module, Debug)]
struct Noisy {
    stem: Linear,
    noise: GaussianNoise,
}

fn noisy(device: &Device, forward: impl Fn(&Noisy, Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    let half = precision(FloatDType::F16, &[]);
    let model = Noisy {
        stem: LinearConfig::new(4, 6).init(device),
        noise: GaussianNoiseConfig::new(0.5).init(),
    };
    let model = model.apply_reparameterization(half.clone());
    forward(&model, half.cast(tensor([2, 4], device)))
}

#[test]
fn gaussian_noise() {
    let device = Device::flex().autodiff();
    let output = noisy(&device, |model, input| {
        let clean = model.stem.forward(input);
        let noisy = in_f32(clean.clone(), |x| model.noise.forward(x));
        noisy - clean
    });
    assert_eq!(output.dtype(), DType::F16);
    let noise: f32 = output.cast(FloatDType::F32).abs().sum().into_scalar();
    assert!(noise > 0.0 && noise.is_finite());
}

#[test]
fn without_the_island_burn_refuses() {
    let message = panic_message(|| {
        let device = Device::flex().autodiff();
        noisy(&device, |model, input| {
            model.noise.forward(model.stem.forward(input))
        });
    });
    assert!(message.contains("dtype"), "{message}");
}
