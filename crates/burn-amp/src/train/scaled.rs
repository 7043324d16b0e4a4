use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ModuleVisitor, Param, Reparameterization},
    optim::{GradientsParams, ModuleOptimizer, MultiGradientsParams},
    tensor::{DType, Device, FloatDType, Tensor},
    train::{InferenceStep, TrainOutput, TrainStep},
};
use std::ops::Deref;

use super::{
    checkpoint::{self, Found, Stored},
    fused::{FusedSteps, Stepper},
    own_step,
    pipelined::Pipeline,
};
use crate::{
    dtype::is_half,
    ema::Ema,
    entries::Entries,
    error::{AmpError, StepError},
    gradients::sum_of_devices,
    master_weights::masters_of,
    mixed_precision::{MixedPrecision, ScopedParameter},
    module_optim::ModuleOptim,
    module_path::{self, ModulePath},
    optimizer::ScaledOptimizer,
    param_tensors::ParamTensors,
    rank::with_rank,
    record::AmpRecord,
    scaler::GradScaler,
    step_options::{Decided, StepOptions},
};

/// A model in half precision: what the `Learner` of [`MixedPrecision::learner`] trains, and what it returns.
///
/// Used as the model itself: it dereferences to it, its records are the model's, and `valid()` and Burn's `Evaluator` see the
/// model's own [`InferenceStep`], in the precision of the training. [`into_inner`](Self::into_inner) returns it by value.
///
/// - [`TrainStep::step`]: the model's own, as it is. [`autocast`](crate::autocast) in it is that of the `MixedPrecision`.
/// - [`TrainStep::optimize`] and [`TrainStep::optimize_multi`]: test the gradients, which waits for the device once, and call
///   the model's own if the step is not skipped. After a skip, running statistics (BatchNorm's) that are not finite are set
///   back to those of the last good step. A [`Fused`](crate::Fused) optimizer steps by itself and does not wait, as in
///   [`ScaledOptimizer::step`], unless the model's own do more than Burn's: the first step finds out.
/// - A checkpoint has the scaler's state, that of a guard, and the averages of [`with_ema`](crate::ScaledOptimizer::with_ema), in the file of the
///   *optimizer*. A `Learner` without this crate resumes it, and the other way round: then the scaler starts fresh, with a
///   warning in the log.
#[derive(Clone, Debug)]
pub struct Scaled<M> {
    pub(super) inner: M,
    /// The weights that were trained, where `inner` has their averages.
    pub(super) trained: Option<M>,
    amp: MixedPrecision,
    pub(super) scaler: GradScaler,
    /// Clipping, a guard and averages; no window, since Burn accumulates.
    pub(super) options: StepOptions,
    /// Whether the optimizer combines half-precision parameters with f32 gradients.
    mixed: bool,
    /// Whether the last step has ended the run.
    pub(super) failed: bool,
    held: Held<M>,
    /// Where a fused optimizer steps by itself.
    pub(super) fused: Option<FusedSteps>,
    /// Whether it is known that the model has no `optimize` of its own.
    is_tried: bool,
    /// Where the optimizer steps on a thread of its own.
    pub(super) pipeline: Option<Pipeline>,
}

/// What a checkpoint was taken of, until the step after the next one. Burn writes checkpoints on another thread, and CubeCL reads
/// their values there: memory that is held is not written by a step in place, and under fusion that step is made late.
struct Held<M>(#[allow(dead_code)] Option<Box<(M, ModuleOptimizer)>>);

/// The first holds it.
impl<M> Clone for Held<M> {
    fn clone(&self) -> Self {
        Self(None)
    }
}

impl<M> std::fmt::Debug for Held<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

impl<M> Scaled<M> {
    /// Ends the run, through its interrupter; panics where there is none.
    fn fail(&mut self, error: AmpError) {
        self.failed = true;
        if let Err(error) = self.amp.fail_run(error) {
            panic!("{error}");
        }
    }

    pub(super) fn new(
        inner: M,
        amp: MixedPrecision,
        mut scaler: GradScaler,
        options: StepOptions,
        mixed: bool,
    ) -> Self {
        // Burn clones the model: only its forks, for workers, count as optimizers of their own.
        scaler.leave();
        amp.publish(&scaler, false);
        Self {
            inner,
            trained: None,
            amp,
            scaler,
            options,
            mixed,
            failed: false,
            held: Held(None),
            fused: None,
            is_tried: false,
            pipeline: None,
        }
    }

    /// The model of a fused optimizer, which makes one pass for all parameters.
    pub(super) fn with_fused(mut self, factors: bool) -> Self {
        let (scaler, options) = (self.scaler.clone(), self.options.clone());
        self.fused = Some(FusedSteps::new(scaler, options, factors));
        self
    }

    /// Shares the steps of a fused optimizer with no other any more.
    pub(super) fn by_itself(self) -> Self {
        match self.fused.as_ref().map(FusedSteps::takes_factors) {
            Some(factors) => self.with_fused(factors),
            None => self,
        }
    }

    /// The plain model, to use without this crate.
    pub fn into_inner(self) -> M {
        self.inner
    }

    /// The scaler: its counters, and the measures of the last step's gradients.
    pub fn scaler(&self) -> &GradScaler {
        &self.scaler
    }

    /// The averages of the weights; none without [`ScaledOptimizer::with_ema`](crate::ScaledOptimizer::with_ema).
    ///
    /// `ema().module(&*model)` is a copy of the model with the averages in place of its parameters.
    pub fn ema(&self) -> Option<&Ema> {
        self.options.ema.as_ref()
    }

    /// What the next checkpoint is to hold.
    pub(super) fn state(&self) -> AmpRecord {
        state_of(&self.scaler, &self.options)
    }

    /// Goes on from what a checkpoint has brought.
    fn go_on_from(&mut self, state: AmpRecord) {
        // The loss scale is in place: it was set when the checkpoint was read.
        if let Some(scaler) = state.scaler {
            self.scaler.restore_counters(scaler);
        }
        match (&mut self.options.ema, state.averages) {
            (Some(ema), Some(averages)) => ema.restore(averages),
            (Some(ema), None) => {
                ema.reset();
                log::warn!("the checkpoint holds no averages of the weights: they start again");
            }
            (None, Some(_)) => log::warn!(
                "the checkpoint holds averages of the weights, but this run keeps none: they are dropped. `ScaledOptimizer::with_ema` keeps them"
            ),
            (None, None) => {}
        }
        self.options.restore_guard(state.guard, "the checkpoint");
        self.amp.publish(&self.scaler, false);
    }

    fn start_fresh(&mut self) {
        self.scaler.reset_counters();
        if let Some(ema) = &mut self.options.ema {
            ema.reset();
        }
        if let Some(guard) = &mut self.options.guard {
            guard.reset();
        }
        log::warn!(
            "the checkpoint is that of a run without a loss scaler: the scaler starts fresh, at loss scale {}",
            f64::from(self.scaler.loss_scale())
        );
        self.amp.publish(&self.scaler, false);
    }
}

impl<M: Module> Scaled<M> {
    /// Ends the training: the model, its parameters replaced by their averages, in the parameters' dtype.
    ///
    /// As [`into_inner`](Self::into_inner) without [`ScaledOptimizer::with_ema`](crate::ScaledOptimizer::with_ema), or before
    /// the first step. Does not wait for the device.
    pub fn finalize(self) -> M {
        match &self.options.ema {
            Some(ema) => ema.finalize(self.inner),
            None => self.inner,
        }
    }
}

impl<M: Module + 'static> Scaled<M> {
    /// With the newest parameters, of an optimizer on a thread of its own, and the outcomes of all steps. A failure ends the run.
    pub(super) fn newest(mut self) -> Self {
        if let Some(steps) = &self.fused {
            let heard = steps.synchronize();
            (self.scaler, self.options) = steps.parts();
            if let Err(error) = heard {
                self.fail(error);
            }
            return self;
        }
        let Some(pipeline) = &self.pipeline else {
            return self;
        };
        let newest = pipeline.newest(self.inner);
        if let Some(scaler) = pipeline.scaler() {
            self.scaler = scaler;
        }
        match newest {
            Ok(inner) => self.inner = inner,
            Err(StepError { module, error }) => {
                self.inner = *module;
                self.fail(error);
            }
        }
        self
    }
}

impl<M: TrainStep + Module + 'static> Scaled<M> {
    /// Hands the gradients to the optimizer's thread. A failure ends the run.
    fn hand_over(
        mut self,
        pipeline: &Pipeline,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        let (found, _) = checkpoint::take(optim);
        let mut masters = None;
        let goes_on = matches!(found, Found::Own) && pipeline.is_started();
        match found {
            Found::Own => {}
            Found::Loaded(mut state) => {
                masters = state.masters.take();
                self.go_on_from(*state);
            }
            Found::Plain => self.start_fresh(),
            Found::Nothing => *optim = checkpoint::attach(optim.clone(), &self.amp, self.state()),
        }
        let started = match goes_on {
            true => Ok(()),
            false => {
                let (scaler, options) = (self.scaler.clone(), self.options.clone());
                let stepper = Stepper::new(optim.clone(), pipeline.is_fused());
                let own = ScaledOptimizer::from_parts(stepper, scaler, options);
                pipeline.start(optim, &self.inner, own, masters)
            }
        };
        let stepped = match started {
            Ok(()) => pipeline.step(lr, self.inner, grads),
            Err(error) => Err(StepError::new(self.inner, error)),
        };
        match stepped {
            Ok(inner) => self.inner = inner,
            Err(StepError { module, error }) => {
                self.inner = *module;
                self.fail(error);
            }
        }
        if let Some(scaler) = pipeline.scaler() {
            self.scaler = scaler;
        }
        checkpoint::put(optim, Stored::Pipeline(pipeline.clone()));
        self
    }

    /// Steps with a fused optimizer: one pass, which nobody waits for. A failure ends the run.
    fn step_fused(
        mut self,
        steps: &FusedSteps,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        match steps.step(optim, lr, self.inner, grads) {
            Ok(inner) => self.inner = inner,
            Err(StepError { module, error }) => {
                self.inner = *module;
                self.fail(error);
            }
        }
        (self.scaler, self.options) = steps.parts();
        checkpoint::put(optim, Stored::Fused(steps.clone()));
        self
    }

    /// Steps with the model's own `optimize`, or skips. A failure ends the run.
    fn advance(
        mut self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
        optimize: impl Fn(M, &mut ModuleOptimizer, ModuleLearningRate, GradientsParams) -> M,
    ) -> Self {
        let amp = self.amp.clone();
        if self.failed
            && let Some(error) = amp.run_result().err()
        {
            // The interrupter is not the run's: nobody has ended it.
            panic!("{error}");
        }
        self.failed = false;
        if let Some(pipeline) = self.pipeline.clone() {
            return self.hand_over(&pipeline, optim, lr, grads);
        }
        if self.fused.is_some()
            && !std::mem::replace(&mut self.is_tried, true)
            && amp.in_model(|| own_step::is_there(&self.inner, &optimize))
        {
            self.fused = None;
            log::info!(
                "the model has an `optimize` of its own, so its parameters are stepped one by one, and each step waits for the device"
            );
        }
        let (found, taken) = checkpoint::take(optim);
        self.held = Held(taken.then(|| Box::new((self.inner.clone(), optim.clone()))));
        let goes_on = matches!(found, Found::Own);
        match found {
            Found::Own => {}
            Found::Loaded(state) => self.go_on_from(*state),
            Found::Plain => self.start_fresh(),
            Found::Nothing => {
                // Nobody has told what kind it is.
                self.fused = None;
                *optim = checkpoint::attach(optim.clone(), &self.amp, self.state());
            }
        }
        if let Some(steps) = self.fused.clone() {
            if !goes_on {
                steps.restart(self.scaler.clone(), self.options.clone());
            }
            return self.step_fused(&steps, optim, lr, grads);
        }
        let steps = self.scaler.counters().steps();
        let accepts = Accepts { mixed: self.mixed };
        let decided =
            (self.options).decide(&mut self.scaler, &accepts, &self.inner, grads.into(), None);
        let error = decided.as_ref().err().cloned();
        match decided {
            Ok(Some(Decided { grads, .. })) => {
                let inner = self.inner;
                let inner = self.amp.in_model(|| optimize(inner, optim, lr, grads));
                let inner = attached(inner, &self.amp);
                let masters = || match self.mixed {
                    true => masters_of(optim),
                    false => ParamTensors::default(),
                };
                self.inner = (self.options).applied(&mut self.scaler, inner, masters);
            }
            Ok(None) => {}
            Err(error) => {
                self.fail(error);
            }
        }
        let stepped = self.scaler.counters().steps() != steps;
        amp.publish(&self.scaler, stepped);
        self.scaler.tell(error.as_ref());
        checkpoint::put(optim, Stored::Record(Box::new(self.state())));
        self
    }
}

impl<M: TrainStep + Module + 'static> TrainStep for Scaled<M> {
    type Input = M::Input;
    type Output = M::Output;

    /// The model's own step, in its precision.
    fn step(&self, batch: M::Input) -> TrainOutput<M::Output> {
        if !self.failed {
            // Before the step that Burn asks the interrupter after: with accumulation, `optimize` comes later.
            self.amp.forget_failure();
        }
        // A checkpoint has received parameters that the learner's own model does not have.
        let newest = self
            .pipeline
            .as_ref()
            .and_then(|pipeline| pipeline.current(&self.inner));
        let inner = newest.as_ref().unwrap_or(&self.inner);
        let mut output = self.amp.in_model(|| TrainStep::step(inner, batch));
        if self.mixed {
            // Burn's accumulation would sum them in half precision.
            output.grads = in_full(output.grads, &self.inner);
        }
        output
    }

    /// Tests the gradients, and calls the model's own `optimize`, unless they overflow: then the step is skipped, and the loss
    /// scale backs off. Waits for the device once.
    ///
    /// With a [`Fused`](crate::Fused) optimizer it makes one pass for all parameters, and does not wait where
    /// [`ScaledOptimizer::step`] does not. The first step calls the model's own `optimize` with an optimizer that changes nothing, and waits.
    /// If that does anything but step with these gradients, it is called in every step, as with other optimizers: parameters are
    /// stepped one by one then. What leaves no trace in parameters, gradients and learning rate, such as a count, is not seen.
    ///
    /// A step that fails ([`LossScaleExhausted`](crate::AmpError::LossScaleExhausted), [`LossNotFinite`](crate::AmpError::LossNotFinite),
    /// [`AlwaysGuarded`](crate::AmpError::AlwaysGuarded), and what
    /// [`ScaledOptimizer::try_step`](crate::ScaledOptimizer::try_step) refuses) returns the model as it was and ends the run,
    /// through [`MixedPrecision::interrupter`].
    ///
    /// # Panics
    ///
    /// If a step fails and there is no such interrupter, with the error's message; if it is not the run's, with the next step.
    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr_module: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        self.advance(optim, lr_module, grads, M::optimize)
    }

    /// As [`optimize`](Self::optimize), with gradients of several devices: summed in f32, then tested, so that an
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
        self.amp.in_model(|| self.inner.step(item))
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
        let counters = self.scaler.counters();
        write!(
            f,
            "{}\nLoss scale: {} after {} steps, {} of them skipped",
            self.inner,
            f64::from(self.scaler.loss_scale()),
            counters.steps(),
            counters.skipped()
        )
    }
}

/// What a checkpoint holds of a scaler and what comes with it.
pub(super) fn state_of(scaler: &GradScaler, options: &StepOptions) -> AmpRecord {
    let mut record = scaler.to_record();
    let ema = options.ema.as_ref().filter(|ema| ema.updates() > 0);
    record.averages = ema.map(Ema::state_to_store);
    record.guard = options.guard.clone();
    record
}

/// The model with its reparameterization: a model's own `optimize` may lose that of a parameter, because `Param::map` does.
fn attached<M: Module>(model: M, amp: &MixedPrecision) -> M {
    #[derive(Default)]
    struct Count {
        parameters: usize,
        attached: usize,
    }

    impl module_path::Visit for Count {
        fn parameter<const D: usize>(&mut self, _: &ModulePath, _: &Param<Tensor<D>>) {
            self.parameters += 1;
        }

        fn enter(&mut self, _: &ModulePath, name: &str, _: &str) {
            self.attached += usize::from(name == ScopedParameter::NAME);
        }
    }

    let mut count = Count::default();
    module_path::visit(&model, &mut count);
    match count.attached == count.parameters {
        true => model,
        // Those that have it keep theirs.
        false => model.apply_reparameterization(amp.clone()),
    }
}

/// Gradients in f32 in place of f16 and bf16. Does not wait for the device.
fn in_full<M: Module>(mut grads: GradientsParams, module: &M) -> GradientsParams {
    // What has another shape than its parameter is refused by the step.
    let Ok(entries) = Entries::of(&grads, module) else {
        return grads;
    };
    for entry in entries.gradients().filter(|entry| is_half(entry.gradient)) {
        with_rank!(entry.rank, D => {
            if let Some(grad) = grads.remove::<D>(entry.id) {
                grads.register(entry.id, grad.cast(FloatDType::F32));
            }
        }, _rank => ());
    }
    grads
}

/// Sums of gradients, each in the container of its device.
fn by_device<M: Module>(grads: GradientsParams, module: &M) -> MultiGradientsParams {
    struct Sort {
        grads: GradientsParams,
        sorted: Vec<(GradientsParams, Device)>,
    }

    impl ModuleVisitor for Sort {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(grad) = self.grads.remove::<D>(param.id) else {
                return;
            };
            let device = grad.device();
            let place = self.sorted.iter().position(|(_, other)| *other == device);
            let place = place.unwrap_or_else(|| {
                self.sorted.push((GradientsParams::new(), device));
                self.sorted.len() - 1
            });
            self.sorted[place].0.register(param.id, grad);
        }
    }

    let mut sort = Sort {
        grads,
        sorted: Vec::new(),
    };
    module.visit(&mut sort);
    MultiGradientsParams { grads: sort.sorted }
}

/// What the optimizer takes, which Burn's type does not tell. It is stepped by the model.
struct Accepts {
    mixed: bool,
}

impl ModuleOptim for Accepts {
    fn step<M: Module>(&mut self, _: ModuleLearningRate, module: M, _: GradientsParams) -> M {
        module
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        self.mixed || parameter == gradient
    }
}
