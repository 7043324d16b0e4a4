//! A small model that is trained with gradients made by hand: by a `ScaledOptimizer`, or by a `GradScaler` alone.

use crate::prelude::*;
use burn_amp_core::internal::StepGradients;

/// Ones.
pub const ONES: [f64; 10] = [1.0; 10];

/// An infinity in the bias, among ones.
pub const BAD: [f64; 10] = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, f64::INFINITY, 1.0, 1.0];

/// Zeros but for the first: what the norm of such gradients is.
pub fn norm(value: f64) -> [f64; 10] {
    std::array::from_fn(|index| if index == 0 { value } else { 0.0 })
}

/// Gradients that overflow or do not.
pub fn values_that(overflow: bool) -> [f64; 10] {
    if overflow { BAD } else { ONES }
}

/// Whether a micro-batch that overflows is dropped by itself.
pub const RULES: [bool; 2] = [false, true];

/// Windows of `n` micro-batches under this rule.
pub fn windows(n: u32, rule: bool) -> AccumulationConfig {
    AccumulationConfig::new(n).with_skip_micro_batch(rule)
}

/// Ten values in two parameters, with ids that are the same in every run, and in another order than the module's.
#[derive(Module, Debug)]
pub struct Pair {
    /// The first six: `[2, 3]`.
    pub weight: Param<Tensor<2>>,
    /// The others: `[4]`.
    pub bias: Param<Tensor<1>>,
}

/// The tensors of a weight and of a bias.
fn tensors(values: [f64; 10], device: &Device, dtype: DType) -> (Tensor<2>, Tensor<1>) {
    let (weight, bias) = values.split_at(6);
    let weight = TensorData::new(weight.to_vec(), [2, 3]);
    let bias = TensorData::new(bias.to_vec(), [4]);
    let weight = Tensor::from_data(weight, (device, dtype));
    (weight, Tensor::from_data(bias, (device, dtype)))
}

impl Pair {
    /// These values, in this dtype.
    pub fn new(values: [f64; 10], device: &Device, dtype: DType) -> Self {
        let (weight, bias) = tensors(values, device, dtype);
        let weight = Param::initialized(ParamId::from(2002), weight.require_grad());
        let bias = Param::initialized(ParamId::from(2001), bias.require_grad());
        Self { weight, bias }
    }

    /// The same value everywhere, in f32 on Burn's default device.
    pub fn of(value: f64) -> Self {
        Self::new([value; 10], &device(), DType::F32)
    }

    /// Burn's own gradients, in the parameters' dtype.
    pub fn plain(&self, values: [f64; 10]) -> GradientsParams {
        let weight = self.weight.val();
        let (weight, bias) = tensors(values, &weight.device().inner(), weight.dtype());
        let mut grads = GradientsParams::new();
        // Not in the module's order, which must not matter.
        grads.register(self.bias.id, bias);
        grads.register(self.weight.id, weight);
        grads
    }

    /// Gradients of a loss that was multiplied by `scale`.
    pub fn scaled(&self, values: [f64; 10], scale: f32) -> ScaledGradients {
        let scaler = at_scale(scale.into()).with_dynamic(false);
        let grads = self.plain(values.map(|value| value * f64::from(scale)));
        scaled_by_hand(&GradScaler::new(scaler).unwrap(), grads)
    }

    /// All values.
    pub fn values(&self) -> Vec<f64> {
        let (weight, bias) = (self.weight.val().into_data(), self.bias.val().into_data());
        weight.iter().chain(bias.iter()).collect()
    }
}

/// An optimizer and its model, at a learning rate of 1.
#[derive(Clone)]
pub struct Trial<O = ModuleOptimizer> {
    /// With all that stands around its step.
    pub optim: ScaledOptimizer<O>,
    /// What it trains.
    pub model: Pair,
}

impl Trial {
    /// A model of zeros at the border of half precision, with the loss scale of this handle and plain SGD.
    pub fn at_border(amp: &MixedPrecision) -> Self {
        Self::at_border_with(SgdConfig::new().init(), amp)
    }
}

impl<O: ModuleOptim> Trial<O> {
    /// The same with another optimizer.
    pub fn at_border_with(optim: O, amp: &MixedPrecision) -> Self {
        let (model, optim) = amp.prepare(Pair::of(0.0), optim);
        Self { optim, model }
    }

    /// Burn's own gradients of the sum of the bias, as it leaves a scope, times `factor`.
    pub fn in_scope(&self, factor: f64) -> GradientsParams {
        let amp = self.optim.scaler().precision().unwrap();
        let output = amp.autocast((), |()| self.model.bias.val());
        GradientsParams::from_grads((output * factor).sum().backward(), &self.model)
    }

    /// A model of zeros, in f32 on Burn's default device.
    pub fn new(optim: ScaledOptimizer<O>) -> Self {
        let model = Pair::of(0.0);
        Self { optim, model }
    }

    /// With parameters of this dtype.
    pub fn with_dtype(self, dtype: DType) -> Self {
        let model = Pair::new([0.0; 10], &device(), dtype);
        Self { model, ..self }
    }

    /// With parameters of this value.
    pub fn with_value(self, value: f64) -> Self {
        let model = Pair::of(value);
        Self { model, ..self }
    }

    /// Gradients of these values at the present loss scale.
    pub fn scaled(&self, values: [f64; 10]) -> ScaledGradients {
        self.model.scaled(values, self.scale())
    }

    /// The same, unscaled.
    pub fn unscaled(&mut self, values: [f64; 10]) -> UnscaledGradients {
        let grads = self.scaled(values);
        self.optim.unscale(grads, &self.model).unwrap()
    }

    /// Gradients of a loss that is scaled.
    pub fn backward(&self, loss: Tensor<1>) -> ScaledGradients {
        self.optim.backward(loss, &self.model)
    }

    /// A step, or a micro-batch, with such gradients.
    pub fn step(&mut self, values: [f64; 10]) {
        self.take(self.scaled(values));
    }

    /// With others.
    pub fn take(&mut self, grads: impl Into<StepGradients>) {
        self.model = self.optim.step(1.0, self.model.clone(), grads.into());
    }

    /// The error of a step that must fail, and leaves the model as it was.
    pub fn refused(&mut self, values: [f64; 10]) -> AmpError {
        let (grads, before) = (self.scaled(values), self.values());
        let failed = self.optim.try_step(1.0, self.model.clone(), grads);
        let failed = failed.unwrap_err();
        assert_eq!(failed.module.values(), before);
        failed.error
    }

    /// Steps with what the window holds.
    pub fn flush(&mut self) {
        self.model = self.optim.flush(1.0, self.model.clone());
    }

    /// The loss scale.
    pub fn scale(&self) -> f32 {
        self.optim.scaler().loss_scale()
    }

    /// Of all steps.
    pub fn counters(&self) -> StepCounters {
        self.optim.scaler().counters()
    }

    /// What the last call has done.
    pub fn outcome(&self) -> Option<StepOutcome> {
        self.optim.scaler().last_outcome()
    }

    /// Of the last step.
    pub fn status(&self) -> GradientStatus {
        self.optim.scaler().last_status().unwrap()
    }

    /// How many micro-batches are in the window.
    pub fn window(&self) -> u32 {
        self.optim.window().unwrap().len()
    }

    /// Those of the model.
    pub fn values(&self) -> Vec<f64> {
        self.model.values()
    }

    /// The averages of the weights.
    pub fn averages(&self) -> Vec<f64> {
        self.optim.ema().unwrap().module(&self.model).values()
    }
}

/// A scaler by itself, and a module that it trains with plain SGD at a learning rate of 1.
#[derive(Clone)]
pub struct ByHand<M = Pair> {
    /// The scaler.
    pub scaler: GradScaler,
    /// What it lets step.
    pub optim: ModuleOptimizer,
    /// What that trains.
    pub model: M,
}

impl ByHand {
    /// A model of zeros on Flex.
    pub fn new(config: GradScalerConfig) -> Self {
        Self::of(Pair::new([0.0; 10], &flex(), DType::F32), config)
    }

    /// With defaults but for the scale.
    pub fn at(scale: f64) -> Self {
        Self::new(at_scale(scale))
    }

    /// Gradients of these values at the present loss scale, unscaled.
    pub fn unscaled(&self, values: [f64; 10]) -> UnscaledGradients {
        let scale = f64::from(self.scale());
        self.unscale(self.model.plain(values.map(|value| value * scale)))
    }

    /// A step with them, without its update.
    pub fn step(&mut self, values: [f64; 10]) -> Result<(), AmpError> {
        self.take(self.unscaled(values))
    }

    /// Gradients of these values go into a window; what comes out of it once it is full.
    pub fn accumulate(
        &mut self,
        window: &mut AccumulationWindow,
        values: [f64; 10],
    ) -> Option<UnscaledGradients> {
        let grads = self.model.scaled(values, self.scale());
        let full = self.scaler.accumulate(window, grads, &self.model);
        full.unwrap()
    }

    /// A whole iteration; the scale after it.
    pub fn iterate(&mut self, values: [f64; 10]) -> f32 {
        self.step(values).unwrap();
        self.scaler.update().unwrap();
        self.scale()
    }

    /// Iterations that overflow (x) or not.
    pub fn iterations(&mut self, steps: &str) {
        for step in steps.chars() {
            self.iterate(values_that(step == 'x'));
        }
    }
}

impl<M: Module> ByHand<M> {
    /// With this module.
    pub fn of(model: M, config: GradScalerConfig) -> Self {
        Self {
            scaler: GradScaler::new(config).unwrap(),
            optim: SgdConfig::new().init(),
            model,
        }
    }

    /// Unscales gradients of a loss that was multiplied by the loss scale.
    pub fn unscale(&self, grads: GradientsParams) -> UnscaledGradients {
        let grads = scaled_by_hand(&self.scaler, grads);
        self.scaler.unscale(grads, &self.model).unwrap()
    }

    /// A step, without its update.
    pub fn take(&mut self, grads: UnscaledGradients) -> Result<(), AmpError> {
        let model = self.model.clone();
        self.model = self.scaler.try_step(&mut self.optim, 1.0, model, grads)?;
        Ok(())
    }

    /// The loss scale.
    pub fn scale(&self) -> f32 {
        self.scaler.loss_scale()
    }

    /// Of all steps.
    pub fn counters(&self) -> StepCounters {
        self.scaler.counters()
    }

    /// What the last call has done.
    pub fn outcome(&self) -> Option<StepOutcome> {
        self.scaler.last_outcome()
    }
}
