//! What a training step takes when the optimizer is on a thread of its own: beside the computation alone, the optimizer alone, and the
//! two one after another.
//!
//! ```sh
//! cargo bench -p burn-amp --bench pipeline                                             # Flex, one core for each side
//! BURN_DEVICE=wgpu cargo bench -p burn-amp --bench pipeline --features wgpu,fusion     # computes there, steps on Flex
//! ```
//!
//! The larger of computation and optimizer is the least that a pipelined step can take. All ways take turns in one run. Times are medians
//! over the rounds. Memory is the most that the process has held in a round, less what it held before the first.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Distribution, Tensor, activation::gelu},
};
use burn_amp::{MixedPrecision, PipelinedOptimizer, ScaledOptimizer};
use std::{fs, time::Instant};

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
    mebibytes: u64,
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
        memory::forget();
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
        times.mebibytes = memory::most();
        self.model = Some(model);
        times
    }
}

/// The most memory that this process has held since [`forget`](memory::forget); 0 where Linux does not tell.
mod memory {
    use super::fs;

    pub fn forget() {
        // Sets the peak back to what is held now.
        let _ = fs::write("/proc/self/clear_refs", "5");
    }

    pub fn most() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
        kilobytes
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0)
            >> 10
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2] * 1e3 / STEPS as f64
}

fn bench() {
    let device = Device::default().autodiff();
    println!("{:?}; Adam; f16; milliseconds a step\n", Device::default());
    println!(
        "| network | compute | optimizer | one after the other | pipelined | / the larger | MiB, one after the other | pipelined |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    for (width, depth, batch, rounds) in [(1024, 4, 16, 9), (1024, 4, 64, 9), (1024, 4, 160, 7)] {
        let input = Tensor::<2>::random([batch, width], Distribution::Default, &device);
        let mut times: [Vec<Times>; 2] = Default::default();
        for (times, synchronous) in times.iter_mut().zip([true, false]) {
            // One alone, for its memory.
            memory::forget();
            let before = memory::most();
            let mut case = Case::new(width, depth, synchronous, &device);
            for round in 0..rounds + 1 {
                let mut taken = case.round(&input);
                taken.mebibytes = taken.mebibytes.saturating_sub(before);
                // The first steps allocate and compile.
                if round > 0 {
                    times.push(taken);
                }
            }
            if let Some(model) = case.model.take() {
                case.optim.synchronize(model);
            }
        }
        let [synchronous, pipelined] = &times;
        let compute = median(synchronous.iter().map(|times| times.compute));
        let optimizer = median(synchronous.iter().map(|times| times.optimizer));
        let after = median(synchronous.iter().map(|times| times.step));
        let beside = median(pipelined.iter().map(|times| times.step));
        let most = |times: &[Times]| times.iter().map(|times| times.mebibytes).max().unwrap_or(0);
        println!(
            "| {depth} layers of {width}, batch {batch} | {compute:.1} | {optimizer:.1} | {after:.1} | {beside:.1} | {:.2} | {} | {} |",
            beside / compute.max(optimizer),
            most(synchronous),
            most(pipelined),
        );
    }
}

fn main() {
    // A core for each side: the threads that no pool is named for serve the optimizer.
    let one = || rayon::ThreadPoolBuilder::new().num_threads(1);
    one().build_global().expect("nothing has used it yet");
    let training = one().build().expect("a thread");
    training.install(bench);
}
