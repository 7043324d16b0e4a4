//! LayerNorm, RmsNorm, GroupNorm, InstanceNorm and BatchNorm.

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, GroupNormConfig, InstanceNormConfig, LayerNormConfig,
        RmsNormConfig,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, FloatDType, Tensor},
};
use burn_amp::{MixedPrecision, in_f32};

use crate::support::{check, panic_message, precision, tensor};

#[test]
fn layer_norm() {
    check(
        |device| LayerNormConfig::new(6).init(device),
        &[],
        |norm, precision, device| norm.forward(precision.cast(tensor([4, 3, 6], device))),
    );
}

#[test]
fn rms_norm() {
    check(
        |device| RmsNormConfig::new(6).init(device),
        &[],
        |norm, precision, device| norm.forward(precision.cast(tensor([4, 3, 6], device))),
    );
}

#[test]
fn instance_norm() {
    check(
        |device| InstanceNormConfig::new(6).init(device),
        &[],
        |norm, precision, device| norm.forward(precision.cast(tensor([3, 6, 4, 2], device))),
    );
}

#[test]
fn group_norm() {
    check(
        |device| GroupNormConfig::new(2, 6).init(device),
        &[],
        |norm, precision, device| norm.forward(precision.cast(tensor([3, 6, 4, 2], device))),
    );
}

#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Block {
    fn new(device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([2, 3], [3, 3]).init(device),
            norm: BatchNormConfig::new(3).init(device),
        }
    }

    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        in_f32(self.conv.forward(input), |x| self.norm.forward(x))
    }
}

/// In an f32 island, as the documentation of `in_f32` has it.
#[test]
fn batch_norm() {
    check(Block::new, &["norm"], |block, precision, device| {
        block.forward(precision.cast(tensor([4, 2, 5, 5], device)))
    });
}

/// The reason for the island. If this fails, Burn has learnt it, and the island is no longer needed.
#[test]
fn batch_norm_without_an_island_is_refused() {
    for device in [Device::flex().autodiff(), Device::flex()] {
        for keep in [vec![], vec!["gamma", "beta"]] {
            let f16 = precision(FloatDType::F16, &keep);
            let norm = BatchNormConfig::new(2).init(&device);
            let norm = norm.apply_reparameterization(f16.clone());
            let input = f16.cast(tensor([3, 2, 2], &device));
            let message = panic_message(|| norm.forward(input));
            assert!(message.contains("dtype mismatch"), "{message}");
        }
    }
}

/// An island leaves an f32 model alone.
#[test]
fn an_island_in_an_f32_model_changes_nothing() {
    let device = Device::flex();
    let block = Block::new(&device);
    let input = MixedPrecision::new(FloatDType::F32).cast(tensor([4, 2, 5, 5], &device));
    let bare = block.norm.forward(block.conv.forward(input.clone()));
    assert_eq!(block.forward(input).to_data(), bare.to_data());
}
