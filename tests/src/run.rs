//! A training run in f16 with overflows, which can be saved in the middle of it.

use crate::prelude::*;
use burn_amp::hook::Hook;
use burn_amp_core::internal::StepGradients;

/// Steps whose loss is infinite, beside those at which the growing scale overflows by itself.
const INFINITE: [usize; 5] = [4, 16, 31, 40, 41];

/// Two layers and a norm, from 6 numbers to 2.
#[derive(Module, Debug)]
pub struct Net {
    /// To 8 numbers.
    pub hidden: Linear,
    /// Of these.
    pub norm: LayerNorm,
    /// To 2.
    pub head: Linear,
}

impl Net {
    /// The same values in every run, and the same ids.
    pub fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        let (hidden, head) = (linear(6, 8), linear(8, 2));
        let norm = LayerNormConfig::new(8).init(device);
        fill_with_ids(Self { hidden, norm, head }, 0, 0.7)
    }

    /// In half precision or in a scope, with a norm in f32 unless that is stored in half precision itself.
    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = tanh(self.hidden.forward(input));
        let hidden = match self.norm.gamma.base().dtype() {
            DType::F32 => in_f32(hidden, |x| self.norm.forward(x)),
            _ => self.norm.forward(hidden),
        };
        self.head.forward(hidden)
    }
}

fn settings() -> GradScalerConfig {
    at_scale(2f64.powi(16)).with_growth_interval(5)
}

/// A model, its optimizer and the number of steps, or of micro-batches, done.
pub struct Run<O> {
    net: Net,
    /// With all that stands around its step.
    pub optim: ScaledOptimizer<O>,
    done: usize,
}

/// All that makes up the state of a run.
#[derive(Debug, PartialEq)]
pub struct Snapshot {
    /// By path, with their ids.
    pub parameters: BTreeMap<String, (u64, Values)>,
    /// Their averages, if it has any.
    pub averaged: Option<BTreeMap<String, (u64, Values)>>,
    /// The optimizer's record.
    pub record: Pack,
    /// Of all steps.
    pub counters: StepCounters,
    /// The loss scale.
    pub scale: f32,
    /// How many micro-batches are in the open window.
    pub window: u32,
}

impl<O: ModuleOptim> Run<O> {
    /// f32 parameters, computed with in f16, `norm` excepted; the loss scale at the border.
    pub fn mixed(optim: O) -> Self {
        Self::at_border(optim, settings().schedule().unwrap())
    }

    /// As [`mixed`](Self::mixed), with a loss scale of the caller's.
    pub fn at_border(optim: O, schedule: LossScale) -> Self {
        let amp = MixedPrecision::f16().with_schedule(schedule).unwrap();
        let net = Net::new(&device()).apply_reparameterization(amp.clone());
        Self::new(net, optim, &amp)
    }

    /// f16 parameters, `norm` excepted, and a scaler that scales the loss.
    pub fn half(optim: O) -> Self {
        let norm = ParamGroup::from_predicate("norm");
        let net = to_half(Net::new(&device()), FloatDType::F16, &[norm]);
        Self::new(net, optim, GradScaler::new(settings()).unwrap())
    }

    fn new(net: Net, optim: O, scaler: impl Into<Scaler>) -> Self {
        let (optim, done) = (ScaledOptimizer::new(optim, scaler), 0);
        Self { net, optim, done }
    }

    /// With clipping, averages, and windows of three micro-batches, of which those that overflow are left out or not.
    pub fn with_all(mut self, skip_micro_batch: bool) -> Self {
        let window = AccumulationConfig::new(3).with_skip_micro_batch(skip_micro_batch);
        let ema = EmaConfig::new().with_momentum(0.9);
        let optim = self.optim.with_accumulation(window);
        let clipped = optim.with_clipping(GradientClip::GlobalNorm(0.3));
        self.optim = clipped.with_ema(ema.with_overwrite_frequency(Some(11)));
        self
    }

    /// With a hook of the test's own.
    pub fn with_hook(mut self, hook: impl Hook + Clone) -> Self {
        self.optim = self.optim.with_hook(hook);
        self
    }

    /// Goes on until so many steps, or micro-batches, are done.
    pub fn train_until(&mut self, end: usize) {
        while self.done < end {
            let data = |shape: [usize; 2]| {
                let values = wave(100 * self.done, shape.iter().product(), 0.7);
                Tensor::<2>::from_data(TensorData::new(values, shape), &device())
            };
            let (input, target) = (data([4, 6]), data([4, 2]));
            let amp = self.optim.scaler().precision().cloned();
            let output = match &amp {
                Some(amp) => amp.autocast(input, |x| self.net.forward(x)),
                None => (self.net.forward(input.cast(FloatDType::F16))).cast(FloatDType::F32),
            };
            let mut loss = (output - target).square().mean();
            if INFINITE.contains(&self.done) {
                loss = loss.mul_scalar(f32::INFINITY);
            }
            let grads: StepGradients = match amp {
                Some(_) => GradientsParams::from_grads(loss.backward(), &self.net).into(),
                None => self.optim.backward(loss, &self.net).into(),
            };
            self.net = self.optim.step(0.05, self.net.clone(), grads);
            self.done += 1;
        }
    }

    /// Writes model and optimizer to two files.
    pub fn save(&mut self, folder: &Path) {
        self.net.clone().save_file(folder.join("model")).unwrap();
        self.optim.save(folder.join("optim")).unwrap();
    }

    /// Loads what was saved after so many steps.
    pub fn load(&mut self, folder: &Path, done: usize) {
        self.net = self.net.clone().load_file(folder.join("model"));
        self.optim.load(folder.join("optim")).unwrap();
        self.done = done;
    }

    /// The state as it is now.
    pub fn snapshot(&mut self) -> Snapshot {
        let ema = self.optim.ema();
        Snapshot {
            parameters: parameters(&self.net),
            averaged: ema.map(|ema| parameters(&ema.module(&self.net))),
            record: contents(&mut self.optim),
            counters: self.optim.scaler().counters(),
            scale: self.optim.scaler().loss_scale(),
            window: self.optim.window().map_or(0, |window| window.len()),
        }
    }
}

/// Burn's Adam on the loss scale of this handle.
pub fn adam(amp: &MixedPrecision) -> ScaledOptimizer {
    ScaledOptimizer::new(AdamConfig::new().init(), amp)
}

/// And its SGD.
pub fn sgd(amp: &MixedPrecision) -> ScaledOptimizer {
    ScaledOptimizer::new(SgdConfig::new().init(), amp)
}

/// Goes to `end` at one go, and again from what was saved at `stop`, with new objects: the same in every bit. The state at the stop,
/// and at the end.
pub fn resumed<O: ModuleOptim>(
    folder: &Path,
    build: impl Fn() -> Run<O>,
    stop: usize,
    end: usize,
) -> [Snapshot; 2] {
    let mut straight = build();
    straight.train_until(stop);
    straight.save(folder);
    let half = straight.snapshot();
    straight.train_until(end);
    let whole = straight.snapshot();

    let mut resumed = build();
    resumed.load(folder, stop);
    assert_eq!(resumed.snapshot(), half, "loaded at {stop}");
    resumed.train_until(end);
    assert_eq!(resumed.snapshot(), whole, "stopped at {stop}");
    [half, whole]
}
