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
/// The door of `burn-amp-train`. It may change with any release.
#[doc(hidden)]
pub mod internal;
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
use std::{cell::LazyCell, mem::take, path::Path};

use burn_amp_core::internal::pipeline::{
    Made, SentStep, Trained, TrainingSide, check_scale, failed_step, masters_in, quietly,
    refused_record,
};
use burn_amp_core::internal::{
    Entries, ParamTensors, Parameter, StepGradients, detached, enter_call, is_half,
    keep_statistics, or_panic,
};
use burn_amp_core::{
    AmpError, AmpRecord, ModuleOptim, ScaledGradients, ScaledOptimizer, Scaler, StepError,
    StepOutcome,
};
use in_flight::{InFlight, Job};
use update::Update;
use worker::Worker;

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
    /// The scale, as the last update has left it that was received.
    side: TrainingSide,
    in_flight: InFlight,
    /// The parameters of the module that was handed over, as the last update has made them that was received: none before the first step.
    trained: Option<Trained>,
    /// Masters of a record, for the next module.
    stored: ParamTensors,
    /// The micro-batches of an update, and those that were sent since the last one.
    size: u32,
    sent: u32,
    loss: Option<f64>,
    calls: u64,
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
        let (size, sent) = match optim.window() {
            Some(window) if window.config().skip_micro_batch => {
                let allowed = "false for a pipelined optimizer";
                return Err(AmpError::refused("skip_micro_batch", "true", allowed));
            }
            Some(window) => (window.config().micro_batches, window.len()),
            None => (1, 0),
        };
        let side = TrainingSide::of(&mut optim)?;
        let update = Update {
            optim,
            host: host.inner(),
            masters: None,
            trained: Trained::default(),
        };
        Ok(Self {
            worker: Worker::start("optimizer", update)?,
            synchronous: false,
            side,
            in_flight: InFlight::default(),
            trained: None,
            stored: ParamTensors::default(),
            size,
            sent,
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
        self.side.scaler.backward(loss, module)
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

    /// Steps as [`step`](Self::step) does, for runs that want to handle a failure.
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
        self.call(lr.into(), module, Some(grads.into()))
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

    /// Steps as [`flush`](Self::flush) does, for runs that want to handle a failure.
    ///
    /// # Errors
    ///
    /// As [`try_step`](Self::try_step).
    pub fn try_flush<M: Module + 'static>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
    ) -> Result<M, StepError<M>> {
        if self.sent == 0 {
            enter_call(&self.side.scaler, StepOutcome::NoGradients);
            return Ok(module);
        }
        self.call(lr.into(), module, None)
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
        self.receive(StepError::join(module, begun)?, false)
    }

    /// Goes on from the parameters of `module` as they are: for a program that has changed them, or loaded others.
    ///
    /// Waits for all that was handed over. The optimizer's state stays.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize); the masters are replaced nevertheless, unless the thread has ended.
    pub fn reload<M: Module + 'static>(&mut self, module: &M) -> Result<(), AmpError> {
        let received = self.receive(module.clone(), false);
        self.stored = ParamTensors::default();
        let begun = self.begin(module);
        received.map(drop).map_err(AmpError::from).and(begun)
    }

    /// A copy of the scaler (loss scale, counters, last outcome) as the last update has left it that the training has received. The next
    /// iteration is scaled with it. Does not wait.
    ///
    /// Changing the copy changes nothing here: see [`set_loss_scale`](Self::set_loss_scale) and [`queue`](Self::queue).
    pub fn received_scaler(&self) -> Scaler {
        detached(&self.side.scaler)
    }

    /// A copy of the scaler after all that was handed over: waits until that is done. Where the
    /// thread has ended, it is the received one.
    pub fn synchronized_scaler(&self) -> Scaler {
        let after = self.after_all();
        after.map_or_else(|_| self.received_scaler(), |side| detached(&side.scaler))
    }

    /// Sets the loss scale that follows the next update, in place of what its gradients would make of it: PyTorch's
    /// `update(new_scale)`. Set before step t, iteration t + 2 is the first that is computed with it. The growth tracker stays.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], as [`Scaler::set_loss_scale`], and [`AmpError::OptimizerThread`].
    pub fn set_loss_scale(&mut self, scale: f64) -> Result<(), AmpError> {
        let schedule = self.side.scaler.schedule();
        check_scale(schedule, scale)?;
        self.set(move |side| {
            side.next_scale = Some(scale);
            Ok(())
        })
    }

    /// Changes settings of the scaler after all that was handed over, and before what comes next: where the training receives that.
    ///
    /// `change` is also called for copies of the scaler that are ahead, of which records are made.
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
        change: impl Fn(&mut Scaler) -> Result<(), AmpError> + Send + 'static,
    ) -> Result<(), AmpError> {
        self.set(move |side| change(&mut side.scaler))
    }

    fn set(
        &mut self,
        change: impl Fn(&mut TrainingSide) -> Result<(), AmpError> + Send + 'static,
    ) -> Result<(), AmpError> {
        self.worker.check()?;
        self.add(false, change);
        Ok(())
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
        let (stored, are_missing) = (self.stored.clone(), self.is_module_behind());
        let record = self.after_all().and_then(|after| {
            self.ask(move |update| {
                after.give_back(&mut update.optim);
                let mut record = update.optim.to_record();
                *masters_in(&mut record) = update.masters_or(stored, are_missing);
                record
            })
        });
        record.unwrap_or_else(refused_record)
    }

    /// Says whether the module of the program does not have the masters: it is behind, or its parameters are in half precision.
    fn is_module_behind(&self) -> bool {
        let is_half = |parameter: &Parameter| is_half(parameter.value.dtype());
        let has_half = |trained: &Trained| trained.iter().any(is_half);
        self.in_flight.has_update() || self.trained.as_ref().is_some_and(has_half)
    }

    /// Takes over a stored state, as [`ScaledOptimizer::load_record`] does. The update in flight is finished, and discarded.
    ///
    /// Call [`synchronize`](Self::synchronize) with the module afterwards: it gets the masters of the record, if there are any.
    ///
    /// # Errors
    ///
    /// As [`ScaledOptimizer::load_record`]; the present state stays as it was. [`AmpError::OptimizerThread`].
    pub fn load_record(&mut self, mut record: AmpRecord) -> Result<(), AmpError> {
        let (masters, sent) = (take(masters_in(&mut record)), record.window());
        let scaler = self.side.twin();
        let load = move |update: &mut Update<O>| {
            *update.optim.scaler_mut() = scaler;
            update.optim.load_record(record)?;
            update.masters = None;
            TrainingSide::of(&mut update.optim)
        };
        self.side = self.ask(load)??;
        self.in_flight.0.clear();
        self.trained = None;
        (self.stored, self.sent) = (masters, sent);
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
        match internal::into_parts(self) {
            Ok(parts) => Ok((module, parts.optim)),
            Err(error) => Err(StepError::new(module, error)),
        }
    }

    /// Refuses what needs no other thread to be refused, and hands over a module that is new.
    fn check<M: Module + 'static>(
        &mut self,
        lr: &ModuleLearningRate,
        module: &M,
        grads: Option<&StepGradients>,
    ) -> Result<(), AmpError> {
        let params = grads.map(StepGradients::params);
        let entries = Entries::find(module, params, None, Some(lr))?;
        self.side.check(grads)?;
        match &self.trained {
            None => self.begin(module)?,
            Some(known) => {
                let compares = self.calls > 1 && self.calls.is_power_of_two();
                masters::check(known, module, compares)?;
            }
        }
        if self.sent == 0 {
            keep_statistics(&mut self.side.scaler, module, entries.buffers);
        }
        self.calls += 1;
        Ok(())
    }

    /// Hands a module over, of which masters are to be kept.
    fn begin<M: Module + 'static>(&mut self, module: &M) -> Result<(), AmpError> {
        let trained = masters::trained(module);
        masters::check_stored(&trained, &self.stored)?;
        let (own, stored) = (module.clone(), take(&mut self.stored));
        self.trained = Some(trained.clone());
        self.send(None, move |update| Ok(update.begin(own, trained, &stored)))
    }

    /// Sends what is to be stepped with, and returns the module as it is to be computed with.
    fn call<M: Module + 'static>(
        &mut self,
        lr: ModuleLearningRate,
        mut module: M,
        grads: Option<StepGradients>,
    ) -> Result<M, StepError<M>> {
        if let Err(error) = self.check(&lr, &module, grads.as_ref()) {
            return Err(self.refused(module, error));
        }
        let is_update = grads.is_none() || self.sent + 1 >= self.size;
        if is_update {
            module = self.receive(module, true)?;
        }
        if grads.is_some() {
            self.side.take_pass();
        }
        let (scaler, loss) = (self.side.copy().scaler, self.loss.take());
        let step = is_update.then(|| self.side.begin_step());
        let update = move |update: &mut Update<O>| update.step::<M>(scaler, lr, grads, loss);
        let sent = self.send(step, update);
        module = StepError::join(module, sent)?;
        if is_update {
            self.sent = 0;
        } else {
            self.sent += 1;
            enter_call(&self.side.scaler, StepOutcome::Accumulated);
        }
        match self.synchronous {
            true => self.synchronize(module),
            false => Ok(module),
        }
    }

    /// The side of the training after all that was handed over: waits for that. Nothing has changed here.
    fn after_all(&self) -> Result<TrainingSide, AmpError> {
        let mut after = self.side.copy();
        // Errors are those of the call that receives them, and so are lines of the log.
        let end = |job: &Job| drop((job.end)(&mut after));
        quietly(|| self.in_flight.0.iter().for_each(end));
        self.worker.check().map(|()| after)
    }

    /// Gives the thread a job, and waits for what comes of it.
    fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Update<O>) -> R + Send + 'static,
    ) -> Result<R, AmpError> {
        self.worker.send(job)?.wait()
    }

    /// Gives the thread a job, whose result the training receives later: that of a step, if it is one.
    fn send(
        &mut self,
        step: Option<SentStep>,
        job: impl FnOnce(&mut Update<O>) -> Result<Made, AmpError> + Send + 'static,
    ) -> Result<(), AmpError> {
        let pending = self.worker.send(job)?;
        let made = LazyCell::new(move || pending.wait().flatten());
        let is_update = step.is_some();
        self.add(is_update, move |side| side.receive(step.clone(), &made));
        Ok(())
    }

    fn add(
        &mut self,
        is_update: bool,
        end: impl Fn(&mut TrainingSide) -> Result<(), AmpError> + Send + 'static,
    ) {
        let end = Box::new(end);
        self.in_flight.0.push_back(Job { is_update, end });
    }

    /// Waits for all jobs in their order, or for those up to the last update if it `is_behind`: the module has made forward passes of which that knows
    /// nothing. Of several errors, the first is returned.
    fn receive<M: Module>(&mut self, mut module: M, is_behind: bool) -> Result<M, StepError<M>> {
        let jobs = &mut self.in_flight.0;
        let until = match is_behind {
            true => (jobs.iter().rposition(|job| job.is_update)).map_or(0, |last| last + 1),
            false => jobs.len(),
        };
        let ends = jobs.drain(..until).map(|job| (job.end)(&mut self.side));
        let received = ends.fold(Ok(()), Result::and);
        self.side.leave_step(&module, is_behind);
        if let Some(image) = self.side.image.take() {
            module = masters::put(module, &image);
            self.trained = Some(image);
        }
        match received.and(self.worker.check()) {
            Ok(()) => Ok(module),
            Err(error) => Err(self.refused(module, error)),
        }
    }

    /// The error of a call whose gradients are dropped.
    fn refused<M: Module>(&mut self, module: M, error: AmpError) -> StepError<M> {
        self.loss = None;
        failed_step(module, error)
    }
}

/// Leaves out what is on the other thread.
impl<O> std::fmt::Debug for PipelinedOptimizer<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipelinedOptimizer")
            .field("scaler", &self.side.scaler)
            .field("in_flight", &self.in_flight.0.len())
            .field("synchronous", &self.synchronous)
            .finish_non_exhaustive()
    }
}
