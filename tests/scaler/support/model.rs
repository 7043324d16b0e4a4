//! A module with parameters of ranks 1, 2 and 4, and gradients made by hand for it.

use super::*;

#[derive(Module, Debug)]
pub struct Model {
    pub vector: Param<Tensor<1>>,
    pub matrix: Param<Tensor<2>>,
    pub kernel: Param<Tensor<4>>,
}

impl Model {
    pub const VECTOR: [usize; 1] = [5];
    pub const MATRIX: [usize; 2] = [3, 4];
    pub const KERNEL: [usize; 4] = [2, 2, 3, 3];
    /// How many values the parameters have together.
    pub const VALUES: usize = 5 + 12 + 36;

    /// Parameters of 1, in f32.
    pub fn new() -> Self {
        Self::of(DType::F32)
    }

    /// Parameters of 1.
    pub fn of(dtype: DType) -> Self {
        let device = Device::flex().autodiff();
        let options = (&device, dtype);
        Self {
            vector: Param::from_tensor(Tensor::ones(Self::VECTOR, options)),
            matrix: Param::from_tensor(Tensor::ones(Self::MATRIX, options)),
            kernel: Param::from_tensor(Tensor::ones(Self::KERNEL, options)),
        }
    }

    /// Gradients of the parameters' dtype: `value` of the index of each value, counted through the module.
    pub fn gradients(&self, value: impl Fn(usize) -> f64) -> GradientsParams {
        let dtype = self.vector.val().dtype();
        let mut grads = GradientsParams::new();
        // Not in the module's order, which must not matter.
        let matrix = |index| value(Self::VECTOR[0] + index);
        gradient(&mut grads, self.matrix.id, Self::MATRIX, dtype, matrix);
        let kernel = |index| value(5 + 12 + index);
        gradient(&mut grads, self.kernel.id, Self::KERNEL, dtype, kernel);
        gradient(&mut grads, self.vector.id, Self::VECTOR, dtype, &value);
        grads
    }

    /// Gradients of 0.5, of a loss that was multiplied by `scale`; with an infinity in the matrix if `overflow`.
    pub fn scaled(&self, scale: f32, overflow: bool) -> ScaledGradients {
        let value = |index| match overflow && index == 9 {
            true => f64::INFINITY,
            false => 0.5 * f64::from(scale),
        };
        scaled_by_hand(&scaler(scale.into()), self.gradients(value))
    }

    /// Those that are finite.
    pub fn clean(&self, scale: f32) -> ScaledGradients {
        self.scaled(scale, false)
    }

    /// Those that overflow.
    pub fn overflowing(&self, scale: f32) -> ScaledGradients {
        self.scaled(scale, true)
    }

    /// All values, in the module's order.
    pub fn values(&self) -> Vec<f64> {
        let vector = self.vector.val().to_data().iter().collect::<Vec<f64>>();
        let matrix = self.matrix.val().to_data().iter().collect::<Vec<f64>>();
        let kernel = self.kernel.val().to_data().iter().collect::<Vec<f64>>();
        [vector, matrix, kernel].concat()
    }
}

/// Puts a gradient into `grads`, whose values are given by their index.
pub fn gradient<const D: usize>(
    grads: &mut GradientsParams,
    id: ParamId,
    shape: [usize; D],
    dtype: DType,
    value: impl Fn(usize) -> f64,
) {
    let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
    let data = TensorData::new(values, shape).convert_dtype(dtype);
    let device = Device::flex();
    grads.register(id, Tensor::<D>::from_data(data, (&device, dtype)));
}

/// The values of a gradient.
pub fn values_of<const D: usize>(grads: &GradientsParams, id: ParamId) -> Vec<f64> {
    grads.get::<D>(id).unwrap().to_data().iter().collect()
}

/// Unscales gradients of a loss that was multiplied by the loss scale of `scaler`.
pub fn unscaled<M: Module>(
    scaler: &GradScaler,
    grads: GradientsParams,
    module: &M,
) -> UnscaledGradients {
    let grads = scaled_by_hand(scaler, grads);
    scaler.unscale(grads, module).unwrap()
}

/// A scaler with defaults but for the scale.
pub fn scaler(scale: f64) -> GradScaler {
    let config = at_scale(scale);
    config.init().unwrap()
}

/// A scaler by itself, and a module that it trains with plain SGD at a rate of 0.5.
pub struct Trial<M = Model> {
    pub scaler: GradScaler,
    pub optim: ModuleOptimizer,
    pub model: M,
}

impl Trial {
    /// Parameters of 1.
    pub fn new(config: GradScalerConfig) -> Self {
        Self::of(Model::new(), config)
    }

    /// With defaults but for the scale.
    pub fn at(scale: f64) -> Self {
        Self::new(at_scale(scale))
    }

    /// Gradients of 0.5, or those with an infinity.
    pub fn grads(&self, overflow: bool) -> UnscaledGradients {
        let grads = self.model.scaled(self.scaler.loss_scale(), overflow);
        self.scaler.unscale(grads, &self.model).unwrap()
    }

    /// A step with them, without its update.
    pub fn step(&mut self, overflow: bool) -> Result<(), AmpError> {
        self.take(self.grads(overflow))
    }

    /// A whole iteration, or the error that ends the run.
    pub fn try_iterate(&mut self, overflow: bool) -> Result<(), AmpError> {
        self.step(overflow)?;
        self.scaler.update().map(drop)
    }

    pub fn iterate(&mut self, overflow: bool) {
        self.try_iterate(overflow).unwrap();
    }

    /// Iterations that overflow (x) or not.
    pub fn iterations(&mut self, steps: &str) {
        steps.chars().for_each(|step| self.iterate(step == 'x'));
    }
}

impl<M: Module> Trial<M> {
    pub fn of(model: M, config: GradScalerConfig) -> Self {
        Self {
            scaler: config.init().unwrap(),
            optim: SgdConfig::new().init(),
            model,
        }
    }

    pub fn with_momentum(mut self) -> Self {
        let momentum = Some(MomentumConfig::new());
        self.optim = SgdConfig::new().with_momentum(momentum).init();
        self
    }

    /// Gradients made by hand, of a loss at the present scale.
    pub fn unscaled(&self, grads: GradientsParams) -> UnscaledGradients {
        unscaled(&self.scaler, grads, &self.model)
    }

    /// A step with such gradients, without its update.
    pub fn take(&mut self, grads: UnscaledGradients) -> Result<(), AmpError> {
        let model = self.model.clone();
        self.model = (self.scaler).try_step(&mut self.optim, 0.5, model, grads)?;
        Ok(())
    }

    /// A whole iteration with gradients made by hand.
    pub fn iterate_with(&mut self, grads: GradientsParams) -> Option<StepOutcome> {
        self.take(self.unscaled(grads)).unwrap();
        self.scaler.update().unwrap()
    }

    pub fn outcome(&self) -> Option<StepOutcome> {
        self.scaler.last_outcome()
    }

    pub fn scale(&self) -> f32 {
        self.scaler.loss_scale()
    }
}
