//! What the tests of the pipeline share: a model, overflows at chosen steps, and the pipeline on one thread.

use burn_amp_tests::fill;
use burn_amp_tests::prelude::*;

pub use burn_amp_tests::stored as parameters;

#[derive(Module, Debug)]
pub struct Net {
    pub hidden: Linear,
    pub head: Linear,
}

/// Where the networks are: the device that `BURN_DEVICE` names.
pub fn training_device() -> Device {
    Device::default().autodiff()
}

impl Net {
    /// The same values in every run.
    pub fn new(amp: &MixedPrecision) -> Self {
        let device = training_device();
        let net = Self {
            hidden: LinearConfig::new(3, 4).init(&device),
            head: LinearConfig::new(4, 2).init(&device),
        };
        fill(net, 0, 1.0).apply_reparameterization(amp.clone())
    }

    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.head.forward(tanh(self.hidden.forward(input)))
    }
}

/// Numbers from -1 to 1, which vary so little from step to step that no guard holds one back.
pub fn values(seed: usize, count: usize) -> Vec<f32> {
    let value = |i: usize| (((seed + i) * 7919) % 1000) as f32 / 500.0 - 1.0;
    (0..count).map(value).collect()
}

/// The gradients of one iteration. One with `overflow` is that of a loss too large for the present scale, and for many others.
pub fn gradients(amp: &MixedPrecision, net: &Net, step: usize, overflow: bool) -> GradientsParams {
    let device = training_device();
    let input = TensorData::new(values(100 * step, 6), [2, 3]);
    let input = Tensor::<2>::from_data(input, &device);
    let output = amp.autocast(input, |x| net.forward(x));
    let factor = if overflow { 1e6 } else { 1.0 };
    let loss = (output.square().mean()) * factor;
    GradientsParams::from_grads(loss.backward(), net)
}

/// What one thread would do: the optimizer's side at once, and the training's side a call behind.
pub struct Simulation<O> {
    amp: MixedPrecision,
    optim: ScaledOptimizer<O>,
    masters: Net,
    dtype: FloatDType,
    /// What the last update has made of the masters, and of the loss scale.
    reached: Option<(Net, f64)>,
}

impl<O: ModuleOptim> Simulation<O> {
    /// `optim` has a loss scale of its own, with the settings of that of `amp`.
    pub fn new(amp: &MixedPrecision, optim: ScaledOptimizer<O>, net: &Net) -> Self {
        Self {
            amp: amp.clone(),
            optim,
            masters: to_full(net.clone()).fork(&Device::flex().autodiff()),
            dtype: net.head.weight.base().dtype().into(),
            reached: None,
        }
    }

    pub fn optim(&self) -> &ScaledOptimizer<O> {
        &self.optim
    }

    /// The masters, after a step with the window as it is.
    pub fn flush(&mut self, lr: impl Into<ModuleLearningRate>) -> &Net {
        self.masters = self.optim.flush(lr, self.masters.clone());
        &self.masters
    }

    /// A step of the pipeline: the module to be computed with next.
    pub fn step(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        net: Net,
        grads: GradientsParams,
    ) -> Net {
        let next = self.synchronize(net);
        self.micro_batch(lr, grads);
        let scale = f64::from(self.optim.scaler().loss_scale());
        self.reached = Some((self.masters.clone(), scale));
        next
    }

    /// What the optimizer takes without an update.
    pub fn micro_batch(&mut self, lr: impl Into<ModuleLearningRate>, grads: GradientsParams) {
        let grads = grads.to_device(&Device::flex(), &self.masters);
        self.masters = self.optim.step(lr, self.masters.clone(), grads);
    }

    pub fn synchronize(&mut self, net: Net) -> Net {
        match self.reached.take() {
            None => net,
            Some((masters, scale)) => {
                let mut scaler = GradScaler::from(&self.amp);
                scaler.set_loss_scale(scale).unwrap();
                let masters = masters.fork(&training_device());
                match self.dtype {
                    FloatDType::F32 => masters,
                    half => to_half(masters, half, &[]),
                }
            }
        }
    }
}

/// A precision, an optimizer, a network.
type Side<O> = (MixedPrecision, O, Net);

/// A pipeline, and one thread that is to do the same, each with a `MixedPrecision` of its own.
pub fn both<O>(
    precision: impl Fn() -> MixedPrecision,
    optim: impl Fn(&MixedPrecision) -> ScaledOptimizer<O>,
) -> (Side<PipelinedOptimizer<O>>, Side<Simulation<O>>)
where
    O: ModuleOptim + Send + 'static,
{
    let amp = precision();
    let pipelined = PipelinedOptimizer::new(optim(&amp), Device::flex()).unwrap();
    let here = (amp.clone(), pipelined, Net::new(&amp));
    let amp = precision();
    let net = Net::new(&amp);
    // A scale that no scope uses.
    let simulation = Simulation::new(&amp, optim(&precision()), &net);
    (here, (amp, simulation, net))
}
