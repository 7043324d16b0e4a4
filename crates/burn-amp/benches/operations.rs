//! From which size of its input on an operation is wrong in f16, in its values or in its gradient: the tables of the book.
//!
//! ```sh
//! cargo bench -p burn-amp --bench operations            # Flex
//! BURN_DEVICE=wgpu cargo bench -p burn-amp --bench operations --features wgpu,fusion
//! ```
//!
//! Each runs in `autocast`, and beside it in f32, on the same values, which f16 holds. Gradients are those at the loss scale that serves them best.
//! Nothing here mixes dtypes: it runs without fusion, too.

use std::panic::{self, AssertUnwindSafe};

use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::{gelu, gelu_approximate, log_softmax, silu, softmax, softplus};
use burn::tensor::module::layer_norm;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use burn_amp::{GradScalerConfig, MixedPrecision};

const WIDTH: usize = 32;
/// The largest magnitude of an input; the smallest is half of it.
const SIZES: [f32; 12] = [
    1.0, 10.0, 30.0, 41.0, 100.0, 250.0, 260.0, 1000.0, 2000.0, 5000.0, 10000.0, 30000.0,
];
const SCALES: [f64; 4] = [65536.0, 1024.0, 16.0, 1.0];
/// From this share of the largest value on, an error is one.
const WRONG: f32 = 0.05;

#[derive(Module, Debug)]
struct Layers {
    layer: LayerNorm,
    rms: RmsNorm,
    group: GroupNorm,
    attention: MultiHeadAttention,
}

impl Layers {
    fn new(device: &Device) -> Self {
        device.seed(1);
        let attention = MultiHeadAttentionConfig::new(WIDTH, 4).with_dropout(0.0);
        let layers = Self {
            layer: LayerNormConfig::new(WIDTH).init(device),
            rms: RmsNormConfig::new(WIDTH).init(device),
            group: GroupNormConfig::new(4, WIDTH).init(device),
            attention: attention.init(device),
        };
        // Burn draws parameters when they are read first: now, or each copy would have others.
        layers.clone().into_record();
        layers
    }
}

/// `[32, 32]` to a matrix.
type Operation = fn(&Layers, Tensor<2>) -> Tensor<2>;

const OPERATIONS: [(&str, Operation); 27] = [
    ("`LayerNorm`", |m, x| m.layer.forward(x)),
    ("`RmsNorm`", |m, x| m.rms.forward(x)),
    ("`GroupNorm`", |m, x| m.group.forward(x)),
    ("the function `layer_norm`", |_, x| {
        let ones = Tensor::<1>::ones([WIDTH], &x.device()).cast(x.dtype());
        layer_norm(x, ones, None, 1e-5)
    }),
    (
        "by hand: `x / (x.square().mean_dim(1) + e).sqrt()`",
        |_, x| {
            let mean = x.clone().square().mean_dim(1);
            x / (mean + 1e-5).sqrt()
        },
    ),
    ("by hand: `x * (..).sqrt().recip()`", |_, x| {
        let mean = x.clone().square().mean_dim(1);
        x * (mean + 1e-5).sqrt().recip()
    }),
    ("by hand: `var_mean_bias`", |_, x| {
        let (variance, mean) = x.clone().var_mean_bias(1);
        (x - mean) / (variance + 1e-5).sqrt()
    }),
    ("`softmax`", |_, x| softmax(x, 1)),
    ("`log_softmax`", |_, x| log_softmax(x, 1)),
    ("`MultiHeadAttention`", |m, x| {
        let output = m.attention.forward(MhaInput::self_attn(x.unsqueeze()));
        output.context.squeeze_dim(0)
    }),
    ("attention by hand, logits / 8", |_, x| {
        softmax(x.clone().matmul(x.clone().transpose()) / 8.0, 1).matmul(x)
    }),
    ("attention by hand, queries / 8", |_, x| {
        softmax((x.clone() / 8.0).matmul(x.clone().transpose()), 1).matmul(x)
    }),
    ("`gelu`", |_, x| gelu(x)),
    ("`gelu_approximate`", |_, x| gelu_approximate(x)),
    ("`silu`", |_, x| silu(x)),
    ("`softplus`", |_, x| softplus(x, 1.0)),
    ("`sigmoid`", |_, x| burn::tensor::activation::sigmoid(x)),
    ("by hand: `1 / (1 + exp(-x))`", |_, x| {
        ((-x).exp() + 1.0).recip()
    }),
    ("`exp`", |_, x| x.exp()),
    ("`square`", |_, x| x.square()),
    ("`powf_scalar(3)`", |_, x| x.powf_scalar(3.0)),
    ("`sqrt`", |_, x| x.abs().sqrt()),
    ("`recip`", |_, x| x.recip()),
    ("`1 / x`", |_, x| x.ones_like() / x),
    ("`sum_dim` of 4096 / 4096", |_, x| {
        many(x).sum_dim(1) / 4096.0
    }),
    ("`mean_dim` of 4096", |_, x| many(x).mean_dim(1)),
    ("a matrix product of 4096", |_, x| {
        let x = many(x);
        let ones = x.ones_like().transpose() / 4096.0;
        x.matmul(ones)
    }),
];

/// 4096 columns, of one sign.
fn many(x: Tensor<2>) -> Tensor<2> {
    x.abs().repeat_dim(1, 4096 / WIDTH)
}

/// Magnitudes from half the size to the size, of both signs, in no order. The same on each device.
fn values(seed: u32, shape: [usize; 2], size: f32, device: &Device) -> Tensor<2> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    let value = |_| {
        let magnitude = size * (0.5 + 0.5 * next());
        if next() < 0.5 { magnitude } else { -magnitude }
    };
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
    let values = Tensor::<2>::from_data(TensorData::new(values, shape), device);
    values.cast(FloatDType::F16).cast(FloatDType::F32)
}

/// The values of an operation, and the gradient of its input, in f32 or at a loss scale.
fn run(layers: &Layers, operation: Operation, size: f32, scale: Option<f64>) -> [Vec<f32>; 2] {
    let device = layers.layer.gamma.val().device();
    let x = values(1, [WIDTH; 2], size, &device).require_grad();
    let config = GradScalerConfig::new().with_init_scale(scale.unwrap_or(1.0));
    let amp = MixedPrecision::f16().allow_unchecked_dtypes();
    let amp = amp.with_scaler(config).expect("a scale");
    let layers = amp.attach(layers.clone());
    let y = match scale {
        Some(_) => amp.autocast(x.clone(), |x| operation(&layers, x)),
        None => operation(&layers, x.clone()),
    };
    let weights = values(2, y.dims(), 1.0, &device);
    let grads = (y.clone() * weights).sum().backward();
    let gradient = x.grad(&grads).expect("each value counts");
    [y.inner(), gradient].map(|values| values.into_data().iter::<f32>().collect())
}

/// What is wrong with values, in words; none if nothing is.
fn wrong(values: &[f32], expected: &[f32]) -> Option<String> {
    if values.iter().any(|value| !value.is_finite()) {
        return Some("inf or NaN".to_string());
    }
    let largest = expected
        .iter()
        .fold(0.0f32, |max, value| max.max(value.abs()));
    // Nothing comes of it.
    if largest < 1e-5 {
        return None;
    }
    let counts = |(_, expected): &(_, &f32)| expected.abs() > 1e-3 * largest;
    let large: Vec<_> = values.iter().zip(expected).filter(counts).collect();
    if 2 * large.iter().filter(|(value, _)| **value == 0.0).count() > large.len() {
        return Some("zeros".to_string());
    }
    let apart = values.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let error = apart.fold(0.0, f32::max) / largest;
    (error > WRONG).then(|| format!("{:.0} % off", 100.0 * error))
}

/// From which size on something is wrong with the values, and with the gradient.
fn find(layers: &Layers, operation: Operation) -> [String; 2] {
    let mut found = [None, None];
    for size in SIZES {
        let expected = run(layers, operation, size, None);
        if expected.iter().flatten().any(|value| !value.is_finite()) {
            break;
        }
        let runs = SCALES.map(|scale| run(layers, operation, size, Some(scale)));
        let faults = [0, 1].map(|index| {
            let faults = runs.iter().map(|run| wrong(&run[index], &expected[index]));
            // The values are those of each scale; of the gradients, the last one has overflowed least.
            faults.reduce(|best, other| best.and(other))?
        });
        for (found, fault) in found.iter_mut().zip(faults) {
            if let (None, Some(fault)) = (&found, fault) {
                *found = Some(format!("{fault} from {size}"));
            }
        }
    }
    found.map(|found| found.unwrap_or("right".to_string()))
}

fn main() {
    let device = Device::default().autodiff();
    let layers = Layers::new(&device);
    println!("| on {:?} | forward | gradient |", device.clone().inner());
    println!("|---|---|---|");
    for (name, operation) in OPERATIONS {
        // A device may lack what one operation needs; the others are measured.
        let found = panic::catch_unwind(AssertUnwindSafe(|| find(&layers, operation)));
        let [forward, gradient] =
            found.unwrap_or_else(|_| ["Burn panics", "Burn panics"].map(String::from));
        println!("| {name} | {forward} | {gradient} |");
    }
    println!("\n| `mean` of so many twos | f32 | f16 |\n|--:|--:|--:|");
    for count in [1000, 100_000, 300_000, 1_000_000] {
        let mean = |dtype: FloatDType| {
            let twos = Tensor::<1>::full([count], 2.0, &device.clone().inner());
            twos.cast(dtype)
                .mean()
                .cast(FloatDType::F32)
                .into_scalar::<f32>()
        };
        let [wide, half] = [FloatDType::F32, FloatDType::F16].map(mean);
        println!("| {count} | {wide:.3} | {half:.3} |");
    }
}
