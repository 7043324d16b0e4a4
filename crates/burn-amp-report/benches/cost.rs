//! What the recorder and its probes cost a step, and how many step times an audit takes.
//!
//! `cargo bench -p burn-amp-report --bench cost -- --rounds 40`

use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor};
use burn::{module::Module, tensor::activation::relu};
use burn_amp::{MixedPrecision, ScaledOptimizer};
use burn_amp_report::{FlightRecorder, audit, probed};
use clap::Parser;
use std::time::Instant;

const NAMES: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

/// What the recorder and the audit cost.
#[derive(Parser)]
struct Options {
    /// Measurements of each
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Values of a sample in each of eight layers
    #[arg(long, default_value_t = 512)]
    width: usize,
    /// Samples of a batch
    #[arg(long, default_value_t = 512)]
    batch: usize,
    /// `cargo bench` says it.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Module, Debug)]
struct Network {
    layers: Vec<Linear>,
}

impl Network {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter().zip(NAMES);
        layers.fold(x, |x, (layer, name)| {
            probed(name, x, |x| relu(layer.forward(x)))
        })
    }
}

struct Training {
    amp: MixedPrecision,
    model: Network,
    optim: ScaledOptimizer,
    input: Tensor<2>,
}

impl Training {
    fn new(options: &Options) -> Self {
        let device = Device::flex().autodiff();
        device.seed(0);
        let amp = MixedPrecision::f16();
        let layer = |_| LinearConfig::new(options.width, options.width).init(&device);
        let model = Network {
            layers: NAMES.iter().map(layer).collect(),
        };
        let shape = [options.batch, options.width];
        Self {
            model: model.apply_reparameterization(amp.clone()),
            optim: ScaledOptimizer::new(AdamConfig::new().init(), &amp),
            input: Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device),
            amp,
        }
    }

    fn loss(&self, model: &Network) -> Tensor<1> {
        let output = self.amp.autocast(self.input.clone(), |x| model.forward(x));
        output.square().mean()
    }

    /// Milliseconds of an audit.
    fn audit(&self) -> f64 {
        let start = Instant::now();
        let found =
            audit(&self.model, &self.amp, |m| self.loss(m)).expect("a loss that can be computed");
        assert!(found.verdict().is_fine(), "{found}");
        1e3 * start.elapsed().as_secs_f64()
    }

    /// Milliseconds of a step.
    fn step(&mut self) -> f64 {
        let start = Instant::now();
        let loss = self.loss(&self.model);
        let grads = GradientsParams::from_grads(loss.backward(), &self.model);
        self.model = self.optim.step(1e-4, self.model.clone(), grads);
        1e3 * start.elapsed().as_secs_f64()
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let options = Options::parse();
    let folder = std::env::temp_dir().join(format!("burn-amp-report-cost-{}", std::process::id()));
    let (mut plain, mut recorded) = (Training::new(&options), Training::new(&options));
    let recorder =
        FlightRecorder::new(&folder, &recorded.amp).expect("a folder for temporary files");
    plain.step();
    recorded.step();
    // In turns, in an order that turns too: whatever else the machine does hits all of them.
    let (mut times, mut ratios) = ([vec![], vec![], vec![]], [vec![], vec![]]);
    for round in 0..options.rounds {
        let mut of_round = [0.0; 3];
        for turn in 0..3 {
            let what = (round + turn) % 3;
            of_round[what] = match what {
                0 => plain.step(),
                1 => recorded.step(),
                _ => plain.audit(),
            };
        }
        let [step, with, audit] = of_round;
        ratios[0].push(with / step);
        ratios[1].push(audit / step);
        for (times, time) in times.iter_mut().zip(of_round) {
            times.push(time);
        }
    }
    recorder.detach(&recorded.amp);
    let [step, with, audit] = times.map(median);
    let [ratio, of_audit] = ratios.map(median);
    println!(
        "{} layers of {} on {} samples, Flex, f16",
        NAMES.len(),
        options.width,
        options.batch
    );
    println!("{:<34} {:>9} {:>7}", "", "ms", "ratio");
    println!("{:<34} {step:>9.2} {:>7.3}", "step", 1.0);
    println!(
        "{:<34} {with:>9.2} {ratio:>7.3}",
        "step, recorded, 8 probes"
    );
    println!("{:<34} {audit:>9.2} {:>7.2}", "audit, 8 probes", of_audit);
    std::fs::remove_dir_all(folder).ok();
}
