use burn::optim::{GradientsParams, ModuleOptimizer, MultiGradientsParams};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Tensor},
};
use std::{any::Any, mem::take, ops::Deref, thread};

use super::run;
use super::steps::checkpoint::{self, Entry};
use super::steps::{Kind, Steps};
use burn_amp_core::internal::learner::{by_device, in_model, is_unused, of_this_thread};
use burn_amp_core::internal::{locked, or_panic, widened};
use burn_amp_core::{AmpError, Ema, MixedPrecision, Scaler, StepError, hook::Hook, sum_of_devices};

/// A model in half precision: what the `Learner` of [`LearnerExt::learner`](crate::LearnerExt::learner) trains, and what it returns.
///
/// Used as the model itself: it dereferences to it, its records are the model's, and `valid()` and Burn's `Evaluator` see the
/// model's own [`InferenceStep`], in the precision of the training. [`into_inner`](Self::into_inner) returns it by value.
///
/// - [`TrainStep::step`]: the model's own, as it is. [`autocast`](burn_amp_core::autocast) in it is that of the `MixedPrecision`.
/// - [`TrainStep::optimize`] and [`TrainStep::optimize_multi`]: test the gradients, which waits for the device once, and call
///   the model's own if the step is not skipped. After a skip, running statistics (BatchNorm's) that are not finite are set
///   back to those of the last good step. A [`Fused`](burn_amp_optim::Fused) optimizer steps by itself and does not wait, as in
///   [`ScaledOptimizer::step`](burn_amp_core::ScaledOptimizer::step): **the model's own are not called**, unless
///   [`with_own_optimize`](burn_amp_core::ScaledOptimizer::with_own_optimize) asks for it. A
///   [`PipelinedOptimizer`](burn_amp_pipeline::PipelinedOptimizer) never calls them.
/// - A checkpoint has the scaler's state, that of a guard, and the averages of [`with_ema`](burn_amp_core::ScaledOptimizer::with_ema), in the file of the
///   *optimizer*. A `Learner` without this crate resumes it, and the other way round: then the scaler starts fresh, with a
///   warning in the log.
#[derive(Clone, Debug)]
pub struct Scaled<M> {
    pub(super) inner: M,
    /// The weights that were trained, where `inner` has their averages.
    pub(super) trained: Option<M>,
    pub(super) amp: MixedPrecision,
    /// The optimizer, which clones share.
    pub(super) steps: Steps,
    /// Set where the last step has ended the run.
    pub(super) failed: bool,
    /// Set where it has parameters that were loaded since the last step, and a thread does not have.
    pub(super) reloaded: bool,
}

impl<M> Scaled<M> {
    /// Ends the run, if there is an error, through its interrupter; panics where there is none.
    fn end_with(&mut self, result: Result<(), AmpError>) {
        if let Err(error) = result {
            self.failed = true;
            or_panic(run::fail(&self.amp, error));
        }
    }

    /// The model, to use without this crate: as [`attach`](MixedPrecision::attach) has made it, until Burn's `materialize()` takes that away.
    pub fn into_inner(self) -> M {
        self.inner
    }

    /// The scaler: its counters, and the measures of the last step's gradients.
    pub fn scaler(&self) -> &Scaler {
        &self.steps.scaler
    }

    /// The averages of the weights; none without [`ScaledOptimizer::with_ema`](burn_amp_core::ScaledOptimizer::with_ema).
    ///
    /// `ema().module(&*model)` is a copy of the model with the averages in place of its parameters.
    pub fn ema(&self) -> Option<&Ema> {
        self.hook()
    }

    /// The first [hook](burn_amp_core::hook::Hook) of a type, as the last step has left it.
    pub fn hook<H: Hook>(&self) -> Option<&H> {
        self.steps.options.hooks.get()
    }
}

impl<M: Module> Scaled<M> {
    /// The model as it was trained, where validation has put averages in its place.
    pub(super) fn into_trained(self) -> M {
        self.trained.map_or(self.inner, |trained| trained.valid())
    }

    /// Ends the training: the model, its parameters replaced by their averages, in the parameters' dtype.
    ///
    /// As [`into_inner`](Self::into_inner) without [`ScaledOptimizer::with_ema`](burn_amp_core::ScaledOptimizer::with_ema), or before
    /// the first step. Does not wait for the device.
    pub fn finalize(self) -> M {
        match self.steps.options.hooks.get::<Ema>() {
            Some(ema) => ema.finalize(self.inner),
            None => self.inner,
        }
    }
}

impl<M: Module + 'static> Scaled<M> {
    /// Waits for the newest parameters of an optimizer on a thread of its own, and for the outcomes of all steps. A failure ends the run.
    pub(super) fn newest(mut self) -> Self {
        let Kind { fused, thread, .. } = &self.steps.kind;
        if self.reloaded || !(*fused || thread.is_some()) {
            return self;
        }
        let (inner, result) = StepError::split(self.steps.state().newest(self.inner));
        self.inner = inner;
        self.steps.update();
        self.end_with(result);
        self
    }
}

impl<M: TrainStep + Module + 'static> Scaled<M> {
    /// Steps, or skips the step. `optimize` is the model's own. A failure ends the run.
    fn advance(
        mut self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
        optimize: impl FnOnce(M, &mut ModuleOptimizer, ModuleLearningRate, GradientsParams) -> M,
    ) -> Self {
        let amp = self.amp.clone();
        if self.failed
            && let Some(error) = run::state(&amp).error.clone()
        {
            // The interrupter is not the run's: nobody has ended it.
            panic!("{error}");
        }
        self.failed = false;
        let found = checkpoint::exchange(optim, None);
        let is_held = take(&mut self.steps.state().was_recorded) && is_read_late(&self.inner);
        // With a thread, the learner's own has nothing but handles, which hold this.
        let own = || self.steps.kind.thread.is_none().then(|| optim.clone());
        let checkpointed =
            is_held.then(|| Box::new((self.inner.clone(), own())) as Box<dyn Any + Send>);
        *locked(&self.steps.resumed.record) = None;
        match found {
            // It counts as an optimizer no longer, if this is a fork.
            Some(Entry::Steps(steps)) => drop(steps),
            Some(Entry::Loaded(state)) => {
                if let Err(error) = self.steps.restore(state.map(|state| *state)) {
                    self.end_with(Err(error));
                    return self;
                }
            }
            None => {
                *optim = checkpoint::attach(optim.clone(), &self.steps.resumed);
                // Of another optimizer, whose kind is not known.
                self.steps.kind.fused = false;
                self.steps = self.steps.detached();
            }
        }
        let optimize = |inner, optim: &mut _, lr, grads| {
            let inner = in_model(&amp, || optimize(inner, optim, lr, grads));
            // It may lose that of a parameter, because `Param::map` does. Those that have it keep theirs.
            inner.apply_reparameterization(amp.clone())
        };
        let is_reloaded = take(&mut self.reloaded);
        let stepped = (self.steps).step(optim, lr, self.inner, grads, is_reloaded, optimize);
        let (inner, result) = StepError::split(stepped);
        self.inner = inner;
        self.steps.update();
        self.steps.state().checkpointed = checkpointed;
        checkpoint::exchange(optim, Some(self.steps.shared.clone()));
        self.end_with(result);
        self
    }
}

impl<M: TrainStep + Module + 'static> TrainStep for Scaled<M> {
    type Input = M::Input;
    type Output = M::Output;

    /// The model's own step, in its precision. A model that calls no [`autocast`](burn_amp_core::autocast) would train in f32: the first step ends
    /// the run with [`NoScope`](burn_amp_core::AmpError::NoScope).
    ///
    /// # Panics
    ///
    /// In a worker of `ExecutionStrategy::ddp`, which ends the run: if a step has no gradients, for which Burn lets the others wait, and if two workers
    /// have one remote device.
    fn step(&self, batch: M::Input) -> TrainOutput<M::Output> {
        if !self.failed {
            // Before the step that Burn asks the interrupter after: with accumulation, `optimize` comes later.
            run::forget_failure(&self.amp);
        }
        // A checkpoint has received parameters that the learner's own model does not have.
        let state = (!self.reloaded).then(|| self.steps.state());
        let newest = state.and_then(|state| state.current(&self.inner));
        let inner = newest.as_ref().unwrap_or(&self.inner);
        let mut summed = SumAgain(None);
        inner.visit(&mut summed);
        if let Some(device) = &summed.0 {
            or_panic(run::check_worker(&self.amp, &self.steps.shared, device));
        }
        // In `ddp`, Burn sums them on a thread of its own.
        run::state(&self.amp).maker = summed.0.is_none().then(|| thread::current().id());
        let mut output = in_model(&self.amp, || TrainStep::step(inner, batch));
        if summed.0.is_some() && output.grads.is_empty() {
            // The others wait inside their backward passes: what ends the run is a worker that panics.
            let error = without_gradients();
            let _ = run::fail(&self.amp, error.clone());
            panic!("{error}");
        }
        if self.steps.kind.mixed {
            // Burn's accumulation would sum them in half precision.
            output.grads = widened(output.grads, &self.inner);
        } else if is_unused(&self.amp) {
            // Where no interrupter is set, `run_result` has it.
            let _ = run::fail(&self.amp, AmpError::NoScope);
        }
        output
    }

    /// Tests the gradients, and calls the model's own `optimize`, unless they overflow: then the step is skipped, and the loss
    /// scale backs off. Waits for the device once.
    ///
    /// With a [`Fused`](burn_amp_optim::Fused) optimizer it makes one pass for all parameters, in place of the model's own `optimize`, and does not wait
    /// where [`ScaledOptimizer::step`](burn_amp_core::ScaledOptimizer::step) does not. With
    /// [`with_own_optimize`](burn_amp_core::ScaledOptimizer::with_own_optimize) it is as with other optimizers: parameters are stepped one by one then.
    ///
    /// A step that fails ([`LossScaleExhausted`](burn_amp_core::AmpError::LossScaleExhausted), [`LossNotFinite`](burn_amp_core::AmpError::LossNotFinite),
    /// [`AlwaysGuarded`](burn_amp_core::AmpError::AlwaysGuarded), and what
    /// [`ScaledOptimizer::try_step`](burn_amp_core::ScaledOptimizer::try_step) refuses) returns the model as it was and ends the run,
    /// through [`LearnerExt::interrupter`](crate::LearnerExt::interrupter).
    ///
    /// # Panics
    ///
    /// With the error's message, if a step fails: at once where no interrupter is set, and at the next step where the interrupter is not the run's.
    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr_module: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        let is_own = run::state(&self.amp).maker == Some(thread::current().id());
        let grads = match is_own {
            true => grads,
            // Burn may have summed those of workers in the place of one's.
            false => of_this_thread(grads, &self.inner),
        };
        self.advance(optim, lr_module, grads, M::optimize)
    }

    /// Does the same as [`optimize`](Self::optimize) with gradients of several devices: summed in f32, then tested, so that an
    /// overflow on one device skips the step for all. The model's own `optimize_multi` gets the sums.
    fn optimize_multi(
        self,
        optim: &mut ModuleOptimizer,
        lr_module: ModuleLearningRate,
        grads: MultiGradientsParams,
    ) -> Self {
        let grads = sum_of_devices(grads, &self.inner);
        self.advance(optim, lr_module, grads, |inner, optim, lr, grads| {
            let grads = by_device(grads, &inner);
            inner.optimize_multi(optim, lr, grads)
        })
    }
}

/// The model's own step, in its precision.
impl<M: InferenceStep> InferenceStep for Scaled<M> {
    type Input = M::Input;
    type Output = M::Output;

    fn step(&self, item: M::Input) -> M::Output {
        in_model(&self.amp, || self.inner.step(item))
    }
}

impl<M> Deref for Scaled<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.inner
    }
}

impl<M: std::fmt::Display> std::fmt::Display for Scaled<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counters = self.scaler().counters();
        write!(
            f,
            "{}\nLoss scale: {} after {} steps, {} of them skipped",
            self.inner,
            f64::from(self.scaler().loss_scale()),
            counters.steps(),
            counters.skipped()
        )
    }
}

/// Has `ExecutionStrategy::ddp` sum the gradients of parameters in one more backward pass. Burn does so in the first one that a value of theirs is in, and
/// in no other: after a skipped step, or inside a window, each worker would go on with its own (docs/upstream/ddp-second-backward.md).
///
/// Finds the device of such parameters, if there are some.
struct SumAgain(Option<Device>);

impl ModuleVisitor for SumAgain {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        if value.is_require_grad() && value.is_distributed() {
            // Where Burn keeps what a backward pass needs, not in the tensor.
            drop(value.set_distributed(param.id));
            self.0.get_or_insert_with(|| param.base().device());
        }
    }
}

/// The error of a worker of `ddp` whose backward pass has reached no parameter: the others wait for it.
fn without_gradients() -> AmpError {
    AmpError::refused(
        "ddp",
        "a strategy one of whose workers has a step without gradients, for which all others wait",
        "one in which each worker's loss depends on the parameters in every step: multiply a loss that is not wanted by 0",
    )
}

/// Tells whether a checkpoint may read the model's values when the next step has written them: on all devices but Flex, to which a copy would cost as
/// much memory as model and optimizer take.
fn is_read_late<M: Module>(model: &M) -> bool {
    (model.devices().into_iter()).any(|device| device.inner() != Device::flex())
}
