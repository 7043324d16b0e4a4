use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ParamId},
    optim::{GradientsParams, ModuleOptimizer, MultiGradientsParams},
    tensor::DType,
    train::{InferenceStep, TrainOutput, TrainStep},
};

use super::LossStep;
use crate::{
    ema::Ema,
    error::AmpError,
    gradients::sum_of_devices,
    optim::StepOptions,
    scaler::{GradScaler, ModuleOptim, ScalerMonitor},
};

/// A model with its loss scaler: what a `Learner` trains.
///
/// Made by [`ScaledOptimizer::into_learner`](crate::ScaledOptimizer::into_learner). The scaler is owned **by value**: Burn clones
/// the model at every step and keeps what `optimize` returns, so forks, workers and checkpoints each have a scaler
/// of their own, which all follow the same gradients.
///
/// - [`TrainStep`]: scales the loss of [`LossStep`] and runs the backward pass. `optimize` and `optimize_multi`
///   unscale and test the gradients, step or skip, and move the loss scale. Waits for the device once a step.
/// - [`Module`]: the wrapped model's, with its paths and parameter ids, so that optimizer groups, learning rates and
///   records fit with and without the wrapper. Behind them comes one more buffer of integers, `burn_amp.scaler`, with
///   the scaler's state; a change that leaves it unreadable is undone.
/// - [`InferenceStep`]: the wrapped model's. `valid()` and Burn's `Evaluator` see plain inference.
/// - Averages of the weights, if [`with_ema`](crate::ScaledOptimizer::with_ema) keeps any: taken at every step that was not
///   skipped, and in the record ([`ema`](Self::ema), [`finalize`](Self::finalize)). A step has two sets of them for a
///   moment, because Burn holds on to the model as it was before.
///
/// A record of it loads into a bare model (`record.allow_unused(true)`), and a record of a bare model loads into it: then
/// the scaler starts fresh, which the log says. See [`try_load_record`](Module::try_load_record).
///
/// ```
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::Device};
/// # use burn_amp::{GradScalerConfig, Scaled};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::flex().autodiff();
/// let model: Linear = LinearConfig::new(4, 2).init(&device);
/// let record = Scaled::new(model, GradScalerConfig::new().init()?).into_record();
///
/// let bare: Linear = LinearConfig::new(4, 2).init(&device).try_load_record(record.allow_unused(true))?;
/// # let _ = bare;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Scaled<M> {
    pub(super) inner: M,
    pub(super) scaler: GradScaler,
    pub(super) state_id: ParamId,
    pub(super) monitor: ScalerMonitor,
    /// Clipping and averages; no window, since Burn accumulates.
    pub(super) options: StepOptions,
    /// What the optimizer was told to do and a Learner cannot: the first step fails with it.
    pub(super) refusal: Option<AmpError>,
    /// Whether the optimizer combines half-precision parameters with f32 gradients.
    pub(super) mixed: bool,
    /// Once a step has failed: the steps since, which changed nothing.
    pub(super) ignored: Option<u32>,
    /// The failure to forget with the next step.
    pub(super) past: Option<u64>,
}

/// Burn's queue of metrics holds one event: it hears of a failure two steps later, or one more if an interrupter that is
/// not the run's was told first. After so many steps nobody will tell it: the metric is not the run's.
const PATIENCE: u32 = 4;

impl<M> Scaled<M> {
    /// Puts a scaler beside a model. For the `Learner` of a [`ScaledOptimizer`](crate::ScaledOptimizer), use its
    /// [`into_learner`](crate::ScaledOptimizer::into_learner).
    pub fn new(model: M, scaler: GradScaler) -> Self {
        Self {
            inner: model,
            monitor: ScalerMonitor::new(&scaler),
            scaler,
            state_id: ParamId::new(),
            options: StepOptions::default(),
            refusal: None,
            mixed: false,
            ignored: None,
            past: None,
        }
    }

    /// The model.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// The model without its scaler.
    pub fn into_inner(self) -> M {
        self.inner
    }

    /// The scaler: loss scale, counters, the last step's gradients.
    pub fn scaler(&self) -> &GradScaler {
        &self.scaler
    }

    /// The scaler, to change its settings: a loaded record brings its own. Not for a step by hand.
    pub fn scaler_mut(&mut self) -> &mut GradScaler {
        &mut self.scaler
    }

    /// The averages of the weights; none without [`ScaledOptimizer::with_ema`](crate::ScaledOptimizer::with_ema).
    ///
    /// `ema().module(model.inner())` is a copy of the model with the averages in place of its parameters.
    pub fn ema(&self) -> Option<&Ema> {
        self.options.ema.as_ref()
    }

    /// A view of the scaler for metrics and other threads. Shared by all clones.
    pub fn monitor(&self) -> ScalerMonitor {
        self.monitor.clone()
    }
}

impl<M: Module> Scaled<M> {
    /// Ends the training: the model without its scaler, its parameters replaced by their averages, in the parameters' dtype.
    ///
    /// As [`into_inner`](Self::into_inner) without [`ScaledOptimizer::with_ema`](crate::ScaledOptimizer::with_ema), or before
    /// the first step. Does not wait for the device.
    pub fn finalize(self) -> M {
        match &self.options.ema {
            Some(ema) => ema.finalize(self.inner),
            None => self.inner,
        }
    }

    /// Steps or skips. A failure ends the run: this step and all that Burn may still ask for change nothing.
    fn advance(
        mut self,
        optim: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        if let (Some(ignored), Some(error)) = (&mut self.ignored, self.monitor.error()) {
            *ignored += 1;
            if !self.monitor.not_heard() || *ignored > PATIENCE {
                panic!("{error}");
            }
            return self;
        }
        self.ignored = None;
        if let Some(failure) = self.past.take() {
            self.monitor.forget_failure(failure);
        }
        let mut optim = LearnerOptim {
            optim,
            mixed: self.mixed,
        };
        let steps = self.scaler.counters().steps();
        let before = self.inner.clone();
        let stepped = match self.refusal.clone() {
            Some(refusal) => Err(refusal),
            None => {
                (self.options).try_step(&mut self.scaler, &mut optim, lr, self.inner, grads.into())
            }
        };
        match stepped {
            Ok(inner) => self.inner = inner,
            Err(error) => {
                self.inner = before;
                self.ignored = Some(0);
                if let Err(error) = self.monitor.fail(error) {
                    panic!("{error}");
                }
            }
        }
        match self.scaler.counters().steps() == steps {
            true => self.monitor.publish(&self.scaler),
            false => self.monitor.publish_step(&self.scaler),
        }
        self
    }
}

impl<M: LossStep + Module> TrainStep for Scaled<M> {
    type Input = M::Input;
    type Output = M::Output;

    /// Computes the loss, scales it and runs the backward pass. Does not wait for the device.
    ///
    /// # Panics
    ///
    /// If the loss was not computed with autodiff, as [`Tensor::backward`](burn::tensor::Tensor::backward).
    fn step(&self, batch: M::Input) -> TrainOutput<M::Output> {
        let (loss, output) = self.inner.loss_step(batch);
        let grads = self.scaler.scale(loss).backward();
        TrainOutput::new(&self.inner, grads, output)
    }

    /// Unscales and tests the gradients, steps the optimizer or skips the step, and moves the loss scale.
    ///
    /// Gradients of several micro-batches may be summed before: the scale moves only here. A step that fails
    /// ([`AmpError::LossScaleExhausted`](crate::AmpError::LossScaleExhausted), and what
    /// [`ScaledOptimizer::try_step`](crate::ScaledOptimizer::try_step) refuses) returns the model as it was and ends
    /// the run: through [`ScalerMonitor::interrupter`] if that is the run's, or else through one of this crate's metrics.
    ///
    /// # Panics
    ///
    /// If a step fails and there is neither, with the error's message. If there is one but it is not the run's, at most
    /// 5 steps later; these steps change nothing.
    fn optimize(
        self,
        optim: &mut ModuleOptimizer,
        lr_module: ModuleLearningRate,
        grads: GradientsParams,
    ) -> Self {
        self.advance(optim, lr_module, grads)
    }

    /// As [`optimize`](Self::optimize), with gradients of several devices: summed in f32, then tested, so that
    /// an overflow on one device skips the step for all.
    fn optimize_multi(
        self,
        optim: &mut ModuleOptimizer,
        lr_module: ModuleLearningRate,
        grads: MultiGradientsParams,
    ) -> Self {
        let grads = sum_of_devices(grads, &self.inner);
        self.advance(optim, lr_module, grads)
    }
}

/// The wrapped model's own step: its items, no scaling, no wait for the device that the model does not make itself.
impl<M: InferenceStep> InferenceStep for Scaled<M> {
    type Input = M::Input;
    type Output = M::Output;

    fn step(&self, item: M::Input) -> M::Output {
        self.inner.step(item)
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

/// Burn's optimizer, which may be one with master weights.
struct LearnerOptim<'a> {
    optim: &'a mut ModuleOptimizer,
    mixed: bool,
}

impl ModuleOptim for LearnerOptim<'_> {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        self.optim.step(lr, module, grads)
    }

    fn accepts(&self, parameter: DType, gradient: DType) -> bool {
        self.mixed || parameter == gradient
    }
}
