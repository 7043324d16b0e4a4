//! Conv2d and ConvTranspose2d.

use burn::nn::conv::{Conv2dConfig, ConvTranspose2dConfig};

use crate::support::{check, tensor};

#[test]
fn conv2d() {
    check(
        |device| Conv2dConfig::new([2, 3], [3, 3]).init(device),
        &[],
        |conv, precision, device| conv.forward(precision.cast(tensor([2, 2, 6, 5], device))),
    );
}

#[test]
fn conv2d_in_groups() {
    check(
        |device| {
            let config = Conv2dConfig::new([4, 6], [2, 2]).with_groups(2);
            config.with_stride([2, 1]).init(device)
        },
        &[],
        |conv, precision, device| conv.forward(precision.cast(tensor([2, 4, 5, 4], device))),
    );
}

#[test]
fn conv_transpose2d() {
    check(
        |device| ConvTranspose2dConfig::new([2, 3], [3, 3]).init(device),
        &[],
        |conv, precision, device| conv.forward(precision.cast(tensor([2, 2, 4, 3], device))),
    );
}
