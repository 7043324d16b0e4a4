//! A fused optimizer in a `Learner`: one pass for all parameters, and nobody waits for it.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::Module,
    optim::{GradientsParams, ModuleOptimizer, OptimizerRecord, SgdConfig},
    tensor::DType,
};
use std::{
    mem::swap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    error::{AmpError, StepError},
    master_weights::masters_of,
    module_optim::{ModuleOptim, records_of},
    optimizer::ScaledOptimizer,
    param_tensors::ParamTensors,
    record::AmpRecord,
    scaler::GradScaler,
    step_options::StepOptions,
};

/// Burn's optimizer, and what its type does not tell.
pub(super) struct Stepper {
    optim: ModuleOptimizer,
    /// Whether it has the state of a [`Fused`](crate::Fused) one, which combines half-precision parameters with f32 gradients.
    fused: bool,
    /// Whether that has no clipping of its own.
    factors: bool,
}

impl Stepper {
    pub(super) fn new(optim: ModuleOptimizer, fused: bool) -> Self {
        Self {
            optim,
            fused,
            factors: false,
        }
    }
}

impl ModuleOptim for Stepper {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.optim.step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        self.fused || parameter == gradient
    }

    records_of!(self => self.optim);

    fn masters(&self) -> ParamTensors {
        match self.fused {
            true => masters_of(&self.optim),
            false => ParamTensors::default(),
        }
    }

    fn steps_unheard(&self) -> bool {
        self.fused
    }

    fn takes_factors(&self) -> bool {
        self.factors
    }

    fn one_pass(&mut self) -> Option<&mut ModuleOptimizer> {
        self.fused.then_some(&mut self.optim)
    }
}

/// The scaler of a run, its options, and the steps of which nobody has heard. Clones of the model share it.
///
/// The learner keeps its optimizer, and lends it for each step.
#[derive(Clone)]
pub(super) struct FusedSteps(Arc<Mutex<ScaledOptimizer<Stepper>>>);

impl FusedSteps {
    /// `factors` is what [`takes_factors`](ModuleOptim::takes_factors) says of the optimizer.
    pub(super) fn new(scaler: GradScaler, options: StepOptions, factors: bool) -> Self {
        Self(Arc::new(Mutex::new(beginning(scaler, options, factors))))
    }

    pub(super) fn takes_factors(&self) -> bool {
        self.lock().optimizer().factors
    }

    /// Goes on from another state.
    pub(super) fn restart(&self, scaler: GradScaler, options: StepOptions) {
        let mut steps = self.lock();
        *steps = beginning(scaler, options, steps.optimizer().factors);
    }

    /// The step of the learner.
    pub(super) fn step<M: Module>(
        &self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, StepError<M>> {
        let mut steps = self.lock();
        swap(optim, &mut steps.optimizer_unheard().optim);
        let stepped = steps.try_step(lr, model, grads);
        swap(optim, &mut steps.optimizer_unheard().optim);
        stepped
    }

    /// Waits until the outcomes of all steps are known.
    pub(super) fn synchronize(&self) -> Result<(), AmpError> {
        self.lock().try_synchronize()
    }

    /// What the next checkpoint is to hold: all steps are known then. The next one tells what was wrong.
    pub(super) fn record(&self) -> AmpRecord {
        let mut steps = self.lock();
        steps.settle_unheard();
        super::scaled::state_of(steps.scaler(), &steps.options)
    }

    /// As far as is known.
    pub(super) fn parts(&self) -> (GradScaler, StepOptions) {
        let steps = self.lock();
        (steps.scaler().clone(), steps.options.clone())
    }

    fn lock(&self) -> MutexGuard<'_, ScaledOptimizer<Stepper>> {
        // A step that has panicked has lost the model, and the run.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without an optimizer, which the learner lends.
fn beginning(scaler: GradScaler, options: StepOptions, factors: bool) -> ScaledOptimizer<Stepper> {
    let nothing = Stepper {
        factors,
        ..Stepper::new(SgdConfig::new().init(), true)
    };
    ScaledOptimizer::from_parts(nothing, scaler, options)
}

impl std::fmt::Debug for FusedSteps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FusedSteps")
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        lr_scheduler::constant::ConstantLr,
        module::Module,
        nn::{Linear, LinearConfig},
        optim::AdamConfig,
        tensor::{Device, Tensor},
        train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep},
    };

    use crate::{
        Fused, FusedAdam, GradScalerConfig, GradientClip, MixedPrecision, PipelinedOptimizer,
        ScaledOptimizer, autocast, fused::PASSES, gradient_pass::READS,
    };

    #[derive(Module, Debug)]
    struct Net {
        layers: Vec<Linear>,
    }

    impl TrainStep for Net {
        type Input = Tensor<2>;
        type Output = RegressionOutput;

        fn step(&self, batch: Tensor<2>) -> TrainOutput<RegressionOutput> {
            let output = InferenceStep::step(self, batch);
            TrainOutput::new(self, output.loss.backward(), output)
        }
    }

    impl InferenceStep for Net {
        type Input = Tensor<2>;
        type Output = RegressionOutput;

        fn step(&self, batch: Tensor<2>) -> RegressionOutput {
            let layers = |x| self.layers.iter().fold(x, |x, layer| layer.forward(x));
            let output = autocast(batch.clone(), layers);
            let loss = (output.clone() * batch.clone()).mean();
            RegressionOutput::new(loss, output, batch)
        }
    }

    fn net(device: &Device) -> Net {
        let layer = || LinearConfig::new(4, 4).init(device);
        Net {
            layers: vec![layer(), layer(), layer()],
        }
    }

    fn adam() -> FusedAdam {
        Fused::new(AdamConfig::new()).unwrap()
    }

    #[test]
    fn one_pass_a_step_and_nobody_waits() {
        let device = Device::flex().autodiff();
        let config = GradScalerConfig::new().with_init_scale(1024.0);
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        let optim = ScaledOptimizer::new(adam(), &amp);
        let optim = optim.with_clipping(GradientClip::GlobalNorm(0.1)).unwrap();
        let mut learner = amp.learner(net(&device), optim, ConstantLr::new(0.01));
        learner.fork(&device);
        READS.set(0);
        PASSES.set(0);
        for step in 0..10 {
            let value = if step == 4 { 1e4 } else { 1.0 };
            let output = learner.train_step(Tensor::full([3, 4], value, &device));
            learner.lr_step();
            learner.optimizer_step(output.grads);
        }
        assert_eq!((READS.get(), PASSES.get()), (0, 10));
        assert_eq!(amp.counters().steps(), 9);
        // It returns with the outcomes of all steps.
        let counters = *learner.model().valid().scaler().counters();
        assert_eq!((counters.steps(), counters.skipped()), (10, 1));
        assert_eq!(amp.counters(), counters);
        assert_eq!(READS.get(), 0);
    }

    /// On the thread of a pipeline, too.
    #[test]
    fn a_pipeline_makes_one_pass() {
        let device = Device::flex().autodiff();
        let amp = MixedPrecision::f16();
        let optim = ScaledOptimizer::new(adam(), &amp);
        let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
        let mut learner = amp.learner(net(&device), optim, ConstantLr::new(0.1));
        learner.fork(&device);
        for _ in 0..3 {
            let output = learner.train_step(Tensor::ones([3, 4], &device));
            learner.lr_step();
            learner.optimizer_step(output.grads);
        }
        let pipeline = learner.model().pipeline.unwrap();
        assert_eq!(pipeline.passes(), 3);
    }
}
