//! A training run in f16 with overflows, an accumulation window, clipping and averages.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, FloatDType, Tensor, TensorData, activation::tanh},
};
use burn_amp::{
    AccumulationConfig, EmaConfig, GradScalerConfig, GradientClip, MixedPrecision, OverflowRule,
    RecordOptim, ScaledOptimizer, StepCounters, to_half,
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

impl<O: RecordOptim> Run<O> {
    /// f32 parameters, computed with in f16.
    pub fn mixed(optim: O, rule: OverflowRule) -> Self {
        Self::new(
            Net::new().apply_reparameterization(MixedPrecision::f16()),
            optim,
            rule,
        )
    }

    /// f16 parameters.
    pub fn half(optim: O, rule: OverflowRule) -> Self {
        Self::new(to_half(Net::new(), FloatDType::F16, &[]), optim, rule)
    }

    fn new(net: Net, optim: O, rule: OverflowRule) -> Self {
        let scaler = GradScalerConfig::new()
            .with_init_scale(2f64.powi(16))
            .with_growth_interval(5);
        let ema = EmaConfig::new()
            .with_momentum(0.9)
            .with_overwrite_frequency(Some(7));
        let optim = ScaledOptimizer::new(optim, scaler.init().unwrap())
            .with_accumulation(AccumulationConfig::new(3).with_overflow(rule))
            .unwrap()
            .with_clipping(GradientClip::by_global_norm(0.3).unwrap())
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
            let hidden = tanh(self.net.hidden.forward(input.cast(FloatDType::F16)));
            let output = self.net.head.forward(hidden).cast(FloatDType::F32);
            let mut loss = (output - target).square().mean();
            if INFINITE.contains(&self.done) {
                loss = loss.mul_scalar(f32::INFINITY);
            }
            let grads = self.optim.backward(loss, &self.net);
            self.net = self.optim.step(0.05, self.net.clone(), grads);
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
