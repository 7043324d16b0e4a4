//! A training run in f16 with overflows, an accumulation window, clipping and averages.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, FloatDType, Tensor, TensorData, activation::tanh},
};
use burn_amp::{
    AccumulationConfig, EmaConfig, GradScaler, GradScalerConfig, GradientClip, MixedPrecision,
    ModuleOptim, ScaledOptimizer, StepCounters, to_half,
};
use std::{collections::BTreeMap, path::Path};

use super::{
    Pack,
    bits::{Values, pack, parameters},
    filled, wave,
};

/// Micro-batches whose loss is infinite, beside those at which the growing scale overflows by itself.
const INFINITE: [usize; 5] = [4, 16, 31, 40, 41];

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    head: Linear,
}

impl Net {
    fn new() -> Self {
        let device = Device::default().autodiff();
        let net = Self {
            hidden: LinearConfig::new(6, 8).init(&device),
            head: LinearConfig::new(8, 2).init(&device),
        };
        filled(net, 0)
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.head.forward(tanh(self.hidden.forward(input)))
    }
}

fn settings() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_init_scale(2f64.powi(16))
        .with_growth_interval(5)
}

/// A model, its optimizer and the number of micro-batches done.
pub struct Run<O> {
    net: Net,
    pub optim: ScaledOptimizer<O>,
    done: usize,
}

/// All that makes up the state of a run.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    pub parameters: BTreeMap<String, (u64, Values)>,
    pub averaged: BTreeMap<String, (u64, Values)>,
    pub record: Pack,
    pub counters: StepCounters,
    pub scale: f32,
    pub window: u32,
}

impl<O: ModuleOptim> Run<O> {
    /// f32 parameters, computed with in f16; the loss scale at the border.
    pub fn mixed(optim: O, rule: bool) -> Self {
        let amp = MixedPrecision::f16().with_scaler(settings()).unwrap();
        let net = Net::new().apply_reparameterization(amp.clone());
        Self::new(net, optim, &amp, rule)
    }

    /// f16 parameters, and a scaler that scales the loss.
    pub fn half(optim: O, rule: bool) -> Self {
        let net = to_half(Net::new(), FloatDType::F16, &[]);
        Self::new(net, optim, settings().init().unwrap(), rule)
    }

    fn new(net: Net, optim: O, scaler: impl Into<GradScaler>, rule: bool) -> Self {
        let ema = EmaConfig::new()
            .with_momentum(0.9)
            .with_overwrite_frequency(Some(11));
        let optim = ScaledOptimizer::new(optim, scaler)
            .with_accumulation(AccumulationConfig::new(3).with_skip_micro_batch(rule))
            .unwrap()
            .with_clipping(GradientClip::GlobalNorm(0.3))
            .unwrap()
            .with_ema(ema)
            .unwrap();
        Self {
            net,
            optim,
            done: 0,
        }
    }

    /// Goes on until so many micro-batches are done.
    pub fn train_until(&mut self, end: usize) {
        let device = Device::default().autodiff();
        while self.done < end {
            let seed = 100 * self.done;
            let input = Tensor::<2>::from_data(TensorData::new(wave(seed, 24), [4, 6]), &device);
            let target = Tensor::<2>::from_data(TensorData::new(wave(seed, 8), [4, 2]), &device);
            let amp = self.optim.scaler().precision().cloned();
            let output = match &amp {
                Some(amp) => amp.autocast(input, |x| self.net.forward(x)),
                None => (self.net.forward(input.cast(FloatDType::F16))).cast(FloatDType::F32),
            };
            let mut loss = (output - target).square().mean();
            if INFINITE.contains(&self.done) {
                loss = loss.mul_scalar(f32::INFINITY);
            }
            let net = self.net.clone();
            self.net = match amp {
                Some(_) => {
                    let grads = GradientsParams::from_grads(loss.backward(), &net);
                    self.optim.step(0.05, net, grads)
                }
                None => {
                    let grads = self.optim.backward(loss, &net);
                    self.optim.step(0.05, net, grads)
                }
            };
            self.done += 1;
        }
    }

    pub fn save(&self, folder: &Path) {
        self.net.clone().save_file(folder.join("model")).unwrap();
        self.optim.save(folder.join("optim")).unwrap();
    }

    /// Loads what was saved after so many micro-batches.
    pub fn load(&mut self, folder: &Path, done: usize) {
        self.net = self.net.clone().load_file(folder.join("model"));
        self.optim.load(folder.join("optim")).unwrap();
        self.done = done;
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            parameters: parameters(&self.net),
            averaged: parameters(&self.optim.ema().unwrap().module(&self.net)),
            record: pack(self.optim.into_bytes().unwrap()),
            counters: *self.optim.scaler().counters(),
            scale: self.optim.scaler().loss_scale(),
            window: self.optim.window().unwrap().len(),
        }
    }
}
