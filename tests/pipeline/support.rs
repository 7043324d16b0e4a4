//! What the tests of the pipeline share: a model, overflows at chosen steps, and a pipeline that trains it.

pub use burn_amp_tests::run::{Net, adam, sgd};
pub use burn_amp_tests::{prelude::*, stored as parameters};

/// A network whose values are the same in every run, with ids of its own.
pub fn net(amp: &MixedPrecision) -> Net {
    let ids = ParamId::new().val() as usize / 2;
    let fresh = fill_with_ids(Net::new(&device()), ids, 1.0);
    amp.attach(fill(fresh, 0, 1.0))
}

/// f16 at a loss scale of 1024 that grows after so many finite steps.
pub fn growing(interval: u32) -> MixedPrecision {
    f16_under(at_scale(1024.0).with_growth_interval(interval))
}

/// A pipeline and the network that it trains.
pub struct Trial<O = ModuleOptimizer> {
    pub amp: MixedPrecision,
    pub optim: PipelinedOptimizer<O>,
    pub net: Net,
    pub lr: f64,
}

/// The loss of an iteration.
pub fn loss(net: &Net, amp: &MixedPrecision, step: usize) -> Tensor<1> {
    let input = random::<2>(100 * step, [2, 6], &device());
    let output = amp.autocast(input, |x| net.forward(x));
    output.square().mean()
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

    /// Of an iteration whose loss is multiplied by this: 1e6 overflows at the present scale, and at many others.
    pub fn gradients(&self, step: usize, factor: f64) -> GradientsParams {
        let loss = loss(&self.net, &self.amp, step) * factor;
        GradientsParams::from_grads(loss.backward(), &self.net)
    }

    pub fn step(&mut self, step: usize, overflow: bool) {
        let grads = self.gradients(step, if overflow { 1e6 } else { 1.0 });
        self.try_step(grads).unwrap();
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

    /// The error of a step that must fail, and leaves the network as it was.
    pub fn refused(&mut self, step: usize) -> AmpError {
        let before = self.parameters();
        let error = self.try_step(self.gradients(step, 1.0)).unwrap_err();
        assert!(self.parameters() == before);
        error
    }

    pub fn synchronize(&mut self) {
        self.net = self.optim.synchronize(self.net.clone()).unwrap();
    }

    /// The scaler's, of all steps.
    pub fn counters(&self) -> StepCounters {
        self.optim.synchronized_scaler().counters()
    }

    pub fn parameters(&self) -> Vec<(DType, Vec<u8>)> {
        parameters(&self.net)
    }
}
