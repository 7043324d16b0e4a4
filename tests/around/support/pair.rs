//! Two parameters with ids that are the same in every run, and gradients made by hand.

use super::*;

#[derive(Module, Debug)]
pub struct Pair {
    pub weight: Param<Tensor<2>>,
    pub bias: Param<Tensor<1>>,
}

/// Those of the weight, and those of the bias.
pub type Values = ([f32; 6], [f32; 4]);

/// The same everywhere.
pub fn all(value: f32) -> Values {
    ([value; 6], [value; 4])
}

/// Zeros but for the first of the weight: what the norm of such gradients is.
pub fn norm(value: f32) -> Values {
    ([value, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0; 4])
}

impl Pair {
    /// All zeros.
    pub fn zeros(dtype: DType) -> Self {
        Self::of(0.0, dtype)
    }

    /// The same value everywhere.
    pub fn of(value: f32, dtype: DType) -> Self {
        Self::new(vec![value; 6], vec![value; 4], dtype)
    }

    /// A weight of shape `[2, 3]` and a bias of shape `[4]`.
    pub fn new(weight: Vec<f32>, bias: Vec<f32>, dtype: DType) -> Self {
        let device = (&Device::default().autodiff(), dtype);
        let weight = Tensor::from_data(TensorData::new(weight, [2, 3]), device);
        let bias = Tensor::from_data(TensorData::new(bias, [4]), device);
        Self {
            weight: Param::initialized(ParamId::from(2001), weight.require_grad()),
            bias: Param::initialized(ParamId::from(2002), bias.require_grad()),
        }
    }

    /// Gradients of these values, of a loss that was multiplied by `scale`.
    pub fn gradients(&self, (weight, bias): Values, scale: f32) -> ScaledGradients {
        let dtype = self.weight.val().dtype();
        let device = (&Device::default(), dtype);
        let weight = TensorData::new(weight.map(|value| value * scale).to_vec(), [2, 3]);
        let bias = TensorData::new(bias.map(|value| value * scale).to_vec(), [4]);
        let mut grads = GradientsParams::new();
        grads.register(self.weight.id, Tensor::<2>::from_data(weight, device));
        grads.register(self.bias.id, Tensor::<1>::from_data(bias, device));
        let scaler = at_scale(scale.into()).with_dynamic(false);
        scaled_by_hand(&scaler.init().unwrap(), grads)
    }

    /// All values: the weight's, then the bias's.
    pub fn values(&self) -> Vec<f32> {
        [values(self.weight.val()), values(self.bias.val())].concat()
    }
}

/// An optimizer and its model, at a learning rate of 1.
#[derive(Clone)]
pub struct Trial<O = ModuleOptimizer> {
    pub optim: ScaledOptimizer<O>,
    pub model: Pair,
}

impl<O: ModuleOptim> Trial<O> {
    /// A model of zeros.
    pub fn new(optim: ScaledOptimizer<O>) -> Self {
        let model = Pair::zeros(DType::F32);
        Self { optim, model }
    }

    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.model = Pair::zeros(dtype);
        self
    }

    /// Gradients of these values at the present loss scale.
    pub fn gradients(&self, values: Values) -> ScaledGradients {
        self.model.gradients(values, self.scale())
    }

    /// The same, unscaled.
    pub fn unscaled(&mut self, values: Values) -> UnscaledGradients {
        let grads = self.gradients(values);
        self.optim.unscale(grads, &self.model).unwrap()
    }

    /// A step, or a micro-batch, with such gradients.
    pub fn step(&mut self, values: Values) {
        self.take(self.gradients(values));
    }

    pub fn take(&mut self, grads: ScaledGradients) {
        self.model = self.optim.step(1.0, self.model.clone(), grads);
    }

    pub fn take_unscaled(&mut self, grads: UnscaledGradients) {
        self.model = self.optim.step(1.0, self.model.clone(), grads);
    }

    /// A step with Burn's own gradients.
    pub fn take_plain(&mut self, grads: GradientsParams) {
        self.model = self.optim.step(1.0, self.model.clone(), grads);
    }

    /// The error of a step that must fail, and leaves the model as it was.
    pub fn refused(&mut self, values: Values) -> AmpError {
        let (grads, before) = (self.gradients(values), self.values());
        let failed = self.optim.try_step(1.0, self.model.clone(), grads);
        let failed = failed.unwrap_err();
        assert_eq!(failed.module.values(), before);
        failed.error
    }

    /// Steps with what the window holds.
    pub fn flush(&mut self) {
        self.model = self.optim.flush(1.0, self.model.clone());
    }

    pub fn scale(&self) -> f32 {
        self.optim.scaler().loss_scale()
    }

    pub fn counters(&self) -> StepCounters {
        self.optim.scaler().counters()
    }

    pub fn outcome(&self) -> Option<StepOutcome> {
        self.optim.scaler().last_outcome()
    }

    pub fn status(&self) -> GradientStatus {
        self.optim.scaler().last_status().unwrap()
    }

    /// How many micro-batches are in the window.
    pub fn len(&self) -> u32 {
        self.optim.window().unwrap().len()
    }

    pub fn values(&self) -> Vec<f32> {
        self.model.values()
    }

    /// The averages of the weights.
    pub fn averages(&self) -> Vec<f32> {
        self.optim.ema().unwrap().module(&self.model).values()
    }

    /// All that a record of it holds.
    pub fn record(&mut self) -> Pack {
        pack(self.optim.into_bytes().unwrap())
    }
}

/// Whether the device under test is Flex, whose memory tests can look at and whose sums are in f64.
pub fn on_flex() -> bool {
    format!("{:?}", Device::default()).contains("Flex")
}

/// The values of a tensor as f32.
pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Plain SGD at a loss scale of 1024 that grows after two finite steps.
pub fn sgd() -> ScaledOptimizer<ModuleOptimizer> {
    sgd_under(at_scale(1024.0).with_growth_interval(2))
}

/// Plain SGD with f32 copies.
pub fn masters(settings: GradScalerConfig) -> ScaledOptimizer<MasterWeights> {
    let inner = MasterWeights::new(SgdConfig::new().build());
    ScaledOptimizer::new(inner, settings.init().unwrap())
}

/// Why the first step of an optimizer is refused.
pub fn first_error(optim: ScaledOptimizer) -> AmpError {
    Trial::new(optim).refused(all(1.0))
}
