//! [`GradScaler`]: scales losses, unscales gradients, steps optimizers.
//!
//! For one loss and one optimizer, [`ScaledOptimizer`](crate::ScaledOptimizer) does all of this in its `step`.
//! A program that calls each part itself uses the scaler alone:
//!
//! ```
//! use burn::{
//!     module::Module, nn::LinearConfig, optim::SgdConfig, tensor::{Device, Distribution, Tensor},
//! };
//! use burn_amp::GradScalerConfig;
//!
//! let device = Device::flex().autodiff();
//! let mut model = LinearConfig::new(4, 2).init(&device);
//! let mut optim = SgdConfig::new().init();
//! let mut scaler = GradScalerConfig::new().init()?;
//!
//! for _ in 0..3 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let loss = model.forward(input).mean();
//!
//!     let grads = scaler.backward(loss, &model);
//!     let grads = scaler.unscale(grads, &model)?;
//!     model = scaler.try_step(&mut optim, 0.1, model, grads)?;
//!     scaler.update()?;
//! }
//! assert_eq!(scaler.counters().steps(), 3);
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

use burn::{module::Module, optim::GradientsParams, tensor::Tensor};
use burn_amp_kernels::DeviceScale;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Once};

mod accumulate;
pub(crate) mod accumulation;
pub(crate) mod iteration;
pub(crate) mod ledger;
pub(crate) mod loss_watch;
mod record;
mod settings;
mod step;
mod worker_side;

pub(crate) use record::ScalerState;
pub use worker_side::HandedOver;

use crate::border::cast::{CastFloat, multiply_losses};
use crate::border::open_scope::SCALES_GRADIENTS;
use crate::gradients::entries::{Entries, LOW_RANK, ids_of};
use crate::gradients::{ScaledGradients, StepGradients, UnscaledGradients, handles};
use crate::scale::loss_scale::{GradScalerConfig, LossScale, SkipCause, StepOutcome};
use crate::scaler::iteration::{Iteration, PendingFindings};
use crate::{
    border::mixed_precision::MixedPrecision,
    error::AmpError,
    gradients::running_statistics::Buffers,
    gradients::status::GradientStatus,
    gradients::unscale::unscale,
    journal::account::Account,
    journal::step_counters::StepCounters,
    lock::Guard,
    scale::border_events::BorderEvent,
    scale::device_step::DeviceStep,
    scale::live_scale::LiveScale,
    scaler::ledger::Ledger,
    scaler::loss_watch::LossWatch,
    values::{Parameter, is_half},
};

thread_local! {
    /// Whether a scaler of its own has scaled a loss on this thread, whose gradients nobody has tested since.
    static SCALES_LOSSES: Cell<bool> = const { Cell::new(false) };
}

/// Says once that gradients are multiplied by two loss scales.
fn warn_of_two_scales() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        warn!(
            "a `GradScaler` has scaled the loss, and `autocast` of a `MixedPrecision` in f16 scales gradients too: multiplied by both, they \
             overflow. Call `backward` on the loss as it is, and build the optimizer with `ScaledOptimizer::new(optim, &amp)`"
        );
    });
}

impl GradScalerConfig {
    /// Checks the settings and builds the scaler.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Self::schedule).
    pub fn init(&self) -> Result<GradScaler, AmpError> {
        self.schedule()?.init()
    }
}

impl LossScale {
    /// The scaler that moves this loss scale, by its settings and its rule.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] if it was stored with a rule of your own and was not given that again.
    pub fn init(self) -> Result<GradScaler, AmpError> {
        self.check_rule().map(GradScaler::new)
    }
}

/// Scales losses, unscales and tests gradients, skips steps that overflow, and moves the loss scale.
///
/// The counterpart of PyTorch's `torch.amp.GradScaler` (same names, defaults and arithmetic), after
/// "Mixed Precision Training" (Micikevicius et al., 2018). Built by
/// [`GradScalerConfig::init`].
///
/// A value: a clone is independent, with two exceptions. Clones of the scaler of a [`MixedPrecision`] share its loss scale. And a
/// loss that a clone has scaled since the last [`update`](Self::update) counts as scaled for the original too, so that workers may
/// scale with clones. A [`ScaledLrScheduler`](crate::ScaledLrScheduler) does not follow a clone. It waits for the device where it tests
/// gradients, once: in [`unscale`](Self::unscale), or in [`accumulate`](Self::accumulate) and [`flush`](Self::flush).
#[derive(Clone, Debug)]
pub struct GradScaler {
    pub(crate) ledger: Ledger,
    pub(crate) iteration: Iteration,
    watch: LossWatch,
    pub(crate) pending: PendingFindings,
    /// The scopes that were open at the last step.
    opened: u64,
    warned_of_no_scope: bool,
    pub(crate) buffers: Buffers,
}

/// A scaler that moves the loss scale of this handle: that of an optimizer whose gradients its scopes have scaled and unscaled.
impl From<&MixedPrecision> for GradScaler {
    fn from(amp: &MixedPrecision) -> Self {
        Self::with_ledger(Ledger::of(amp, Account::default()))
    }
}

impl GradScaler {
    pub(crate) fn new(schedule: LossScale) -> Self {
        let live = Arc::new(LiveScale::of_scaler(schedule));
        Self::with_ledger(Ledger::new(live, None, Account::default()))
    }

    fn with_ledger(ledger: Ledger) -> Self {
        Self {
            iteration: Iteration::default(),
            watch: LossWatch::default(),
            pending: PendingFindings::default(),
            opened: ledger.live.opened(),
            warned_of_no_scope: false,
            buffers: Buffers::since(ledger.live.skips()),
            ledger,
        }
    }

    /// Is waited for before an iteration ends, and not as the scaler that it was cloned from.
    #[doc(hidden)]
    pub fn join(&mut self) {
        self.ledger = self.ledger.forked(self.live().join());
    }

    /// Is no longer waited for before an iteration ends.
    #[doc(hidden)]
    pub fn leave(&mut self) {
        self.ledger = self.ledger.forked(Arc::default());
    }

    /// The `MixedPrecision` whose loss scale this moves; none of a scaler that scales losses itself.
    pub fn precision(&self) -> Option<&MixedPrecision> {
        self.ledger.amp.as_ref()
    }

    /// The scale, whoever applies it.
    pub(crate) fn live(&self) -> &Arc<LiveScale> {
        &self.ledger.live
    }

    /// What this scaler itself multiplies losses by: nothing where scopes do it.
    pub(crate) fn loss_factor(&self) -> f32 {
        match self.ledger.amp {
            Some(_) => 1.0,
            None => self.loss_scale(),
        }
    }

    /// Multiplies a loss, or a structure of losses, by the loss scale; by 1 if this is the scaler of a [`MixedPrecision`], whose scopes scale.
    ///
    /// Takes what [`CastFloat`] is implemented for: tensors, `Vec`, arrays, tuples and `Option` of them, and structures of your
    /// own by [`cast_fields!`](crate::cast_fields).
    ///
    /// Tensors of any rank and float dtype. The product is taken in f32 and stays f32 for f16, bf16 and f32
    /// losses, so that an f16 loss does not turn into infinity here; an f64 loss stays f64. Disabled: the
    /// losses are returned as they are. Does not wait for the device.
    ///
    /// The way *back* through an f16 loss still passes an f16 gradient, which cannot hold 65536: reduce the loss
    /// itself in f32 (cast the logits), or the first steps will overflow until the scale fits.
    pub fn scale<T: CastFloat>(&self, loss: T) -> T {
        self.multiply(loss, self.loss_factor())
    }

    fn multiply<T: CastFloat>(&self, loss: T, scale: f32) -> T {
        if !self.is_enabled() {
            return loss;
        }
        let scaled = multiply_losses(loss, scale);
        self.watch.see();
        if self.ledger.amp.is_none() {
            SCALES_LOSSES.set(true);
        }
        scaled
    }

    /// Scales the loss, runs the backward pass and collects the gradients of `module`'s parameters.
    ///
    /// Does not wait for the device.
    ///
    /// # Panics
    ///
    /// If the loss was not computed with autodiff, as [`Tensor::backward`].
    pub fn backward<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        self.backward_at(self.loss_factor(), loss, module)
    }

    /// As [`backward`](Self::backward), with another loss scale than the present one.
    pub(crate) fn backward_at<const D: usize, M: Module>(
        &self,
        scale: f32,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        let grads = self.multiply(loss, scale).backward();
        let params = GradientsParams::from_grads(grads, module);
        ScaledGradients { params, scale }
    }

    /// The loss scale after [`resolve_dropped`](Self::resolve_dropped).
    pub(crate) fn resolved_loss_factor(&self) -> f32 {
        if self.ledger.amp.is_some() || !self.is_enabled() {
            return self.loss_factor();
        }
        let mut iteration = self.iteration.clone();
        for found in self.pending.dropped() {
            iteration.record(&found);
        }
        match iteration.seen {
            Some(seen) => self.schedule().advance(seen).scale(),
            None => self.loss_factor(),
        }
    }

    /// Marks gradients of a loss that went through [`scale`](Self::scale) since the last [`update`](Self::update) as scaled
    /// by the present loss scale.
    ///
    /// ```
    /// # use burn::{nn::LinearConfig, optim::GradientsParams, tensor::{Device, Tensor}};
    /// # use burn_amp::GradScalerConfig;
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(4, 2).init(&device);
    /// # let loss = model.forward(Tensor::<2>::ones([1, 4], &device)).mean();
    /// let scaler = GradScalerConfig::new().init()?;
    /// let grads = scaler.scale(loss).backward();
    /// let grads = scaler.scaled(GradientsParams::from_grads(grads, &model))?;
    /// assert_eq!(grads.loss_scale(), 65536.0);
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::LossNotScaled`] if neither this scaler nor a copy of it has scaled a loss since the last
    /// [`update`](Self::update): the gradients of a plain loss are not scaled, and must not be divided. Never of the scaler of a
    /// [`MixedPrecision`], whose scopes scale, and of a disabled one.
    pub fn scaled(&self, grads: GradientsParams) -> Result<ScaledGradients, AmpError> {
        let scales = self.is_enabled() && self.ledger.amp.is_none();
        match scales && !self.watch.is_scaled() {
            true => Err(AmpError::LossNotScaled),
            false => Ok(ScaledGradients {
                scale: self.loss_factor(),
                params: grads,
            }),
        }
    }

    /// Divides gradients by the loss scale and looks for values that are not finite.
    ///
    /// Takes what [`backward`](Self::backward) or [`scaled`](Self::scaled) gives. Gradients come out in f32 for f16, bf16
    /// and f32 parameters and in f64 for f64 ones ([`parameter_dtype_gradients`](GradScalerConfig::parameter_dtype_gradients) can change that). The inverse of the
    /// scale is taken in f64 and rounded to f32 once, as in PyTorch; with a scale that is a power of two the result
    /// is that of an unscaled f32 step, bit for bit, except where it is subnormal.
    ///
    /// Gradients of parameters that are not in `module` are dropped, as Burn's optimizers ignore them.
    /// Disabled: gradients pass as they are, and [`status`](UnscaledGradients::status) measures them where it is asked.
    ///
    /// Waits for the device, unless disabled: one small transfer for all gradients (one for each device, if there are several).
    ///
    /// # Errors
    ///
    /// [`AmpError::UnsupportedDType`] if a gradient's device cannot compute in the gradient's dtype, [`AmpError::GradientShape`] if
    /// a gradient does not have its parameter's shape.
    pub fn unscale<M: Module>(
        &self,
        grads: ScaledGradients,
        module: &M,
    ) -> Result<UnscaledGradients, AmpError> {
        let entries = Entries::of(grads.params(), module)?;
        let in_own_dtype = self.config().parameter_dtype_gradients;
        let grads = self.test(grads.into(), &entries, in_own_dtype)?;
        Ok(self.registered(grads))
    }

    /// Remembers what was found in gradients until they are stepped with, observed, discarded or dropped.
    pub(crate) fn registered(&self, grads: UnscaledGradients) -> UnscaledGradients {
        match self.is_enabled() {
            true => self.pending.register(grads),
            false => grads,
        }
    }

    /// An iteration waits for its steps from now on. It `begins` to test gradients; an optimizer is waited for as soon as it is there.
    pub(crate) fn expect(&self, begins: bool) {
        self.live().expect(&self.ledger.page.member, begins);
    }

    /// Unscales and tests gradients of any kind: into f32 (f64 for f64 parameters) or the parameter's dtype.
    pub(crate) fn test(
        &self,
        grads: StepGradients,
        entries: &Entries,
        in_own_dtype: bool,
    ) -> Result<UnscaledGradients, AmpError> {
        self.expect(true);
        let found = || entries.gradients.clone();
        let tested = match grads {
            StepGradients::Unscaled(grads) => return Ok(grads),
            grads if !self.is_enabled() => {
                let grads = grads.into_params();
                return Ok(UnscaledGradients::new(grads, found(), None));
            }
            StepGradients::Scaled(ScaledGradients { params, scale }) => {
                let is_own = self.ledger.amp.is_none() && SCALES_LOSSES.take();
                if is_own && entries.has_scopes && SCALES_GRADIENTS.take() {
                    warn_of_two_scales();
                }
                // As PyTorch.
                let inverse = f64::from((1.0 / f64::from(scale)) as f32);
                let edge = self.schedule().edge();
                unscale(params, found(), inverse, in_own_dtype, edge)?
            }
            StepGradients::Plain(grads) => self.test_plain(grads, entries)?,
        };
        Ok(self.explained(tested, None))
    }

    /// Tests gradients that are not scaled, as they are: those of Burn's own `backward`.
    ///
    /// Where they overflow after scopes of a [`MixedPrecision`], waits once more, to find out whether the loss scale is the cause.
    /// Where its scopes cast the parameters, an adapter that casts its base by hand is refused.
    fn test_plain(
        &self,
        grads: GradientsParams,
        entries: &Entries,
    ) -> Result<UnscaledGradients, AmpError> {
        static SAID: Once = Once::new();
        match self.precision() {
            Some(amp) if amp.is_scaled() => {
                if let Some(parameter) = entries.adapted.clone() {
                    let name = LOW_RANK.to_string();
                    return Err(AmpError::UnfrozenBase { parameter, name });
                }
            }
            None if entries.has_scopes => SAID.call_once(|| {
                warn!(
                    "this optimizer adjusts a loss scale of its own, which the model's `MixedPrecision` does not use: \
                     build it with `ScaledOptimizer::new(optim, &amp)`"
                );
            }),
            _ => {}
        }
        let (unread, events) = self.live().take_measures();
        let pass = handles(&grads, &entries.gradients, self.schedule().edge());
        let (statuses, event_statuses) = pass.inspect(events)?;
        if !unread.is_empty() {
            (self.live().events).restore(BorderEvent::read(unread, event_statuses));
        }
        let found = entries.gradients.clone();
        Ok(UnscaledGradients::new(grads, found, Some(statuses)))
    }

    /// Warns, once, if no scope was open since the last step: its gradients say nothing of this scale.
    pub(crate) fn check_scopes(&mut self) {
        let Some(amp) = &self.ledger.amp else {
            return;
        };
        SCALES_GRADIENTS.set(false);
        if SCALES_LOSSES.take() && amp.is_scaled() {
            warn_of_two_scales();
        }
        let opened = self.ledger.live.opened();
        let unused = opened == self.opened && is_half(amp.dtype().into());
        self.opened = opened;
        if unused && !std::mem::replace(&mut self.warned_of_no_scope, true) {
            warn!(
                "no `autocast` of this optimizer's `MixedPrecision` was entered since its last step, so the forward pass ran in f32, or with \
                 another `MixedPrecision`: run it in `amp.autocast(input, |x| model.forward(x))`, in a Learner's model in the free `autocast`, \
                 and give clones of one `MixedPrecision` to model and optimizer"
            );
        }
    }

    /// Adds the cause of a skip, if the gradients overflow: of a window by what came to the border in it.
    fn explained(
        &self,
        mut grads: UnscaledGradients,
        window: Option<VecDeque<BorderEvent>>,
    ) -> UnscaledGradients {
        let live = self.live();
        match (grads.skips(), window) {
            (true, Some(events)) => {
                let events = BorderEvent::of_skip(events, 0);
                grads.finding.cause = live.cause_of(events, grads.overflows());
            }
            (true, None) => {
                let ids = ids_of(&grads.entries);
                grads.finding.cause = live.cause_of_skip(&ids, grads.overflows());
            }
            (false, window) => {
                if let Some(window) = window {
                    live.events.restore_window(window);
                }
            }
        }
        // An infinity that no scope gave may be another rank's overflow: it lowers the scale, as with PyTorch. A NaN may be of any loss.
        let may_overflow =
            |grads: &UnscaledGradients| !grads.has_nan() || live.is_used_by_threads();
        if grads.finding.cause == SkipCause::Unknown && may_overflow(&grads) {
            grads.finding.cause = SkipCause::Scale;
        }
        live.note_test();
        self.show(&grads);
        grads
    }

    /// Before a step, or a micro-batch, of a module in which these values are not trained.
    #[doc(hidden)]
    pub fn begin_step<M: Module>(&mut self, module: &M, found: Vec<Parameter>) {
        let found = match self.is_enabled() {
            true => found,
            false => Vec::new(),
        };
        self.buffers.before_step(module, found);
    }

    /// After it. Waits for the device only where something was skipped.
    #[doc(hidden)]
    pub fn leave_step<M: Module>(&mut self, module: &M, accepts_micro_batches: bool) {
        let outcome = self.account().outcome;
        let live = &self.ledger.live;
        (self.buffers).after_step(module, outcome, accepts_micro_batches, live);
    }

    pub(crate) fn account(&self) -> Guard<'_, Account> {
        self.ledger.account()
    }

    /// Enters what a call has done in the journals. At the end of each call.
    pub(crate) fn enter(&self) {
        self.ledger.show(Some(self.loss_scale()));
    }

    /// Shows counters that were loaded, or that a `Learner` begins with. Optimizers that are gone count no longer, if no other is there.
    #[doc(hidden)]
    pub fn show_loaded(&self) {
        if !self.live().has_others(&self.ledger.page.member) {
            self.ledger.forget_others();
        }
        self.ledger.show(None);
    }

    /// Whether a device can move the scale: nobody else does, nor wants to see the gradients.
    pub(crate) fn can_step_on_device(&self) -> bool {
        let live = self.live();
        let is_unobserved = |amp: &MixedPrecision| amp.observer().is_none();
        self.is_enabled()
            && self.precision().is_some_and(is_unobserved)
            && !live.is_moved_by_others(&self.ledger.page.member)
            && live.on_device().is_some()
            && self.iteration.seen.is_none()
    }

    /// Whether gradients were unscaled and dropped since the last step, or counted by calls of the scaler's own.
    pub(crate) fn is_in_iteration(&self) -> bool {
        self.iteration.is_open() || !self.pending.dropped().is_empty()
    }

    /// A scale that is on a device, for the scopes of this.
    pub(crate) fn device_step_at(&self, scale: DeviceScale) -> DeviceStep {
        DeviceStep::new(scale, Arc::downgrade(&self.ledger.page.member))
    }

    /// Starts again: the schedule at its initial scale, counters at zero. Settings stay.
    pub fn reset(&mut self) {
        let schedule = self.schedule().restarted();
        self.restart_at(StepCounters::default());
        self.live().restart_at(schedule);
        let restarted = self.live().regions().lock().restart();
        drop(restarted);
        self.show_loaded();
    }

    /// Whether losses are scaled and gradients tested.
    pub fn is_enabled(&self) -> bool {
        self.config().enabled
    }

    /// The settings, those changed by setters included.
    pub fn config(&self) -> GradScalerConfig {
        self.live().config()
    }

    /// The state of the schedule.
    pub fn schedule(&self) -> LossScale {
        self.live().schedule()
    }

    /// Steps taken and skipped since this scaler was built.
    pub fn counters(&self) -> StepCounters {
        self.account().counters
    }

    /// What the last call of `step`, `accumulate`, `flush`, `observe` or `discard` has done, of this scaler or of the optimizer
    /// that it belongs to; none before the first, and where it returned an error for gradients that were not counted.
    pub fn last_outcome(&self) -> Option<StepOutcome> {
        self.account().outcome
    }

    /// The measures of the gradients of the last such call, before clipping; none if they were not tested: of a micro-batch in a
    /// window that is tested as a whole, and of a disabled scaler that does not clip.
    pub fn last_status(&self) -> Option<GradientStatus> {
        self.account().status.clone()
    }

    /// Keeps the status for those who ask for it later.
    pub(crate) fn remember(&mut self, grads: &UnscaledGradients) {
        // A disabled scaler knows something only where somebody has asked, as clipping does.
        self.account().status = grads.known_status().cloned();
    }

    /// Before gradients are counted.
    pub(crate) fn look_at(&mut self, grads: &UnscaledGradients) {
        // Micro-batches were checked one by one, beside their losses.
        if self.is_enabled() && !grads.finding.is_resolved {
            if !grads.skips() {
                self.live().read_measures();
            }
            let scale = self.schedule().scale();
            let arrived = || self.watch.is_scaled() || self.live().have_arrived();
            if !self.live().is_idle() {
                (self.account()).warn_of_zeros(grads.status(), scale, arrived);
            }
        }
        self.remember(grads);
    }

    /// Warns, once, of plain gradients that may be those of a scaled loss.
    pub(crate) fn check_plain(&mut self) {
        if self.is_enabled() && self.ledger.amp.is_none() {
            self.watch.check_plain();
        }
    }
}
