//! Two parameters with ids that are the same in every run, and gradients made by hand.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;

#[derive(Module, Debug)]
pub struct Pair {
    pub weight: Param<Tensor<2>>,
    pub bias: Param<Tensor<1>>,
}

impl Pair {
    /// All zeros.
    pub fn zeros(dtype: DType) -> Self {
        Self::new(vec![0.0; 6], vec![0.0; 4], dtype)
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
    pub fn gradients(&self, weight: [f32; 6], bias: [f32; 4], scale: f32) -> ScaledGradients {
        let dtype = self.weight.val().dtype();
        let device = (&Device::default(), dtype);
        let weight = TensorData::new(weight.map(|value| value * scale).to_vec(), [2, 3]);
        let bias = TensorData::new(bias.map(|value| value * scale).to_vec(), [4]);
        let mut grads = GradientsParams::new();
        grads.register(self.weight.id, Tensor::<2>::from_data(weight, device));
        grads.register(self.bias.id, Tensor::<1>::from_data(bias, device));
        let scaler = GradScalerConfig::new()
            .with_init_scale(scale.into())
            .with_dynamic(false);
        scaled_by_hand(&scaler.init().unwrap(), grads)
    }

    /// All values: the weight's, then the bias's.
    pub fn values(&self) -> Vec<f32> {
        let mut all = values(self.weight.val());
        all.extend(values(self.bias.val()));
        all
    }
}

/// An optimizer and its model, at a learning rate of 1.
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
    pub fn gradients(&self, (weight, bias): ([f32; 6], [f32; 4])) -> ScaledGradients {
        self.model.gradients(weight, bias, self.scale())
    }

    /// A step, or a micro-batch, with such gradients.
    pub fn step(&mut self, values: ([f32; 6], [f32; 4])) {
        let grads = self.gradients(values);
        self.model = self.optim.step(1.0, self.model.clone(), grads);
    }

    /// The error of a step that must fail, and leaves the model as it was.
    pub fn refused(&mut self, values: ([f32; 6], [f32; 4])) -> AmpError {
        let grads = self.gradients(values);
        let failed = self.optim.try_step(1.0, self.model.clone(), grads);
        failed.unwrap_err().error
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

    /// How many micro-batches are in the window.
    pub fn len(&self) -> u32 {
        self.optim.window().unwrap().len()
    }

    pub fn values(&self) -> Vec<f32> {
        self.model.values()
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

/// Plain SGD at a loss scale of 1024 that grows after two clean steps.
pub fn sgd() -> ScaledOptimizer<ModuleOptimizer> {
    let scaler = GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(2);
    ScaledOptimizer::new(SgdConfig::new().init(), scaler.init().unwrap())
}
