//! What a training step costs: scaled at the border of half precision, scaled by hand, and in plain f32.
//!
//! ```sh
//! cargo bench -p burn-amp --bench border            # Flex
//! BURN_DEVICE=wgpu cargo bench -p burn-amp --bench border --features wgpu
//! ```
//!
//! All ways take turns in one run. Times are medians over the rounds, and ratios are medians of the rounds' ratios.

use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer, torch::GradScaler};
use std::time::Instant;

const CLASSES: usize = 32;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    head: Linear,
}

impl Net {
    fn new(width: usize, depth: usize, device: &Device) -> Self {
        let layer = |_| LinearConfig::new(width, width).init(device);
        Self {
            layers: (0..depth).map(layer).collect(),
            head: LinearConfig::new(width, CLASSES).init(device),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter();
        self.head
            .forward(layers.fold(input, |x, layer| gelu(layer.forward(x))))
    }
}

/// f16 everywhere, cast by hand: what the explicit way computes with.
struct ByHand;

#[derive(Module, Debug)]
struct HalfParameter {
    #[module(skip)]
    dtype: FloatDType,
}

impl Reparameterization for HalfParameter {
    const NAME: &'static str = "half";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        base.cast(self.dtype)
    }
}

impl Reparameterizer for ByHand {
    type Reparam = HalfParameter;

    fn reparameterize<const D: usize>(
        &mut self,
        _path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Self::Reparam>) {
        let dtype = FloatDType::F16;
        (param, Some(HalfParameter { dtype }))
    }
}

enum Way {
    Plain(ModuleOptimizer),
    Explicit(ScaledOptimizer),
    Border(MixedPrecision, ScaledOptimizer),
}

struct Case {
    name: &'static str,
    model: Option<Net>,
    way: Way,
}

impl Case {
    fn step(&mut self, input: &Tensor<2>, target: &Tensor<2>) {
        let model = self.model.take().expect("it comes back");
        let loss = |output: Tensor<2>| (output - target.clone()).square().mean();
        let lr = 1e-4;
        let model = match &mut self.way {
            Way::Plain(optim) => {
                let loss = loss(model.forward(input.clone()));
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                optim.step(lr, model, grads)
            }
            Way::Explicit(optim) => {
                let output = model.forward(input.clone().cast(FloatDType::F16));
                let grads = optim.backward(loss(output.cast(FloatDType::F32)), &model);
                optim.step(lr, model, grads)
            }
            Way::Border(amp, optim) => {
                let loss = loss(amp.autocast(input.clone(), |x| model.forward(x)));
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                optim.step(lr, model, grads)
            }
        };
        self.model = Some(model);
    }
}

fn cases(width: usize, depth: usize, device: &Device) -> Vec<Case> {
    let model = Net::new(width, depth, device);
    let amp = MixedPrecision::f16();
    let adam = || AdamConfig::new().init();
    let scaler = GradScaler::new(GradScalerConfig::new()).expect("the defaults are valid");
    let case = |name, model, way| Case {
        name,
        model: Some(model),
        way,
    };
    vec![
        case("plain f32", model.clone(), Way::Plain(adam())),
        case(
            "f16, loss scaled by hand",
            model.clone().apply_reparameterization(ByHand),
            Way::Explicit(ScaledOptimizer::new(adam(), scaler)),
        ),
        case(
            "f16, scaled at the border",
            model.apply_reparameterization(amp.clone()),
            Way::Border(amp.clone(), ScaledOptimizer::new(adam(), &amp)),
        ),
    ]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let device = Device::default();
    println!("{device:?}; Adam; milliseconds a step\n");
    let device = device.autodiff();
    println!("| network | way | step | / plain | / by hand |");
    println!("|---|---|--:|--:|--:|");
    for (width, depth, batch, rounds) in [(64, 4, 64, 200), (512, 4, 256, 60), (1024, 4, 128, 30)] {
        let input = Tensor::<2>::random([batch, width], Distribution::Default, &device);
        let target = Tensor::<2>::random([batch, CLASSES], Distribution::Default, &device);
        let mut cases = cases(width, depth, &device);
        let mut times = vec![Vec::new(); cases.len()];
        for round in 0..rounds {
            for (case, times) in cases.iter_mut().zip(&mut times) {
                let start = Instant::now();
                case.step(&input, &target);
                device.sync().expect("the device answers");
                // The first steps allocate and compile.
                if round > 2 {
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
        let ratio = |times: &[f64], others: &[f64]| {
            median(times.iter().zip(others).map(|(a, b)| a / b).collect())
        };
        for (case, own) in cases.iter().zip(&times) {
            println!(
                "| {depth} layers of {width}, batch {batch} | {} | {:.3} | {:.2} | {:.2} |",
                case.name,
                median(own.clone()),
                ratio(own, &times[0]),
                ratio(own, &times[1]),
            );
        }
    }
}
