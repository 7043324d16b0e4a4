//! What the tests of the pipeline share: a model, overflows at chosen steps, a pipeline that trains it, and the same on one thread.

pub use burn_amp_tests::run::{Net, adam, sgd};
pub use burn_amp_tests::{prelude::*, stored as parameters};

/// A network whose values are the same in every run, with ids of its own.
pub fn net(amp: &MixedPrecision) -> Net {
    let ids = ParamId::new().val() as usize / 2;
    let fresh = fill_with_ids(Net::new(&device()), ids, 1.0);
    amp.attach(fill(fresh, 0, 1.0))
}

/// Numbers from -1 to 1, which vary so little from step to step that no guard holds one back.
pub fn values(seed: usize, count: usize) -> Vec<f32> {
    let value = |i: usize| (((seed + i) * 7919) % 1000) as f32 / 500.0 - 1.0;
    (0..count).map(value).collect()
}

/// What a network stores, and the loss scale.
pub type State = (Vec<(DType, Vec<u8>)>, f32);

/// The gradients of one iteration. One with `overflow` is that of a loss too large for the present scale, and for many others.
pub fn gradients(amp: &MixedPrecision, net: &Net, step: usize, overflow: bool) -> GradientsParams {
    let input = TensorData::new(values(100 * step, 12), [2, 6]);
    let input = Tensor::<2>::from_data(input, &device());
    let output = amp.autocast(input, |x| net.forward(x));
    let factor = if overflow { 1e6 } else { 1.0 };
    let loss = output.square().mean() * factor;
    GradientsParams::from_grads(loss.backward(), net)
}

/// A pipeline and the network that it trains.
pub struct Trial<O = ModuleOptimizer> {
    pub amp: MixedPrecision,
    pub optim: PipelinedOptimizer<O>,
    pub net: Net,
    pub lr: f64,
}

impl<O: ModuleOptim + Send + 'static> Trial<O> {
    /// With the loss scale of `amp`, at a learning rate of 0.01.
    pub fn new(
        amp: MixedPrecision,
        optim: impl FnOnce(&MixedPrecision) -> ScaledOptimizer<O>,
    ) -> Self {
        Self {
            optim: PipelinedOptimizer::new(optim(&amp), Device::flex()).unwrap(),
            net: net(&amp),
            amp,
            lr: 1e-2,
        }
    }

    /// Of an iteration in which nothing overflows.
    pub fn gradients(&self, step: usize) -> GradientsParams {
        gradients(&self.amp, &self.net, step, false)
    }

    pub fn step(&mut self, step: usize, overflow: bool) {
        let grads = gradients(&self.amp, &self.net, step, overflow);
        self.net = self.optim.step(self.lr, self.net.clone(), grads);
    }

    /// Goes on with the network that a step gives back, one that fails too.
    pub fn try_step(&mut self, grads: GradientsParams) -> Result<(), AmpError> {
        let stepped = self.optim.try_step(self.lr, self.net.clone(), grads);
        let (net, result) = match stepped {
            Ok(net) => (net, Ok(())),
            Err(failed) => (*failed.module, Err(failed.error)),
        };
        self.net = net;
        result
    }

    pub fn synchronize(&mut self) {
        self.net = self.optim.synchronize(self.net.clone()).unwrap();
    }

    /// The scaler's, of all steps.
    pub fn counters(&self) -> StepCounters {
        self.optim.synchronized_scaler().counters()
    }

    pub fn state(&self) -> State {
        (parameters(&self.net), self.amp.loss_scale())
    }
}

/// What one thread would do: the optimizer's side at once, and the training's side a call behind.
pub struct Simulation<O> {
    amp: MixedPrecision,
    pub optim: ScaledOptimizer<O>,
    pub net: Net,
    masters: Net,
    /// What the last update has made of the masters, and of the loss scale.
    reached: Option<(Net, f64)>,
}

impl<O: ModuleOptim> Simulation<O> {
    /// `optim` has a loss scale of its own, with the settings of that of `amp`.
    fn new(amp: MixedPrecision, optim: ScaledOptimizer<O>) -> Self {
        let net = net(&amp);
        Self {
            optim,
            masters: net.clone().fork(&Device::flex().autodiff()),
            net,
            amp,
            reached: None,
        }
    }

    /// The masters, after a step with the window as it is.
    pub fn flush(&mut self, lr: f64) -> &Net {
        self.masters = self.optim.flush(lr, self.masters.clone());
        &self.masters
    }

    /// A step of the pipeline. After an update, which a micro-batch of an open window is not, the network is the one to be computed with
    /// next.
    pub fn step(&mut self, lr: f64, step: usize, overflow: bool) {
        let grads = gradients(&self.amp, &self.net, step, overflow);
        let grads = grads.to_device(&Device::flex(), &self.masters);
        self.masters = self.optim.step(lr, self.masters.clone(), grads);
        if self.optim.window().is_none_or(|window| window.is_empty()) {
            self.synchronize();
            let scale = f64::from(self.optim.scaler().loss_scale());
            self.reached = Some((self.masters.clone(), scale));
        }
    }

    pub fn synchronize(&mut self) {
        if let Some((masters, scale)) = self.reached.take() {
            let mut scaler = GradScaler::from(&self.amp);
            scaler.set_loss_scale(scale).unwrap();
            self.net = masters.fork(&device());
        }
    }

    pub fn state(&self) -> State {
        (parameters(&self.net), self.amp.loss_scale())
    }
}

/// A pipeline, and one thread that is to do the same, each with a `MixedPrecision` of its own.
pub fn both<O: ModuleOptim + Send + 'static>(
    precision: impl Fn() -> MixedPrecision,
    optim: impl Fn(&MixedPrecision) -> ScaledOptimizer<O>,
) -> (Trial<O>, Simulation<O>) {
    // The simulation steps with a scale that no scope uses.
    let simulation = Simulation::new(precision(), optim(&precision()));
    (Trial::new(precision(), optim), simulation)
}

/// A loss scale of 1024 that grows after so many finite steps.
pub fn growing(interval: u32) -> GradScalerConfig {
    at_scale(1024.0).with_growth_interval(interval)
}
