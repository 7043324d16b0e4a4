//! Whole training steps: made one by one with Burn's Adam and with ours, and captured.

use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module,
    nn::attention::generate_autoregressive_mask, nn::loss::CrossEntropyLossConfig,
    tensor::activation::sigmoid,
};
use burn_amp::optim::{CapturedStep, FusedAdam, ModuleOptim};
use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer};
use std::time::Instant;

use crate::{File, LR, Row, median};

/// A network, and how it computes a loss.
trait Network: Module + 'static {
    type Batch: burn_amp::optim::CaptureInput + 'static;

    fn loss(&self, amp: &MixedPrecision, batch: Self::Batch) -> Tensor<1>;
}

/// That of the example `digits`.
#[derive(Module, Debug)]
struct Digits {
    hidden: Vec<Linear>,
    output: Linear,
}

impl Network for Digits {
    type Batch = (Tensor<2>, Tensor<1, Int>);

    fn loss(&self, amp: &MixedPrecision, (images, labels): Self::Batch) -> Tensor<1> {
        let logits = amp.autocast(images, |x| {
            let hidden = self.hidden.iter();
            self.output
                .forward(hidden.fold(x, |x, layer| sigmoid(layer.forward(x))))
        });
        let device = logits.device();
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, labels)
    }
}

const WORDS: usize = 256;
const LENGTH: usize = 32;

/// A small GPT.
#[derive(Module, Debug)]
struct Gpt {
    token: Embedding,
    position: Embedding,
    blocks: TransformerEncoder,
    head: Linear,
}

impl Network for Gpt {
    type Batch = (Tensor<2, Int>, Tensor<1, Int>);

    fn loss(&self, amp: &MixedPrecision, (tokens, next): Self::Batch) -> Tensor<1> {
        let [windows, length] = tokens.dims();
        let device = tokens.device();
        let logits = amp.autocast(tokens, |tokens| {
            let places = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze::<2>();
            let x = self.token.forward(tokens) + self.position.forward(places);
            let mask = generate_autoregressive_mask(windows, length, &device);
            let x = TransformerEncoderInput::new(x).mask_attn(mask);
            self.head.forward(self.blocks.forward(x)).flatten::<2>(0, 1)
        });
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, next)
    }
}

/// Makes one step and waits for it.
type Step = Box<dyn FnMut()>;

fn by_one<N: Network, O: ModuleOptim + 'static>(
    amp: &MixedPrecision,
    network: &N,
    batch: N::Batch,
    optim: O,
    waits: bool,
) -> Step {
    let amp = amp.clone();
    let mut network = Some(network.clone().apply_reparameterization(amp.clone()));
    let mut optim = ScaledOptimizer::new(optim, &amp);
    Box::new(move || {
        let here = network.take().expect("it comes back");
        let grads = here.loss(&amp, batch.clone()).backward();
        let grads = GradientsParams::from_grads(grads, &here);
        network = Some(optim.step(ModuleLearningRate::from(LR), here, grads));
        if waits {
            optim.synchronize().unwrap();
        }
    })
}

fn captured<N: Network>(network: &N, batch: N::Batch) -> Step {
    let amp = super::f16();
    let network = network.clone().apply_reparameterization(amp.clone());
    let optim = ScaledOptimizer::new(adam(), &amp);
    let loss = move |network: &N, batch| network.loss(&amp, batch);
    let mut step = CapturedStep::new(network, optim, loss).expect("a fused optimizer");
    Box::new(move || {
        step.step(LR, batch.clone()).expect("nothing is refused");
    })
}

fn adam() -> FusedAdam {
    FusedAdam::new(AdamConfig::new())
}

/// At scale 1, with the test of the gradients and without: in bf16, or in f16 where a device has no bf16. Gradients are f32 in both.
fn tested_or_not(device: &Device) -> (DType, [MixedPrecision; 2]) {
    let scaler = |tests: bool| {
        let one = GradScalerConfig::new().with_init_scale(1.0);
        one.with_dynamic(false)
            .with_max_consecutive_skips(None)
            .with_enabled(tests)
    };
    let dtype = match device.supports_dtype(DType::BF16) {
        true => FloatDType::BF16,
        false => FloatDType::F16,
    };
    let amp = |tests| {
        let amp = MixedPrecision::new(dtype).with_scaler(scaler(tests));
        amp.expect("1 is a scale")
    };
    (dtype.into(), [true, false].map(amp))
}

type Ways = Vec<(&'static str, Step)>;

fn tables_of<N: Network>(
    name: &str,
    network: &N,
    batch: N::Batch,
    rounds: usize,
    (device, file): (&Device, &mut File),
) {
    let here = || batch.clone();
    let burns = || AdamConfig::new().init();
    let f16 = super::f16();
    let ways: Ways = vec![
        (
            "scaled `Adam`",
            by_one(&f16, network, here(), burns(), true),
        ),
        (
            "scaled `FusedAdam`, waiting",
            by_one(&f16, network, here(), adam(), true),
        ),
        (
            "scaled `FusedAdam`",
            by_one(&f16, network, here(), adam(), false),
        ),
        ("captured", captured(network, here())),
    ];
    table(&format!("{name}, f16"), ways, rounds, (device, file));
    let (dtype, [tested, untested]) = tested_or_not(device);
    let ways: Ways = vec![
        (
            "`Adam`, not tested",
            by_one(&untested, network, here(), burns(), false),
        ),
        (
            "`Adam`, tested",
            by_one(&tested, network, here(), burns(), false),
        ),
        (
            "`FusedAdam`, not tested",
            by_one(&untested, network, here(), adam(), false),
        ),
        (
            "`FusedAdam`, tested",
            by_one(&tested, network, here(), adam(), false),
        ),
    ];
    let name = format!("{name}, {dtype:?} at scale 1");
    table(&name, ways, rounds, (device, file));
}

/// Their steps in turn. Ratios are those to the first.
fn table(name: &str, mut ways: Ways, rounds: usize, (device, file): (&Device, &mut File)) {
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..rounds + 5 {
        for ((_, step), times) in ways.iter_mut().zip(&mut times) {
            let start = Instant::now();
            step();
            device.sync().expect("the device answers");
            // The first steps compile, and one of them records.
            if round >= 5 {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let first = times[0].clone();
    for ((way, _), own) in ways.iter().zip(times) {
        let ratios = own.iter().zip(&first).map(|(own, first)| own / first);
        let ratio = median(ratios.collect());
        file.add(Row {
            parameters: name.to_owned(),
            way,
            milliseconds: median(own),
            to_burns: format!("{ratio:.2}"),
            to_copy: String::new(),
        });
    }
}

pub fn tables(quick: bool, device: &Device, file: &mut File) {
    let is_host = format!("{device:?}").contains("Flex");
    let rounds = match (quick, is_host) {
        (true, _) => 20,
        (false, true) => 500,
        (false, false) => 100,
    };
    let autodiff = device.clone().autodiff();
    println!("\nWhole steps, forward and backward passes included\n");
    println!("| network | way | step | / the first | |\n|---|---|--:|--:|--:|");

    let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&autodiff);
    let network = Digits {
        hidden: (0..4).map(|_| linear(64, 64)).collect(),
        output: linear(64, 10),
    };
    let images = Tensor::ones([128, 64], &autodiff) * 0.5;
    let labels = Tensor::arange(0..128, &autodiff).remainder_scalar(10);
    tables_of(
        "digits, 128 images",
        &network,
        (images, labels),
        rounds,
        (device, file),
    );

    let (width, windows) = (64, 4);
    let blocks = TransformerEncoderConfig::new(width, 4 * width, 4, 2);
    let network = Gpt {
        token: EmbeddingConfig::new(WORDS, width).init(&autodiff),
        position: EmbeddingConfig::new(LENGTH, width).init(&autodiff),
        blocks: blocks
            .with_norm_first(true)
            .with_dropout(0.0)
            .init(&autodiff),
        head: linear(width, WORDS),
    };
    let count = (windows * LENGTH) as i64;
    let next = Tensor::<1, Int>::arange(0..count, &autodiff).remainder_scalar(WORDS as i64);
    let tokens = next.clone().reshape([windows, LENGTH]);
    tables_of(
        "a GPT, 4 windows of 32",
        &network,
        (tokens, next),
        rounds / 2,
        (device, file),
    );
}
