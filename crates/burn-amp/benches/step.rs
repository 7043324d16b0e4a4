//! What the step of Adam costs, the gradients given: Burn's, ours in one pass, and the same bytes moved with nothing else done. Then the same
//! with the test of the gradients and the loss scale: with a wait in each step, and without. Of many small tensors also with a global norm, which
//! nobody waits for. At last whole training steps of two small networks, made one by one, and captured; and at scale 1, with the test of the gradients
//! and without.
//!
//! ```sh
//! cargo bench -p burn-amp --bench step                  # Flex; 12 GB of memory
//! cargo bench -p burn-amp --bench step -- --quick       # GPT-2 at a third of its width
//! cargo bench -p burn-amp --bench step -- --only small  # the sets with this in their names: at most 6 GB of memory
//! cargo bench -p burn-amp --bench step -- --only whole  # whole steps alone
//! BURN_DEVICE=wgpu cargo bench -p burn-amp --bench step --features wgpu
//! ```
//!
//! `--json FILE` writes the rows to a file, anew with each. `torch_peer.py step` of the kernels' benches does the same in torch.
//!
//! All ways take turns in one run. Times are medians over the rounds, and ratios are medians of the rounds' ratios. Gradients are held from
//! step to step, so that no way frees them.

use burn::module::{Module, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use burn_amp::optim::{FusedAdam, ModuleOptim};
use burn_amp::{
    GradScalerConfig, GradientClip, MixedPrecision, ScaledOptimizer, torch::MasterWeights,
};
use rayon::prelude::*;
use serde::Serialize;
use std::{fs, path::PathBuf, time::Instant};

#[path = "step/whole.rs"]
mod whole;

/// Values of the copy that a thread takes at a time.
const CHUNK: usize = 1 << 15;
const LR: f64 = 1e-4;
/// Below the norm of all gradients here.
const CLIP: GradientClip = GradientClip::GlobalNorm(1.0);
/// Seconds for a set of parameters; rounds that are needed go on.
const LIMIT: u64 = 60;
const NEEDED: usize = 13;

#[derive(Module, Debug)]
struct Net {
    vectors: Vec<Param<Tensor<1>>>,
    matrices: Vec<Param<Tensor<2>>>,
}

impl Net {
    fn new(shapes: &[Vec<usize>], dtype: FloatDType, device: &Device) -> Self {
        fn noise<const D: usize>(
            shape: [usize; D],
            dtype: FloatDType,
            device: &Device,
        ) -> Param<Tensor<D>> {
            let noise = Distribution::Uniform(-1.0, 1.0);
            Param::from_tensor(Tensor::<D>::random(shape, noise, device).cast(dtype))
        }
        let device = device.clone().autodiff();
        let mut net = Self {
            vectors: Vec::new(),
            matrices: Vec::new(),
        };
        for shape in shapes {
            match shape[..] {
                [length] => net.vectors.push(noise([length], dtype, &device)),
                _ => net
                    .matrices
                    .push(noise([shape[0], shape[1]], dtype, &device)),
            }
        }
        net
    }

    /// The values of another network as gradients of this one.
    fn gradients(&self, other: &Self) -> GradientsParams {
        let mut gradients = GradientsParams::new();
        for (param, other) in self.vectors.iter().zip(&other.vectors) {
            gradients.register(param.id, other.val().inner());
        }
        for (param, other) in self.matrices.iter().zip(&other.matrices) {
            gradients.register(param.id, other.val().inner());
        }
        gradients
    }
}

/// GPT-2's parameters, of this width.
fn gpt2(width: usize) -> Vec<Vec<usize>> {
    let mut shapes = vec![vec![50257, width], vec![1024, width]];
    for _ in 0..12 {
        shapes.extend([vec![width], vec![width]]);
        shapes.extend([vec![width, 3 * width], vec![3 * width]]);
        shapes.extend([vec![width, width], vec![width]]);
        shapes.extend([vec![width], vec![width]]);
        shapes.extend([vec![width, 4 * width], vec![4 * width]]);
        shapes.extend([vec![4 * width, width], vec![width]]);
    }
    shapes.extend([vec![width], vec![width]]);
    shapes
}

/// Those of the example `digits`.
fn digits() -> Vec<Vec<usize>> {
    let mut shapes = [vec![64, 64], vec![64]]
        .into_iter()
        .cycle()
        .take(8)
        .collect::<Vec<_>>();
    shapes.extend([vec![64, 10], vec![10]]);
    shapes
}

/// As those of adapters and of experts: of 32 tensors, 24 have 4,096 values, 4 have 8 K, 2 have 16 K, one has 32 K and one 64 K. That is 8 K on
/// average, so that all ways over 10,000 of them fit into 6 GB.
fn small(count: usize) -> Vec<Vec<usize>> {
    let rows = |index: usize| match index % 32 {
        31 => 1024,
        15 => 512,
        7 | 23 => 256,
        3 | 11 | 19 | 27 => 128,
        _ => 64,
    };
    (0..count).map(|index| vec![rows(index), 64]).collect()
}

type Step = Box<dyn FnMut(Net, GradientsParams) -> Net>;

/// An optimizer, and the network that it steps.
struct Way {
    name: &'static str,
    net: Option<Net>,
    step: Step,
}

impl Way {
    /// Milliseconds of one step.
    fn step(&mut self, gradients: &Net, device: &Device) -> f64 {
        let net = self.net.take().expect("it comes back");
        let gradients = net.gradients(gradients);
        let start = Instant::now();
        self.net = Some((self.step)(net, gradients));
        device.sync().expect("the device answers");
        start.elapsed().as_secs_f64() * 1e3
    }
}

/// What an Adam in f32 must move, in one array after another: the gradient is read, parameter and moments are read and written.
struct Copy([Vec<f32>; 4]);

impl Copy {
    /// Milliseconds.
    fn step(&mut self) -> f64 {
        let start = Instant::now();
        let [gradient, parameter, first, second] = &mut self.0;
        (gradient.par_chunks(CHUNK))
            .zip(parameter.par_chunks_mut(CHUNK))
            .zip(first.par_chunks_mut(CHUNK))
            .zip(second.par_chunks_mut(CHUNK))
            .for_each(|(((gradient, parameter), first), second)| {
                let others = parameter.iter_mut().zip(first).zip(second);
                for (gradient, ((parameter, first), second)) in gradient.iter().zip(others) {
                    *parameter += gradient;
                    *first += gradient;
                    *second += gradient;
                }
            });
        start.elapsed().as_secs_f64() * 1e3
    }
}

/// Without an end: on a device that computes nothing, as one that is emulated, each step overflows.
fn f16() -> MixedPrecision {
    let endless = GradScalerConfig::new().with_max_consecutive_skips(None);
    MixedPrecision::f16().with_scaler(endless).unwrap()
}

/// The step of an optimizer behind the loss scale, which is known when it returns, or later.
fn scaled<O: ModuleOptim + 'static>(optim: O, waits: bool) -> Step {
    timed(ScaledOptimizer::new(optim, &f16()), waits)
}

fn timed<O: ModuleOptim + 'static>(mut optim: ScaledOptimizer<O>, waits: bool) -> Step {
    Box::new(move |net, grads| {
        let net = optim.step(LR, net, grads);
        if waits {
            optim.synchronize().unwrap();
        }
        net
    })
}

/// The ways to step with tensors of these shapes. Of `small` ones, those that do not wait, with a global norm too.
fn ways(shapes: &[Vec<usize>], dtype: FloatDType, small: bool, device: &Device) -> Vec<Way> {
    let way = |name, step| Way {
        name,
        net: Some(Net::new(shapes, dtype, device)),
        step,
    };
    let burn: (&str, Step) = if dtype == FloatDType::F32 {
        let mut adam = AdamConfig::new().init();
        (
            "`Adam`",
            Box::new(move |net, grads| adam.step(LR, net, grads)),
        )
    } else {
        let mut adam = MasterWeights::new(AdamConfig::new().build());
        (
            "`MasterWeights` of `Adam`",
            Box::new(move |net, grads| adam.step(LR, net, grads)),
        )
    };
    let new = || FusedAdam::new(AdamConfig::new());
    let mut fused = new();
    let fused: Step = Box::new(move |net, grads| fused.step(LR, net, grads));
    let mut ways = vec![way(burn.0, burn.1), way("`FusedAdam`", fused)];
    if small {
        let clipped = ScaledOptimizer::new(new(), &f16()).with_clipping(CLIP);
        ways.extend([
            way("scaled `FusedAdam`", scaled(new(), false)),
            way("scaled `FusedAdam`, global norm", timed(clipped, false)),
        ]);
    } else if dtype == FloatDType::F32 {
        let burn = scaled(AdamConfig::new().init(), true);
        ways.extend([
            way("scaled `Adam`", burn),
            way("scaled `FusedAdam`, waiting", scaled(new(), true)),
            way("scaled `FusedAdam`", scaled(new(), false)),
        ]);
    }
    ways
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[derive(Serialize)]
struct Row {
    parameters: String,
    way: &'static str,
    milliseconds: f64,
    /// Medians of the rounds' ratios.
    to_burns: String,
    to_copy: String,
}

/// All that was measured so far.
#[derive(Serialize)]
struct File {
    device: String,
    rows: Vec<Row>,
    #[serde(skip)]
    path: Option<PathBuf>,
}

impl File {
    fn add(&mut self, row: Row) {
        println!(
            "| {} | {} | {:.3} | {} | {} |",
            row.parameters, row.way, row.milliseconds, row.to_burns, row.to_copy
        );
        self.rows.push(row);
        if let Some(path) = &self.path {
            // Whole whenever it is read.
            let beside = path.with_extension("tmp");
            let text = serde_json::to_string_pretty(self).expect("JSON");
            let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
            written.expect("the file can be written");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let (path, only) = (option("--json"), option("--only"));
    let (width, rounds) = if quick { (256, 23) } else { (768, NEEDED) };
    let device = Device::default();
    let host = format!("{device:?}").contains("Flex");
    let mut file = File {
        device: format!("{device:?}"),
        rows: Vec::new(),
        path: path.map(PathBuf::from),
    };
    println!("{device:?}; milliseconds a step\n");
    println!("| parameters | way | step | / Burn's | / copy |");
    println!("|---|---|--:|--:|--:|");
    let (f32, bf16) = (FloatDType::F32, FloatDType::BF16);
    for (name, shapes, dtype, rounds) in [
        ("digits", digits(), f32, 3000),
        ("GPT-2", gpt2(width), f32, rounds),
        ("GPT-2", gpt2(width), bf16, rounds),
        ("small", small(1000), f32, 100),
        ("small", small(10_000), f32, if host { NEEDED } else { 6 }),
    ] {
        let named = format!("{name}, {} {dtype:?}", shapes.len());
        let is_asked = only.is_none_or(|only| named.contains(only));
        if !is_asked || !device.supports_dtype(DType::from(dtype)) {
            continue;
        }
        let gradients = Net::new(&shapes, dtype, &device);
        let values = gradients.num_params();
        let copied = host && dtype == FloatDType::F32;
        let mut copy = copied.then(|| Copy(std::array::from_fn(|_| vec![1.0; values])));
        let mut ways = ways(&shapes, dtype, name == "small", &device);
        let mut names: Vec<&str> = ways.iter().map(|way| way.name).collect();
        names.extend(copied.then_some("copy"));
        let mut times = vec![Vec::new(); names.len()];
        let begin = Instant::now();
        for round in 0..rounds {
            if round >= NEEDED && begin.elapsed().as_secs() > LIMIT {
                break;
            }
            let steps = ways.iter_mut().map(|way| way.step(&gradients, &device));
            let steps: Vec<f64> = steps.chain(copy.as_mut().map(Copy::step)).collect();
            // The first steps allocate and compile.
            if round > 2 {
                times
                    .iter_mut()
                    .zip(steps)
                    .for_each(|(times, step)| times.push(step));
            }
        }
        let ratio = |times: &[f64], others: Option<&Vec<f64>>| {
            others.map_or(String::new(), |others| {
                let ratios = times.iter().zip(others).map(|(time, other)| time / other);
                format!("{:.2}", median(ratios.collect()))
            })
        };
        for (name_of_way, own) in names.iter().zip(&times) {
            file.add(Row {
                parameters: format!(
                    "{name}, {:.1} M in {}, {dtype:?}",
                    values as f64 / 1e6,
                    shapes.len()
                ),
                way: name_of_way,
                milliseconds: median(own.clone()),
                to_burns: ratio(own, times.first()),
                to_copy: ratio(own, times.get(ways.len())),
            });
        }
    }
    if only.is_none_or(|only| only == "whole") {
        whole::tables(quick, &device, &mut file);
    }
}
