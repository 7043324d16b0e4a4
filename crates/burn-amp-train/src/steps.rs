//! The optimizer of a run, which the clones of its model share: on the host, on the device, or on a thread of its own.

pub(super) mod checkpoint;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig, StateSink};
use burn::tensor::{DType, Device};
use std::any::Any;
use std::mem::{swap, take};
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use self::checkpoint::Resumed;
use burn_amp_core::internal::learner::{self, Container, step_by};
use burn_amp_core::internal::{ParamTensors, StepOptions, Takes, Update, locked, masters_of};
use burn_amp_core::{
    AmpError, AmpRecord, ModuleOptim, ScaledOptimizer, Scaler, StepError, records_of,
};
use burn_amp_optim::internal::one_pass;
use burn_amp_pipeline::{PipelinedOptimizer, internal as pipeline};

/// The kind of optimizer that a `ModuleOptimizer` was made of, which Burn's type does not say.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// Set where it combines half-precision parameters with f32 gradients.
    pub(super) mixed: bool,
    /// Set where it steps all parameters by itself, in one pass. Otherwise the model's own `optimize` calls it.
    pub(super) fused: bool,
    /// The thread of its own on which it steps, if it does: the device of its masters, and whether each step waits for it.
    pub(super) thread: Option<(Device, bool)>,
}

/// Burn's optimizer, and of what kind it is.
pub(super) struct Stepper {
    pub(super) optim: ModuleOptimizer,
    pub(super) kind: Kind,
}

impl ModuleOptim for Stepper {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.optim.step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        self.kind.mixed || parameter == gradient
    }

    records_of!(self => self.optim);

    fn masters(&self) -> ParamTensors {
        match self.kind.mixed {
            true => masters_of(&self.optim),
            false => ParamTensors::default(),
        }
    }

    fn takes(&self) -> Takes {
        Takes {
            decision: self.kind.fused,
            factors: self.kind.fused && !self.optim.has_gradient_clipping(),
        }
    }

    fn update<M: Module>(&mut self, update: Update, module: M, grads: GradientsParams) -> M {
        match self.kind.fused {
            true => one_pass(&mut self.optim, update, module, grads),
            false => self.step(update.lr, module, grads),
        }
    }
}

/// The optimizer of a run, with its scaler and its options, as a model knows it. Clones of the model share it.
///
/// The learner keeps Burn's optimizer, and lends it for each step.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    pub(super) kind: Kind,
    /// The scaler as the steps had left it that the model knows.
    pub(super) scaler: Scaler,
    /// The options of then: clipping, a guard and averages; no window, since Burn accumulates.
    pub(super) options: StepOptions,
    pub(super) shared: Shared,
    pub(super) resumed: Resumed,
}

/// The state that the clones of a model share, and a checkpoint asks.
pub(super) type Shared = Arc<Mutex<State>>;

pub(super) struct State {
    /// The optimizer; where a thread steps, as it was before that has started.
    pub(super) optim: ScaledOptimizer<Stepper>,
    /// The optimizer on a thread of its own, from the first step on.
    pub(super) thread: Option<PipelinedOptimizer<Stepper>>,
    /// Masters of a record, for a thread to begin with.
    masters: ParamTensors,
    /// Set where parameters of a thread were received between two steps: the learner's own model does not have them yet.
    is_ahead: bool,
    /// The optimizer's state on a thread, for a checkpoint that is being taken.
    stored_optimizer: Option<Container>,
    /// Set where a record was taken since the last step.
    pub(super) was_recorded: bool,
    /// The model and the optimizer of the last checkpoint, until the step after the next one. Burn writes checkpoints on another thread, and CubeCL reads
    /// their values there: memory that is held is not written by a step in place, and under fusion that step is made late.
    pub(super) checkpointed: Option<Box<dyn Any + Send>>,
}

impl Steps {
    pub(super) fn new(
        kind: Kind,
        scaler: Scaler,
        options: StepOptions,
        masters: ParamTensors,
        resumed: Resumed,
    ) -> Self {
        // The learner lends its optimizer for each step.
        let stepper = Stepper {
            optim: SgdConfig::new().init(),
            kind: kind.clone(),
        };
        let state = State {
            optim: learner::put_together(stepper, scaler.clone(), options.clone()),
            thread: None,
            masters,
            is_ahead: false,
            stored_optimizer: None,
            was_recorded: false,
            checkpointed: None,
        };
        Self {
            kind,
            scaler,
            options,
            shared: Arc::new(Mutex::new(state)),
            resumed,
        }
    }

    /// What the clones of a model share. A step that has panicked has lost the model, and the run.
    pub(super) fn state(&self) -> impl DerefMut<Target = State> {
        locked(&self.shared)
    }

    /// The same, shared with nobody.
    pub(super) fn detached(self) -> Self {
        let masters = self.state().masters.clone();
        Self::new(self.kind, self.scaler, self.options, masters, self.resumed)
    }

    /// Makes those of another device, which count as an optimizer of their own. A thread that has started steps for all.
    pub(super) fn fork(mut self) -> Self {
        if self.state().thread.is_some() {
            return self;
        }
        learner::join(&mut self.scaler);
        self.detached()
    }

    /// Makes those of a copy for validation, which makes none and holds no thread.
    pub(super) fn for_validation(mut self) -> Self {
        learner::leave(&mut self.scaler);
        let resumed = locked(&self.resumed.record).clone();
        if let Some(record) = resumed
            && let Err(error) = self.restore(Some(record))
        {
            burn_amp_core::warn!("{error}");
        }
        self.resumed.record = Arc::default();
        self.kind.thread = None;
        self.detached()
    }

    /// Goes on from the record of a checkpoint; none where it is that of a run without scaler.
    pub(super) fn restore(&mut self, stored: Option<AmpRecord>) -> Result<(), AmpError> {
        if self.state().thread.is_some() {
            let allowed = "called before its first step";
            let value = "called in the middle of a pipelined run";
            return Err(AmpError::refused("load_optim", value, allowed));
        }
        let (scaler, options) = (&mut self.scaler, &mut self.options);
        let masters = learner::restore(stored, scaler, options, self.kind.thread.is_some())?;
        *self = self.clone().detached();
        self.state().masters = masters;
        Ok(())
    }

    /// The step of the learner. `optimize` is the model's own. `is_reloaded` if the model has parameters that were loaded.
    pub(super) fn step<M: Module + 'static>(
        &self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        model: M,
        grads: GradientsParams,
        is_reloaded: bool,
        optimize: impl FnOnce(M, &mut ModuleOptimizer, ModuleLearningRate, GradientsParams) -> M,
    ) -> Result<M, StepError<M>> {
        let state = &mut *self.state();
        let current = (!is_reloaded).then(|| state.current(&model)).flatten();
        let model = current.unwrap_or(model);
        (state.is_ahead, state.stored_optimizer) = (false, None);
        let started = state.start(optim, self, &model, is_reloaded);
        let model = StepError::join(model, started)?;
        if let Some(thread) = &mut state.thread {
            return thread.try_step(lr, model, grads);
        }
        let is_fused = self.kind.fused;
        let update = |stepper: &mut Stepper, update: Update, model, grads| match is_fused {
            true => stepper.update(update, model, grads),
            false => optimize(model, &mut stepper.optim, update.lr, grads),
        };
        swap(optim, &mut learner::inner(&mut state.optim).optim);
        let step = || step_by(&mut state.optim, lr, model, grads.into(), update);
        let stepped = catch_unwind(AssertUnwindSafe(step));
        // After a panic of the model's own `optimize`, too.
        swap(optim, &mut learner::inner(&mut state.optim).optim);
        stepped.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Takes over what is known of the steps.
    pub(super) fn update(&mut self) {
        let State { optim, thread, .. } = &mut *locked(&self.shared);
        let scaler = thread.as_ref().map(pipeline::scaler);
        let scaler = scaler.unwrap_or(optim.scaler()).clone();
        (self.scaler, self.options) = (scaler, learner::options(optim).clone());
    }
}

impl State {
    /// Starts the thread before a step, if one is to step. The learner's own optimizer, with which it begins, has nothing but handles from then
    /// on. A thread that has started takes over parameters that were loaded.
    fn start<M: Module + 'static>(
        &mut self,
        own: &mut ModuleOptimizer,
        steps: &Steps,
        model: &M,
        is_reloaded: bool,
    ) -> Result<(), AmpError> {
        if let Some(thread) = &mut self.thread {
            let reloaded = is_reloaded.then(|| thread.reload(model));
            return reloaded.unwrap_or(Ok(()));
        }
        let kind = steps.kind.clone();
        let Some((host, synchronous)) = kind.thread.clone() else {
            return Ok(());
        };
        let optim = own.clone();
        let (scaler, options) = (
            self.optim.scaler().clone(),
            learner::options(&mut self.optim).clone(),
        );
        let optim = learner::put_together(Stepper { optim, kind }, scaler, options);
        let parts = pipeline::Parts {
            optim,
            masters: take(&mut self.masters),
            host,
            synchronous,
        };
        self.thread = Some(pipeline::start(parts)?);
        checkpoint::hand_over(own, model, steps);
        Ok(())
    }

    /// The model with its newest parameters, when the outcomes of all steps are known: waits for them. The learner's own gets them with the next
    /// step.
    pub(super) fn newest<M: Module + 'static>(&mut self, model: M) -> Result<M, StepError<M>> {
        let model = self.current(&model).unwrap_or(model);
        self.is_ahead = true;
        match &mut self.thread {
            Some(thread) => {
                let model = thread.synchronize(model);
                if let Some(options) = pipeline::options(thread) {
                    *learner::options(&mut self.optim) = options;
                }
                model
            }
            None => StepError::join(model, self.optim.synchronize()),
        }
    }

    /// The model that a forward pass is to see, if it is another.
    pub(super) fn current<M: Module>(&self, model: &M) -> Option<M> {
        let thread = self.thread.as_ref().filter(|_| self.is_ahead)?;
        pipeline::received(thread, model)
    }

    /// The record for the next checkpoint: all steps are known then. The next one returns what was wrong.
    fn record(&mut self) -> AmpRecord {
        self.was_recorded = true;
        let Some(thread) = &mut self.thread else {
            return learner::record(&mut self.optim);
        };
        let mut record = thread.to_record();
        self.stored_optimizer = learner::take_optimizer(&mut record);
        record
    }

    /// Adds the state that a parameter has on the thread: of one record for all parameters.
    fn flatten(&mut self, id: &str, out: &mut StateSink) {
        if self.stored_optimizer.is_none() {
            self.record();
        }
        let Some(container) = &mut self.stored_optimizer else {
            panic!("the optimizer's thread has ended: there is no state to be stored");
        };
        (container.take_of(id).flatten(out))
            .unwrap_or_else(|error| panic!("the optimizer's state cannot be read: {error}"));
    }
}

/// Leaves out what a run holds.
impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
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

    use std::sync::mpsc::{Sender, channel};

    use crate::LearnerExt;
    use burn_amp_core::hook::{Applied, Hook};
    use burn_amp_core::{
        GradScalerConfig, GradientClip, MixedPrecision, ScaledOptimizer, autocast, internal::READS,
    };
    use burn_amp_optim::FusedAdam;
    use burn_amp_optim::internal::PASSES;
    use burn_amp_pipeline::PipelinedOptimizer;

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
        let layer = |_| LinearConfig::new(4, 4).init(device);
        let layers = (0..3).map(layer).collect();
        Net { layers }
    }

    #[test]
    fn one_pass_a_step_and_nobody_waits() {
        let device = Device::flex().autodiff();
        let config = GradScalerConfig::new().with_init_scale(1024.0);
        let amp = MixedPrecision::f16().with_scaler(config).unwrap();
        let optim = ScaledOptimizer::new(FusedAdam::new(AdamConfig::new()), &amp);
        let optim = optim.with_clipping(GradientClip::GlobalNorm(0.1));
        let mut learner = amp
            .learner(net(&device), optim, ConstantLr::new(0.01))
            .unwrap();
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
        let counters = learner.model().valid().scaler().counters();
        assert_eq!((counters.steps(), counters.skipped()), (10, 1));
        assert_eq!(amp.counters(), counters);
        assert_eq!(READS.get(), 0);
    }

    /// Its record is read before the next step on Flex. Elsewhere the values are held until they are read.
    #[test]
    fn the_step_after_a_checkpoint_copies_nothing_on_flex() {
        let device = Device::default().autodiff();
        let amp = MixedPrecision::f16();
        let learner = amp.learner(
            net(&device),
            AdamConfig::new().init(),
            ConstantLr::new(0.01),
        );
        let (mut model, mut optim) = (learner.unwrap().model(), AdamConfig::new().init());
        for is_recorded in [false, true, false] {
            if is_recorded {
                optim.to_record();
            }
            let output = TrainStep::step(&model, Tensor::full([3, 4], 0.1, &device));
            model = model.optimize(&mut optim, 0.1.into(), output.grads);
            let is_held = model.steps.state().checkpointed.is_some();
            assert_eq!(
                is_held,
                is_recorded && device.clone().inner() != Device::flex()
            );
        }
    }

    /// Sends the number of passes of the thread that steps.
    #[derive(Clone, Debug)]
    struct Passes(Sender<u32>);

    impl Hook for Passes {
        fn name(&self) -> &str {
            "passes"
        }

        fn applied(&mut self, _step: &mut Applied<'_>) {
            self.0.send(PASSES.get()).unwrap();
        }
    }

    /// The thread of a pipeline makes one pass, too.
    #[test]
    fn a_pipeline_makes_one_pass() {
        let device = Device::flex().autodiff();
        let amp = MixedPrecision::f16();
        let (sender, passes) = channel();
        let optim = ScaledOptimizer::new(FusedAdam::new(AdamConfig::new()), &amp);
        let optim = optim.with_hook(Passes(sender));
        let optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
        let mut learner = amp
            .learner(net(&device), optim, ConstantLr::new(0.1))
            .unwrap();
        learner.fork(&device);
        for _ in 0..3 {
            let output = learner.train_step(Tensor::full([3, 4], 0.1, &device));
            learner.lr_step();
            learner.optimizer_step(output.grads);
        }
        let passes: Vec<_> = passes.iter().take(3).collect();
        assert_eq!(passes, [1, 2, 3]);
    }
}
