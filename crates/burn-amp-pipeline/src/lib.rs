//! [`PipelinedOptimizer`]: the optimizer on a thread of its own, while the next iteration is computed.
//!
//! ```
//! use burn::{
//!     nn::LinearConfig, optim::{AdamConfig, GradientsParams},
//!     tensor::{Device, Distribution, Tensor},
//! };
//! use burn_amp::{MixedPrecision, pipeline::PipelinedOptimizer};
//!
//! let device = Device::flex().autodiff(); // a GPU, as a rule
//! let amp = MixedPrecision::f16();
//! let (mut model, optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), AdamConfig::new().init());
//! let mut optim = PipelinedOptimizer::new(optim, Device::flex())?; // f32 weights and Adam's state are there
//!
//! for _ in 0..10 {
//!     let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
//!     let output = amp.autocast(input, |x| model.forward(x));
//!     let grads = GradientsParams::from_grads(output.square().mean().backward(), &model);
//!     model = optim.step(1e-3, model, grads); // the parameters of the update before
//! }
//! model = optim.synchronize(model)?; // those of the last one
//! # let _ = model;
//! # Ok::<(), burn_amp::AmpError>(())
//! ```

mod in_flight;
mod masters;
mod update;
mod worker;

/// Threads and queues, named once: a model checker has others.
mod sync {
    pub(super) use std::{sync::mpsc, thread};
}

use burn::tensor::{Device, Tensor};
use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::ModuleOptimizer,
};
use std::{mem::take, path::Path};

use burn_amp_core::internal::{
    Entries, ParamTensors, Parameter, StepGradients, StepOptions, is_half, or_panic, parameters,
};
use burn_amp_core::{
    AmpError, AmpRecord, ModuleOptim, ScaledGradients, ScaledOptimizer, Scaler, StepError,
    StepOutcome,
};
use in_flight::{InFlight, What};
use masters::Trained;
use update::{Update, Updated};
use worker::Worker;

/// What the other crates of the workspace need. It may change with any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::masters::{put, trained};
}

/// An optimizer that steps on a thread of its own, on another device, while the training device computes the next iteration.
///
/// It keeps f32 master weights and the optimizer's state on a host device (Flex, say), where there is more memory than on the training
/// device. The training device has the parameters alone, in f32, or in f16 or bf16 (by `to_half`). Wraps a
/// [`ScaledOptimizer`] with all its options, or any [`ModuleOptim`]; then there is no loss scale.
///
/// **The parameters are one step stale.** [`step`](Self::step) hands the gradients over and returns the parameters of the update *before*. At
/// most one update is in flight: the next `step` waits for it. [`synchronize`](Self::synchronize) waits for all, and returns the newest
/// parameters: before an evaluation, before the model is saved, and at the end.
///
/// **The loss scale is stale in the same way.** With N(0) the first scale and N(t) that after update t, iterations 1 and 2 are computed
/// with N(0), and iteration t + 2 with N(t). Each is unscaled by the scale with which it was computed. Two overflows in a row back off
/// twice. With a `synchronize` after every step, or [`with_synchronous`](Self::with_synchronous), all is as without the pipeline, bit for bit.
///
/// The learning rate, and the guard's loss, belong to the gradients that they come with, whenever those are stepped on. A
/// [`ScaledLrScheduler`](burn_amp_core::ScaledLrScheduler) sees a skip one call late, and holds then.
///
/// The masters are the optimizer's own. A parameter that the program changes between two steps is not taken over, except by
/// [`reload`](Self::reload); the third, fifth, ninth step and so on compare, and refuse it.
///
/// Dropping it waits for the update in flight. A panic on the thread is the error of the next call
/// ([`AmpError::OptimizerThread`]), and so is every refused step.
///
/// Source: RoundPipe (its optimizer stream and `GradScaler`), of which this keeps the update rule of the scale and the order of events.
pub struct PipelinedOptimizer<O = ModuleOptimizer> {
    worker: Worker<Update<O>>,
    synchronous: bool,
    /// The side that scales: what is known of the last update that was received.
    #[doc(hidden)]
    pub scaler: Scaler,
    in_flight: InFlight,
    /// What the module has that was handed over, and the last update that was received has made of it: none before the first step.
    #[doc(hidden)]
    pub trained: Option<Trained>,
    /// Masters of a record, for the next module.
    #[doc(hidden)]
    pub stored: ParamTensors,
    window: Window,
    loss: Option<f64>,
    calls: u64,
}

/// What a pipeline holds.
#[doc(hidden)]
pub struct Parts<O> {
    pub optim: ScaledOptimizer<O>,
    /// What the module of the program does not hold.
    pub masters: ParamTensors,
    pub host: Device,
    pub synchronous: bool,
}

/// The micro-batches that were sent since the last update.
#[derive(Clone, Copy)]
struct Window {
    size: u32,
    sent: u32,
}

/// How far to wait.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    /// The update before the present window.
    LastUpdate,
    AllIsDone,
}

impl<O: ModuleOptim + Send + 'static> PipelinedOptimizer<O> {
    /// Starts the thread. `host` is the device of the masters and of the optimizer's state, `Device::flex()` as a rule.
    ///
    /// The loss scale of a [`MixedPrecision`](burn_amp_core::MixedPrecision) has one pipelined optimizer, and no other optimizer beside it.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`] for accumulation with [`skip_micro_batch`](burn_amp_core::AccumulationConfig::skip_micro_batch): whether a window is
    /// full would be known too late. The same error for a setting of the optimizer that is out of its range. [`AmpError::OptimizerThread`] if the system has no thread.
    pub fn new(optim: impl Into<ScaledOptimizer<O>>, host: Device) -> Result<Self, AmpError> {
        let mut optim = optim.into();
        optim.check_settings()?;
        let window = match optim.window() {
            Some(window) if window.config().skip_micro_batch => {
                let allowed = "false for a pipelined optimizer";
                return Err(AmpError::refused("skip_micro_batch", "true", allowed));
            }
            Some(window) => Window {
                size: window.config().micro_batches,
                sent: window.len(),
            },
            None => Window { size: 1, sent: 0 },
        };
        optim.resolve_each_step(true);
        let scaler = optim.scaler().clone();
        *optim.scaler_mut() = scaler.for_worker();
        let update = Update::new(optim, host.inner());
        Ok(Self {
            worker: Worker::start("optimizer", update)?,
            synchronous: false,
            scaler,
            in_flight: InFlight::default(),
            trained: None,
            stored: ParamTensors::default(),
            window,
            loss: None,
            calls: 0,
        })
    }

    /// Makes every [`step`](Self::step) wait for its own update: nothing is stale, and nothing is computed meanwhile. To turn the pipeline
    /// off in one place.
    pub fn with_synchronous(mut self, synchronous: bool) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Scales the loss and collects the gradients of `module`, for a [`ScaledOptimizer`] with a `GradScaler` of its own; see
    /// [`Scaler::backward`]. Does not wait for the device.
    ///
    /// # Panics
    ///
    /// If the loss was not computed with autodiff, as [`Tensor::backward`].
    pub fn backward<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        module: &M,
    ) -> ScaledGradients {
        self.scaler.backward(loss, module)
    }

    /// Hands the gradients over, and returns `module` with the parameters of the update before; see [`ScaledOptimizer::step`].
    ///
    /// Waits for the update before, if it is not done, and not for the device: the optimizer's thread does. But the third, fifth, ninth step and so on
    /// read the parameters, to compare them with the masters, and running statistics are read after a skip. With accumulation it takes a
    /// micro-batch, and returns the module unchanged until a window is full: all micro-batches of a window see the same parameters.
    ///
    /// # Panics
    ///
    /// Where [`try_step`](Self::try_step) returns an error, with its message.
    #[track_caller]
    pub fn step<M: Module + 'static>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: impl Into<StepGradients>,
    ) -> M {
        or_panic(self.try_step(lr, module, grads))
    }

    /// As [`step`](Self::step), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// Those of [`ScaledOptimizer::try_step`], for the update *before*: the gradients that were given with this call are refused then, and the
    /// module has the parameters of the last update that was made. [`AmpError::GradientShape`] and [`AmpError::InvalidValue`] are of this
    /// call. [`AmpError::OptimizerThread`] if the thread has panicked. [`AmpError::OtherModule`] for another module than the last call has
    /// returned. [`AmpError::InvalidValue`] if another optimizer shares the loss scale.
    pub fn try_step<M: Module + 'static>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: impl Into<StepGradients>,
    ) -> Result<M, StepError<M>> {
        let (lr, grads) = (lr.into(), grads.into());
        self.scaler.take_tested(&grads);
        let entries = Entries::find(parameters(&module), Some(grads.params()), None, Some(&lr));
        let checked = entries.and_then(|entries| self.check_module(&module, entries.buffers));
        if let Err(error) = checked {
            return Err(self.refused(module, error));
        }
        let what = match self.window.sent + 1 >= self.window.size {
            true => What::Update,
            false => What::MicroBatch,
        };
        self.call(lr, module, Some(grads), what)
    }

    /// Steps with the micro-batches of a window that is not full, as [`step`](Self::step) does; see [`ScaledOptimizer::flush`].
    ///
    /// # Panics
    ///
    /// Where [`try_flush`](Self::try_flush) returns an error, with its message.
    #[track_caller]
    pub fn flush<M: Module + 'static>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
    ) -> M {
        or_panic(self.try_flush(lr, module))
    }

    /// As [`flush`](Self::flush), for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// As [`try_step`](Self::try_step).
    pub fn try_flush<M: Module + 'static>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
    ) -> Result<M, StepError<M>> {
        if self.window.sent == 0 {
            self.scaler.enter_call(StepOutcome::NoGradients);
            return Ok(module);
        }
        let lr = lr.into();
        let checked = Entries::find(parameters(&module), None, None, Some(&lr));
        // A window of a record may be flushed before any step.
        let checked = checked.and_then(|_| match &self.trained {
            None => self.begin(&module),
            Some(known) => masters::check(known, &module, false),
        });
        match checked {
            Ok(()) => self.call(lr, module, None, What::Update),
            Err(error) => Err(self.refused(module, error)),
        }
    }

    /// Waits for all that was handed over, and returns `module` with the newest parameters. The next iteration is computed with the newest
    /// loss scale, too.
    ///
    /// Call it before an evaluation, before the model is saved, and at the end of the training.
    ///
    /// # Errors
    ///
    /// Those of [`ScaledOptimizer::try_step`], for the last update; the module has the newest parameters nevertheless. Otherwise as
    /// [`try_step`](Self::try_step).
    pub fn synchronize<M: Module + 'static>(&mut self, module: M) -> Result<M, StepError<M>> {
        let begun = match self.stored.len() {
            0 => Ok(()),
            _ => self.begin(&module),
        };
        self.receive(StepError::join(module, begun)?, Until::AllIsDone)
    }

    /// Goes on from the parameters of `module` as they are: for a program that has changed them, or loaded others.
    ///
    /// Waits for all that was handed over. The optimizer's state stays.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize); the masters are replaced nevertheless, unless the thread has ended.
    pub fn reload<M: Module + 'static>(&mut self, module: &M) -> Result<(), AmpError> {
        let received = self.receive(module.clone(), Until::AllIsDone);
        self.stored = ParamTensors::default();
        let begun = self.begin(module);
        received.map(drop).map_err(AmpError::from).and(begun)
    }

    /// A copy of the scaler (loss scale, counters, last outcome) as the last update has left it that the training has received. The next
    /// iteration is scaled with it. Does not wait.
    ///
    /// Changing the copy changes nothing here: see [`set_loss_scale`](Self::set_loss_scale) and [`queue`](Self::queue).
    pub fn received_scaler(&self) -> Scaler {
        self.scaler.detached()
    }

    /// As [`received_scaler`](Self::received_scaler), after all that was handed over: waits until that is done. Where the
    /// thread has ended, it is the received one.
    pub fn synchronized_scaler(&self) -> Scaler {
        let copy = self.ask(|update| update.optim.scaler().detached());
        copy.unwrap_or_else(|_| self.received_scaler())
    }

    /// Sets the loss scale that follows the next update, in place of what its gradients would make of it: PyTorch's
    /// `update(new_scale)`. Set before step t, iteration t + 2 is the first that is computed with it. The growth tracker stays.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], as [`Scaler::set_loss_scale`], and [`AmpError::OptimizerThread`].
    pub fn set_loss_scale(&mut self, scale: f64) -> Result<(), AmpError> {
        self.scaler.schedule().with_scale("loss_scale", scale)?;
        self.send(What::Other, move |update| {
            update.next_scale = Some(scale);
            update.updated(Ok(()), None)
        })
    }

    /// Changes settings of the scaler on the optimizer's thread, after all that was handed over, and before what comes next.
    ///
    /// ```
    /// use burn::{optim::SgdConfig, tensor::Device};
    /// use burn_amp::{GradScalerConfig, pipeline::PipelinedOptimizer, ScaledOptimizer, torch::GradScaler};
    ///
    /// let optim = ScaledOptimizer::new(SgdConfig::new().init(), GradScaler::new(GradScalerConfig::new())?);
    /// let mut optim = PipelinedOptimizer::new(optim, Device::flex())?;
    /// optim.queue(|scaler| scaler.set_growth_interval(500))?;
    /// assert_eq!(optim.synchronized_scaler().growth_interval(), 500);
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`AmpError::OptimizerThread`]. What `change` returns is an error of a later `step` or `synchronize`.
    pub fn queue(
        &mut self,
        change: impl FnOnce(&mut Scaler) -> Result<(), AmpError> + Send + 'static,
    ) -> Result<(), AmpError> {
        self.send(What::Other, |update| {
            let changed = change(update.optim.scaler_mut());
            update.updated(changed, None)
        })
    }

    /// Gives the guard the loss of the next call of [`step`](Self::step); see [`ScaledOptimizer::set_loss`].
    pub fn set_loss(&mut self, loss: f64) {
        self.loss = Some(loss);
    }

    /// The state of all that was handed over, to be stored: it waits for that. See [`ScaledOptimizer::to_record`].
    ///
    /// Where the module that the program holds is behind, or its parameters are in half precision, the f32 masters are in it too: a run
    /// that resumes goes on from them. After [`synchronize`](Self::synchronize), an f32 module is the masters, and the record has none. If the thread
    /// has ended, the record's `save`, `into_bytes` and `into_optimizer` return [`AmpError::OptimizerThread`].
    pub fn to_record(&mut self) -> AmpRecord {
        let of = self.not_in_module();
        let stored = self.stored.clone();
        let record = self.ask(move |update| {
            let mut record = update.optim.to_record();
            record.masters = update.masters_or(stored, of.as_ref());
            record
        });
        let mut record = record.unwrap_or_else(AmpRecord::refused);
        // By passes of which the thread has got no gradients, too.
        record.open_regions_of(&self.scaler);
        record
    }

    /// The parameters whose masters are not what the module of the program holds: it is behind, or they are in half precision.
    fn not_in_module(&self) -> Option<Trained> {
        let is_ahead = self.in_flight.has_update();
        let is_half = |parameter: &Parameter| is_half(parameter.value.dtype());
        let trained = self.trained.clone();
        trained.filter(|trained| is_ahead || trained.iter().any(is_half))
    }

    /// Takes over a stored state, as [`ScaledOptimizer::load_record`] does. The update in flight is finished, and discarded.
    ///
    /// Call [`synchronize`](Self::synchronize) with the module afterwards: it gets the masters of the record, if there are any.
    ///
    /// # Errors
    ///
    /// As [`ScaledOptimizer::load_record`]; the present state stays as it was. [`AmpError::OptimizerThread`].
    pub fn load_record(&mut self, mut record: AmpRecord) -> Result<(), AmpError> {
        let (masters, sent) = (take(&mut record.masters), record.window());
        let loaded = self.ask(|update| update.load_record(record))?;
        self.scaler.follow(&loaded?, false);
        self.in_flight.0.clear();
        self.trained = None;
        self.scaler.forget_buffers();
        self.stored = masters;
        self.window.sent = sent;
        Ok(())
    }

    /// Writes the state to a file: `to_record().save(path)`.
    ///
    /// # Errors
    ///
    /// As [`AmpRecord::save`], and [`AmpError::OptimizerThread`] if the thread has ended.
    pub fn save(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.to_record().save(path)
    }

    /// Takes over the state in a file: [`AmpRecord::load`], then [`load_record`](Self::load_record).
    ///
    /// # Errors
    ///
    /// Those of both; the present state stays as it was.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        self.load_record(AmpRecord::load(path)?)
    }

    /// Ends the pipeline: the newest parameters, and the optimizer with its state, to go on without.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize).
    pub fn into_inner<M: Module + 'static>(
        mut self,
        module: M,
    ) -> Result<(M, ScaledOptimizer<O>), StepError<M>> {
        let module = self.synchronize(module)?;
        match self.into_parts() {
            Ok(Parts { mut optim, .. }) => {
                optim.resolve_each_step(false);
                Ok((module, optim))
            }
            Err(error) => Err(StepError::new(module, error)),
        }
    }

    /// The optimizer, and where it was to step: before its first step, or with all that it was given.
    #[doc(hidden)]
    pub fn into_parts(mut self) -> Result<Parts<O>, AmpError> {
        let of = self.not_in_module();
        for (what, pending) in take(&mut self.in_flight.0) {
            let updated = pending.wait()?;
            self.scaler.follow(&updated.reached, what == What::Update);
            updated.error.map_or(Ok(()), Err)?;
        }
        let mut update = self.worker.finish()?;
        self.scaler.take_opened_regions(update.optim.scaler());
        *update.optim.scaler_mut() = self.scaler;
        Ok(Parts {
            masters: update.masters_or(self.stored, of.as_ref()),
            optim: update.optim,
            host: update.host,
            synchronous: self.synchronous,
        })
    }

    /// The options of the steps, as all that was handed over has left it: waits for that. None where the thread has ended.
    #[doc(hidden)]
    pub fn options(&self) -> Option<StepOptions> {
        let options = self.ask(|update| update.optim.options.clone());
        options.ok()
    }

    /// What is to be refused before anything is sent, and the masters of a module that is new.
    fn check_module<M: Module + 'static>(
        &mut self,
        module: &M,
        statistics: Vec<Parameter>,
    ) -> Result<(), AmpError> {
        if self.scaler.is_shared() {
            return Err(AmpError::refused(
                "optim",
                "one of several optimizers of a `MixedPrecision`",
                "the only one: give each network that is pipelined its own",
            ));
        }
        match &self.trained {
            None => self.begin(module)?,
            Some(known) => {
                let compares = self.calls > 1 && self.calls.is_power_of_two();
                masters::check(known, module, compares)?;
            }
        }
        if self.window.sent == 0 {
            self.scaler.begin_step(module, statistics);
        }
        self.calls += 1;
        Ok(())
    }

    /// Hands a module over, of which masters are to be kept.
    fn begin<M: Module + 'static>(&mut self, module: &M) -> Result<(), AmpError> {
        let trained = masters::trained(module);
        if !self.stored.is_empty() {
            masters::check_stored(&trained, &self.stored)?;
        }
        let (own, stored) = (module.clone(), take(&mut self.stored));
        self.trained = Some(trained.clone());
        self.send(What::Other, move |update| {
            update.begin(own, &trained, &stored)
        })
    }

    /// Sends what is to be stepped with, and returns the module as it is to be computed with.
    fn call<M: Module + 'static>(
        &mut self,
        lr: ModuleLearningRate,
        mut module: M,
        grads: Option<StepGradients>,
        what: What,
    ) -> Result<M, StepError<M>> {
        if what == What::Update {
            module = self.receive(module, Until::LastUpdate)?;
        }
        let handed = self.scaler.hand_over();
        let loss = self.loss.take();
        let trained = self.trained.clone().unwrap_or_default();
        let sent = self.send(what, move |update| {
            update.step::<M>(lr, grads, loss, handed, &trained)
        });
        module = StepError::join(module, sent)?;
        self.window.sent = match what {
            What::MicroBatch => self.window.sent + 1,
            _ => 0,
        };
        if what == What::MicroBatch {
            self.scaler.enter_call(StepOutcome::Accumulated);
        }
        match self.synchronous {
            true => self.synchronize(module),
            false => Ok(module),
        }
    }

    /// Gives the thread a job, and waits for what comes of it.
    fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Update<O>) -> R + Send + 'static,
    ) -> Result<R, AmpError> {
        self.worker.send(job)?.wait()
    }

    fn send(
        &mut self,
        what: What,
        job: impl FnOnce(&mut Update<O>) -> Updated + Send + 'static,
    ) -> Result<(), AmpError> {
        let pending = self.worker.send(job)?;
        self.in_flight.0.push_back((what, pending));
        Ok(())
    }

    /// Waits for jobs in their order, and takes over what they have reached. Of several errors, the first is returned.
    fn receive<M: Module>(&mut self, mut module: M, until: Until) -> Result<M, StepError<M>> {
        let jobs = &mut self.in_flight.0;
        let count = match until {
            Until::LastUpdate => jobs.iter().rposition(|(what, _)| *what == What::Update),
            Until::AllIsDone => jobs.len().checked_sub(1),
        };
        let (mut failed, mut image) = (None, None);
        for (what, pending) in jobs.drain(..count.map_or(0, |last| last + 1)) {
            match pending.wait() {
                Ok(updated) => {
                    failed = failed.or(updated.error);
                    image = updated.image.or(image);
                    match what {
                        What::Other => self.scaler.follow_setting(&updated.reached),
                        // A micro-batch was entered when it was sent.
                        _ => self.scaler.follow(&updated.reached, what == What::Update),
                    }
                    if what == What::Update {
                        // The update knows nothing of the forward passes of the present window, unless all is done.
                        let is_behind = until == Until::LastUpdate;
                        self.scaler.leave_update(&module, is_behind);
                    }
                }
                Err(ended) => failed = failed.or(Some(ended)),
            }
        }
        if let Some(image) = image {
            module = masters::put(module, &image);
            self.trained = Some(image);
        }
        let ended = self.worker.check().err();
        match failed.or(ended) {
            Some(error) => Err(self.refused(module, error)),
            None => Ok(module),
        }
    }

    /// What the forward pass of refused gradients has left is of no step.
    fn refused<M>(&mut self, module: M, error: AmpError) -> StepError<M> {
        drop(self.scaler.hand_over());
        self.loss = None;
        StepError::new(module, error)
    }
}

/// Without what is on the other thread.
impl<O> std::fmt::Debug for PipelinedOptimizer<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipelinedOptimizer")
            .field("scaler", &self.scaler)
            .field("in_flight", &self.in_flight.0.len())
            .field("synchronous", &self.synchronous)
            .finish_non_exhaustive()
    }
}
