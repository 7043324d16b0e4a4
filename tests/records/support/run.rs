//! A training run in f16, with overflows, that can be saved and resumed.

use burn::{
    module::{Module, ModuleMapper, Param, ParamGroup},
    nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, FloatDType, Tensor, TensorData, activation::tanh},
};
use burn_amp::{
    GradScaler, GradScalerConfig, MixedPrecision, ModuleOptim, ScaledOptimizer, Schedule,
    StepCounters, in_f32, to_half,
};
use std::{collections::BTreeMap, path::Path};

use super::{Pack, bits::Values, pack, parameters};

/// The length of a run.
pub const STEPS: usize = 60;

/// Steps whose loss is infinite, beside those at which the growing scale overflows by itself.
const INFINITE: [usize; 4] = [5, 17, 38, 39];

#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    norm: LayerNorm,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let net = Self {
            hidden: LinearConfig::new(6, 8).init(device),
            norm: LayerNormConfig::new(8).init(device),
            head: LinearConfig::new(8, 2).init(device),
        };
        net.map(&mut Fill(0))
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = tanh(self.hidden.forward(input));
        let hidden = in_f32(hidden, |x| self.norm.forward(x));
        self.head.forward(hidden)
    }
}

struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device) = (param.shape(), param.device());
        self.0 += 1000;
        let data = TensorData::new(wave(self.0, shape.num_elements()), shape);
        param.map(|_| Tensor::from_data(data, &device).require_grad())
    }
}

fn wave(from: usize, count: usize) -> Vec<f32> {
    let value = |index: usize| (12.9898 * (index as f32 + 1.0)).sin() * 0.7;
    (from..from + count).map(value).collect()
}

/// Too large at first, and soon again.
fn settings() -> GradScalerConfig {
    GradScalerConfig::new()
        .with_init_scale(2f64.powi(22))
        .with_growth_interval(5)
}

/// A model, its optimizer and the number of steps done.
pub struct Run<O> {
    net: Net,
    optim: ScaledOptimizer<O>,
    step: usize,
}

/// All that makes up the state of a run.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    pub parameters: BTreeMap<String, (u64, Values)>,
    pub optimizer: Pack,
    pub counters: StepCounters,
    pub scale: f32,
}

impl<O: ModuleOptim> Run<O> {
    /// f32 parameters, computed with in f16, `norm` excepted; the loss scale at the border.
    pub fn mixed(optim: O) -> Self {
        let amp = MixedPrecision::f16().with_scaler(settings()).unwrap();
        let net = Net::new(&Device::default().autodiff());
        Self::new(net.apply_reparameterization(amp.clone()), optim, &amp)
    }

    /// As [`mixed`](Self::mixed), under another schedule.
    pub fn scheduled(optim: O, schedule: Schedule) -> Self {
        let config = settings().with_schedule(schedule).with_warmup_steps(40);
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        let net = Net::new(&Device::default().autodiff());
        Self::new(net.apply_reparameterization(amp.clone()), optim, &amp)
    }

    /// f16 parameters, `norm` excepted, and a scaler that scales the loss.
    pub fn half(optim: O) -> Self {
        let norm = ParamGroup::from_predicate("norm");
        let net = Net::new(&Device::default().autodiff());
        let net = to_half(net, FloatDType::F16, &[norm]);
        Self::new(net, optim, settings().init().unwrap())
    }

    fn new(net: Net, optim: O, scaler: impl Into<GradScaler>) -> Self {
        Self {
            net,
            optim: ScaledOptimizer::new(optim, scaler),
            step: 0,
        }
    }

    /// Goes on until the step of this number.
    pub fn train_until(&mut self, end: usize) {
        let device = Device::default().autodiff();
        while self.step < end {
            let seed = 100 * self.step;
            let input = Tensor::<2>::from_data(TensorData::new(wave(seed, 24), [4, 6]), &device);
            let target = Tensor::<2>::from_data(TensorData::new(wave(seed, 8), [4, 2]), &device);
            let amp = self.optim.scaler().precision().cloned();
            let output = match &amp {
                Some(amp) => amp.autocast(input, |x| self.net.forward(x)),
                None => (self.net.forward(input.cast(FloatDType::F16))).cast(FloatDType::F32),
            };
            let mut loss = (output - target).square().mean();
            if INFINITE.contains(&self.step) {
                loss = loss.mul_scalar(f32::INFINITY);
            }
            let net = self.net.clone();
            self.net = match amp {
                Some(_) => {
                    let grads = GradientsParams::from_grads(loss.backward(), &net);
                    self.optim.step(0.01, net, grads)
                }
                None => {
                    let grads = self.optim.backward(loss, &net);
                    self.optim.step(0.01, net, grads)
                }
            };
            self.step += 1;
        }
    }

    pub fn save(&self, folder: &Path) {
        self.net.clone().save_file(folder.join("model")).unwrap();
        self.optim.save(folder.join("optim")).unwrap();
    }

    /// Loads what was saved after `step` steps.
    pub fn load(&mut self, folder: &Path, step: usize) {
        self.net = self.net.clone().load_file(folder.join("model"));
        self.optim.load(folder.join("optim")).unwrap();
        self.step = step;
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            parameters: parameters(&self.net),
            optimizer: pack(self.optim.into_bytes().unwrap()),
            counters: *self.optim.scaler().counters(),
            scale: self.optim.scaler().loss_scale(),
        }
    }
}
