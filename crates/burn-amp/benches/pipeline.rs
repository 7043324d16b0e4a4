//! What a training step takes when the optimizer is on a thread of its own: beside the computation alone, the optimizer alone, and the
//! two one after another.
//!
//! ```sh
//! cargo bench -p burn-amp --bench pipeline                                             # Flex, one core for each side
//! BURN_DEVICE=wgpu cargo bench -p burn-amp --bench pipeline --features wgpu     # computes there, steps on Flex
//! ```
//!
//! The larger of computation and optimizer is the least that a pipelined step can take. Times are medians over the rounds. Memory is the
//! most that a process with this case alone has held, less what it held before.

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor};
use burn::{module::Module, tensor::activation::gelu};
use burn_amp::{MixedPrecision, ScaledOptimizer, pipeline::PipelinedOptimizer};
use std::{env, fs, process::Command, time::Instant};

/// Steps of a round.
const STEPS: usize = 8;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

impl Net {
    fn new(width: usize, depth: usize, device: &Device) -> Self {
        let layer = |_| LinearConfig::new(width, width).init(device);
        Self {
            layers: (0..depth).map(layer).collect(),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter();
        layers.fold(input, |x, layer| gelu(layer.forward(x)))
    }
}

struct Case {
    amp: MixedPrecision,
    model: Option<Net>,
    optim: PipelinedOptimizer,
}

/// Milliseconds of a step.
#[derive(Clone, Copy, Default)]
struct Times {
    compute: f64,
    optimizer: f64,
    step: f64,
}

impl Case {
    fn new(width: usize, depth: usize, synchronous: bool, device: &Device) -> Self {
        let amp = MixedPrecision::f16();
        let model = Net::new(width, depth, device).apply_reparameterization(amp.clone());
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), &amp);
        let optim = PipelinedOptimizer::new(optim, Device::flex()).expect("the settings are valid");
        Self {
            amp,
            model: Some(model),
            optim: optim.with_synchronous(synchronous),
        }
    }

    fn round(&mut self, input: &Tensor<2>) -> Times {
        let mut times = Times::default();
        let mut model = self.model.take().expect("it comes back");
        let begin = Instant::now();
        for _ in 0..STEPS {
            let start = Instant::now();
            let output = self.amp.autocast(input.clone(), |x| model.forward(x));
            let loss = output.square().mean();
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            input.device().sync().expect("the device answers");
            times.compute += start.elapsed().as_secs_f64();
            let start = Instant::now();
            model = self.optim.step(1e-4, model, grads);
            times.optimizer += start.elapsed().as_secs_f64();
        }
        times.step = begin.elapsed().as_secs_f64();
        self.model = Some(model);
        times
    }
}

/// The most memory that this process has held so far, in MiB; 0 where Linux does not say.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
    kilobytes
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(0)
        >> 10
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2] * 1e3 / STEPS as f64
}

const CASES: [(usize, usize, usize, usize); 3] =
    [(1024, 4, 16, 9), (1024, 4, 64, 9), (1024, 4, 160, 7)];

/// What a process with one case prints: milliseconds of compute, optimizer and step, and MiB.
fn run(case: usize, synchronous: bool) -> [f64; 4] {
    let (width, depth, batch, rounds) = CASES[case];
    let device = Device::default().autodiff();
    let input = Tensor::<2>::random([batch, width], Distribution::Default, &device);
    input.device().sync().expect("the device answers");
    let before = most_memory();
    let mut case = Case::new(width, depth, synchronous, &device);
    // The first steps allocate and compile.
    case.round(&input);
    let times: Vec<Times> = (0..rounds).map(|_| case.round(&input)).collect();
    if let Some(model) = case.model.take() {
        case.optim.synchronize(model).unwrap();
    }
    [
        median(times.iter().map(|times| times.compute)),
        median(times.iter().map(|times| times.optimizer)),
        median(times.iter().map(|times| times.step)),
        most_memory().saturating_sub(before) as f64,
    ]
}

/// The same in a process of its own.
fn measured(case: usize, synchronous: bool) -> [f64; 4] {
    let program = env::current_exe().expect("this program has a path");
    let output = Command::new(program)
        .args([CASE, &case.to_string(), &synchronous.to_string()])
        .output()
        .expect("this program starts again");
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    numbers.try_into().unwrap_or_else(|_| {
        let error = String::from_utf8_lossy(&output.stderr);
        panic!("case {case} has failed: {error}")
    })
}

const CASE: &str = "--case";

fn table() {
    println!("{:?}; Adam; f16; milliseconds a step\n", Device::default());
    println!(
        "| network | compute | optimizer | one after the other | pipelined | / the larger | MiB, one after the other | pipelined |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    for (case, (width, depth, batch, _)) in CASES.into_iter().enumerate() {
        let [compute, optimizer, after, mebibytes] = measured(case, true);
        let [.., beside, pipelined_mebibytes] = measured(case, false);
        println!(
            "| {depth} layers of {width}, batch {batch} | {compute:.1} | {optimizer:.1} | {after:.1} | {beside:.1} | {:.2} | {mebibytes} | {pipelined_mebibytes} |",
            beside / compute.max(optimizer),
        );
    }
}

fn main() {
    let args: Vec<String> = env::args().collect();
    let Some(at) = args.iter().position(|arg| arg == CASE) else {
        return table();
    };
    let case = args[at + 1].parse().expect("a case");
    let synchronous = args[at + 2].parse().expect("true or false");
    // A core for each side: the threads that no pool is named for serve the optimizer.
    let one = || rayon::ThreadPoolBuilder::new().num_threads(1);
    one().build_global().expect("nothing has used it yet");
    let training = one().build().expect("a thread");
    let numbers = training.install(|| run(case, synchronous));
    println!("{}", numbers.map(|number| number.to_string()).join(" "));
}
