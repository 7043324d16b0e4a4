//! The least that trains at the border of half precision.

use super::*;

/// A model, its optimizer and the `MixedPrecision` of both. `ScaledOptimizer` alone names Burn's.
#[derive(Clone)]
pub struct Player {
    pub amp: MixedPrecision,
    pub model: Linear,
    pub optim: ScaledOptimizer,
}

impl Player {
    pub fn new(amp: &MixedPrecision) -> Self {
        let model = LinearConfig::new(2, 2).init(&Device::default().autodiff());
        Self {
            amp: amp.clone(),
            model: model.apply_reparameterization(amp.clone()),
            optim: ScaledOptimizer::new(SgdConfig::new().init(), amp),
        }
    }

    /// The loss at the present scale, times `factor`.
    pub fn loss(&self, factor: f32) -> Tensor<1> {
        let input = Tensor::<2>::ones([1, 2], &Device::default().autodiff());
        let output = self.amp.autocast(input, |x| self.model.forward(x));
        output.mean() * factor
    }

    pub fn gradients(&self, loss: Tensor<1>) -> GradientsParams {
        GradientsParams::from_grads(loss.backward(), &self.model)
    }

    pub fn step_at(&mut self, lr: impl Into<ModuleLearningRate>, grads: GradientsParams) {
        self.model = self.optim.step(lr, self.model.clone(), grads);
    }
}
