use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::Module,
    nn::Linear,
    optim::{GradientsParams, ModuleOptimizer, MultiGradientsParams},
    tensor::Tensor,
    train::{
        InferenceStep, Interrupter, RegressionOutput, TrainOutput, TrainStep, TrainingError,
        train::WorkerFailure,
    },
};
use burn_amp::{AmpError, GradScaler, ScaledGradients};
use std::sync::{Arc, OnceLock};

#[derive(Module, Debug)]
pub struct Regressor {
    pub linear: Linear,
    #[module(skip)]
    pub scaler: GradScaler,
    #[module(skip)]
    pub stop: Stop,
}

/// Ends the run, and says why. Shared by all clones of the model.
#[derive(Clone, Default)]
pub struct Stop {
    pub interrupter: Interrupter,
    pub error: Arc<OnceLock<AmpError>>,
}

// A field of a module must be `Debug`, which Burn's interrupter is not.
impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl Regressor {
    fn predict(&self, (inputs, targets): (Tensor<2>, Tensor<2>)) -> RegressionOutput {
        let output = self.linear.forward(inputs);
        let loss = (output.clone() - targets.clone()).square().mean();
        RegressionOutput::new(loss, output, targets)
    }

    fn try_advance(
        mut self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: ScaledGradients,
    ) -> Result<Self, AmpError> {
        let mut scaler = self.scaler.clone();
        let grads = scaler.try_unscale(grads, &self)?; // waits for the device, once
        self = scaler.try_step(optim, lr, self, grads)?; // or skips
        scaler.update(); // once a step
        self.scaler = scaler;
        Ok(self)
    }

    /// Steps or skips. A failure ends the run, and the model stays what it was.
    fn advance(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: ScaledGradients,
    ) -> Self {
        let before = self.clone();
        self.try_advance(optim, lr, grads).unwrap_or_else(|error| {
            let failure = WorkerFailure {
                device_id: 0,
                message: error.to_string(),
            };
            let stop = &before.stop;
            let _ = stop.error.set(error); // the first one stays
            stop.interrupter.fail(TrainingError::Workers(vec![failure]));
            before
        })
    }
}

impl TrainStep for Regressor {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = RegressionOutput;

    fn step(&self, batch: Self::Input) -> TrainOutput<RegressionOutput> {
        let output = self.predict(batch);
        let grads = self.scaler.scale(output.loss.clone()).backward();
        TrainOutput::new(self, grads, output)
    }

    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        self.advance(optim, lr, grads.into())
    }

    fn optimize_multi(
        self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: MultiGradientsParams,
    ) -> Self {
        let grads = ScaledGradients::from_multi(grads, &self);
        self.advance(optim, lr, grads)
    }
}

impl InferenceStep for Regressor {
    type Input = (Tensor<2>, Tensor<2>);
    type Output = RegressionOutput;

    fn step(&self, batch: Self::Input) -> RegressionOutput {
        self.predict(batch)
    }
}
