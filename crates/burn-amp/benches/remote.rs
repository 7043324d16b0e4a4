//! The time of a training step in f16 on a remote device, beside that on Flex here, by the size of the network: what the way to a server costs,
//! where client and server share one machine.

#[path = "../tests/remote/server.rs"]
#[allow(dead_code)]
mod server;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor};
use burn_amp::{MixedPrecision, ScaledOptimizer, optim::FusedAdam, optim::ModuleOptim};
use std::time::Instant;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

impl Net {
    fn new(widths: &[usize], device: &Device) -> Self {
        let pairs = widths.windows(2);
        let layer = |pair: &[usize]| LinearConfig::new(pair[0], pair[1]).init(device);
        let layers = pairs.map(layer).collect();
        Self { layers }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let mut layers = self.layers.iter();
        let first = layers.next().map(|layer| layer.forward(input));
        let first = first.expect("a network has layers");
        layers.fold(first, |x, layer| layer.forward(Relu::new().forward(x)))
    }
}

/// Trains one model by one optimizer.
struct Run<O> {
    amp: MixedPrecision,
    model: Net,
    optim: ScaledOptimizer<O>,
    input: Tensor<2>,
    times: Vec<f64>,
}

impl<O: ModuleOptim> Run<O> {
    fn new(widths: &[usize], batch: usize, device: &Device, optim: O) -> Self {
        let amp = MixedPrecision::f16();
        let (model, optim) = amp.prepare(Net::new(widths, device), optim);
        let input = Tensor::random([batch, widths[0]], Distribution::Default, device);
        let times = Vec::new();
        Self {
            amp,
            model,
            optim,
            input,
            times,
        }
    }

    /// One step, with a look at its loss, as a loop that logs has.
    fn step(&mut self) {
        let start = Instant::now();
        let (model, input) = (self.model.clone(), self.input.clone());
        let output = self.amp.autocast(input, |x| model.forward(x));
        let loss = output.square().mean();
        let grads = GradientsParams::from_grads(loss.clone().backward(), &model);
        self.model = self.optim.step(1e-3, model, grads);
        assert!(loss.into_scalar::<f32>().is_finite());
        self.times.push(start.elapsed().as_secs_f64() * 1e3);
    }

    fn median(mut self) -> f64 {
        self.times.sort_by(f64::total_cmp);
        self.times[self.times.len() / 2]
    }
}

fn compare<O: ModuleOptim>(
    widths: &[usize],
    batch: usize,
    remote: &Device,
    optim: impl Fn() -> O,
) -> [f64; 2] {
    let local = Device::flex().autodiff();
    let mut runs = [&local, remote].map(|device| Run::new(widths, batch, device, optim()));
    for _ in 0..30 {
        for run in &mut runs {
            run.step();
        }
    }
    runs.map(Run::median)
}

fn main() {
    let server = server::Server::new();
    let remote = server.device();
    println!(
        "| parameters | batch | optimizer | here, ms | remote, ms | ratio |\n|--:|--:|---|--:|--:|--:|"
    );
    for (widths, batch) in [
        (&[64, 128, 64, 10][..], 64),
        (&[256, 1024, 768, 10], 64),
        (&[512, 2048, 2048, 640], 64),
    ] {
        let parameters = Net::new(widths, &Device::flex()).num_params();
        let adam = compare(widths, batch, &remote, || AdamConfig::new().init());
        let fused = compare(widths, batch, &remote, || FusedAdam::new(AdamConfig::new()));
        for (name, [here, there]) in [("`Adam`", adam), ("`FusedAdam`", fused)] {
            let ratio = there / here;
            println!("| {parameters} | {batch} | {name} | {here:.2} | {there:.2} | {ratio:.2} |");
        }
    }
}
