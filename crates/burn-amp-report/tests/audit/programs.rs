//! Programs of which something stands between two layers, at a size.

use burn::tensor::activation::{gelu, log_softmax, relu, silu, softmax, tanh};
use burn::tensor::module::layer_norm;
use burn_amp_tests::prelude::*;

/// What stands between the layers.
pub type Between = fn(Tensor<2>, f64) -> Tensor<2>;
pub type Program = (&'static str, Between);

pub fn is_half(x: &Tensor<2>) -> bool {
    x.dtype() != DType::F32
}

fn over_root(x: Tensor<2>) -> Tensor<2> {
    let mean = x.clone().square().mean_dim(1);
    x / (mean + 1e-5).sqrt()
}

/// Written by hand as in many models: over the last dimension, of values that have grown.
pub const NORMS: [Program; 5] = [
    ("x / sqrt(mean)", |x, size| over_root((x + 0.5) * size)),
    ("x * recip", |x, size| {
        let x = (x + 0.5) * size;
        let mean = x.clone().powf_scalar(2.0).mean_dim(1);
        x * (mean + 1e-5).sqrt().recip()
    }),
    ("the function layer_norm", |x, size| {
        let ones = Tensor::<1>::ones([16], &x.device()).cast(x.dtype());
        layer_norm((x + 0.5) * size, ones, None, 1e-5)
    }),
    ("variance", |x, size| {
        let x = (x + 0.5) * size;
        let (variance, mean) = x.clone().var_mean_bias(1);
        (x - mean) / (variance + 1e-5).sqrt()
    }),
    ("in a residual", |x, size| {
        let x = (x + 0.5) * size;
        x.clone() / 50000.0 + over_root(x)
    }),
];

/// Values that are lost in the forward pass, or in what the loss makes of them.
pub const LOST: [Program; 17] = [
    ("cancels at 1e4", |x, _| (x + 1e4) - 1e4),
    ("cancels at 3e4", |x, _| (x + 3e4) - 3e4),
    ("cancels, and keeps another branch", |x, _| {
        x.clone().slice_fill(0..16, 0.5) + (x * 1.5 + 3e4) - 3e4
    }),
    ("underflows", |x, _| (x * 1e-9) * 1e9),
    ("squares", |x, _| (x + 300.0).square().sqrt() - 300.0),
    ("exp of -20", |x, _| (x - 20.0).exp().log() + 20.0),
    ("a softmax by hand", |x, _| {
        let e = ((x + 0.5) * 30.0).exp();
        e.clone() / e.sum_dim(1)
    }),
    ("sum / n", |x, _| {
        let many = x.repeat_dim(1, 4000) + 2.0;
        let [_, count] = many.dims();
        many.sum_dim(1).repeat_dim(1, 16) / count as f32
    }),
    ("an epsilon of 1e-8", |x, _| {
        let x = relu(x - 2.0);
        x.clone() / (x.sum_dim(1) + 1e-8)
    }),
    ("a large logit by large keys", |x, _| {
        let keys = x.clone() * 200.0;
        softmax(keys.clone().matmul(keys.transpose()) / 1e4, 1).matmul(x)
    }),
    ("a slope", |x, _| (tanh(x.clone() + 1e-4) - tanh(x)) / 1e-4),
    ("a mask of -1e9, multiplied and added", |x, _| {
        let hidden = x.clone().lower_elem(0.1).float().cast(x.dtype());
        softmax(x + hidden * -1e9, 1)
    }),
    (
        "a wrong kernel",
        |x, _| if is_half(&x) { x * 3.0 } else { x },
    ),
    ("a kernel that flushes subnormals", |x, _| {
        let mut x = x * 2e-5;
        if x.dtype() == DType::F16 {
            let tiny = x.clone().abs().lower_elem(6.1e-5);
            x = x.mask_fill(tiny, 0.0);
        }
        x * 5e4
    }),
    // Another layer is in it, or none alone.
    ("exp", |x, _| (x + 12.0).exp().log()),
    ("infinities", |x, _| softmax((x * 1e5).clamp_min(-1e5), 1)),
    ("product", |x, _| x.clone() + (x + 3.0).cumprod(1) / 1e7),
];

pub const FINE: [Program; 7] = [
    ("nothing", |x, _| x),
    ("gelu", |x, _| gelu(x * 10.0) / 10.0),
    ("silu", |x, _| silu(x * 10.0) / 10.0),
    ("softmax", |x, _| softmax(x * 5.0, 1)),
    ("log_softmax", |x, _| log_softmax(x, 1)),
    ("a norm", |x, _| over_root(x + 1.0)),
    ("means", |x, _| x.clone() + x.repeat_dim(1, 300).mean_dim(1)),
];

/// Whose gradients are small.
pub const FLAT: [Program; 2] = [
    ("sigmoid", |x, _| sigmoid(x * 0.01)),
    ("tanh", |x, _| tanh(x * 0.1) * 0.1),
];

/// A divisor's gradient is divided by its square; a root's is infinite at zero. No scale helps, and the forward pass is right.
pub const STEEP: [Program; 2] = [
    ("divided by size", |x, size| {
        (x.clone() * 0.2 + 1.5).recip() + size / (x * (0.3 * size) + size)
    }),
    ("root", |x, n| x.clone() + (x / n).powf_scalar(4.0).sqrt()),
];

/// What is not finite in f32 too.
pub const BROKEN: [Program; 6] = [
    ("a logarithm of zero", |x, _| x.clone() + (x * 0.0).log()),
    ("a root below zero", |x, _| (x - 100.0).sqrt()),
    ("a division by zero", |x, _| x.clone() / (x * 0.0)),
    ("an exponential", |x, _| (x + 200.0).exp()),
    ("a power", |x, _| (x + 1e20).powf_scalar(3.0)),
    ("a root of zero", |x, _| x.clone() + (x * 0.0).sqrt()),
];

/// Whose gradients are zero in f32 too.
pub const DEAD: [Program; 5] = [
    ("relu", |x, _| relu(x - 100.0)),
    ("a maximum", |x, _| x.clamp_max(-50.0) / 50.0),
    ("times zero", |x, _| x * 0.0),
    ("clamped", |x, _| (x - 50.0).clamp(-1.0, 1.0)),
    ("a sign", |x, _| x.sign()),
];

/// Operations whose forward pass is right and whose backward pass, in half precision, is that of something else.
pub const WRONG_BACKWARD: [Program; 5] = [
    ("zeros", |x, way| wrong(x, way, |x| x * 0.0)),
    ("three times", |x, way| wrong(x, way, |x| x * 3.0)),
    ("the sign", |x, way| wrong(x, way, |x| -x)),
    ("other rows", |x, way| wrong(x, way, |x| x.flip([0]) * 2.0)),
    ("columns", |x, way| wrong(x, way, |x| x.flip([1]) * 2.0)),
];

/// In both half precisions, behind tanh, or in f16 alone.
pub const IN_BOTH: f64 = 0.0;
pub const BEHIND_TANH: f64 = 1.0;
pub const IN_F16: f64 = 2.0;

/// `x`, with the gradient of another function of it.
fn wrong(x: Tensor<2>, way: f64, other: fn(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    let x = if way == BEHIND_TANH { tanh(x) + 0.5 } else { x };
    let is_spared = way == IN_F16 && x.dtype() == DType::BF16;
    if !is_half(&x) || is_spared {
        return x;
    }
    let other = other(x.clone());
    x.detach() + (other.clone() - other.detach())
}

pub fn without_gradient(x: Tensor<2>) -> Tensor<2> {
    wrong(x, IN_BOTH, |x| x * 0.0)
}
