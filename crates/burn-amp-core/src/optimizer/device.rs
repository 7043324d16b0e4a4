//! Steps that the device decides: the host does not wait for them.

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Tensor};
use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, optim::GradientsParams};
use burn_amp_kernels::{Status, TensorList, can_update, inspect};
use std::{collections::VecDeque, sync::Arc, thread};

use super::{ScaledOptimizer, refused};
use crate::gradients::entries::{Entries, Entry, ids_of};
use crate::scale::device_step::{DeviceStep, Run};
use crate::values::distinct_parameters;
use crate::{
    error::AmpError, gradients::Factors, gradients::StepGradients, gradients::handles,
    scale::border_events::BorderEvent, scale::in_flight::Resolution, scale::journal::Caller,
    scale::live_scale::LiveScale, step::pending::PendingStep, update::Update,
    update::module_optim::ModuleOptim,
};

/// Gradients of a step: as many as the device can clip.
const MAX_GRADIENTS: usize = 1 << 16;

/// Parameters, each on its device.
type Stepped = Vec<(ParamId, Device)>;

/// The steps that a device decides: what goes on from one to the next.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// The run that they belong to, and what it steps.
    pub(super) run: Option<(Arc<Run>, Stepped)>,
    /// The scale that has them.
    live: Option<Arc<LiveScale>>,
}

impl Flight {
    /// Begins a run over these parameters.
    pub(super) fn begin(&mut self, run: Arc<Run>, entries: &[Entry], live: &Arc<LiveScale>) {
        let stepped = entries.iter().map(|entry| (entry.id, entry.device.clone()));
        self.run = Some((run, stepped.collect()));
        self.live = Some(live.clone());
    }

    /// The run that goes on with these parameters.
    pub(super) fn run_of(&self, entries: &[Entry]) -> Option<Arc<Run>> {
        let (run, known) = self.run.as_ref()?;
        let stepped = entries.iter().map(|entry| (&entry.id, &entry.device));
        let known = known.iter().map(|(id, device)| (id, device));
        known.eq(stepped).then(|| run.clone())
    }
}

/// Nobody may ask for the steps of an optimizer that is dropped: they are resolved now.
impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(live) = &self.live
            && !thread::panicking()
        {
            live.resolve(true);
        }
    }
}

/// A step that the device can decide by itself.
type Start = (Inspected, Arc<DeviceStep>);

/// The gradients of a step that the device decides.
#[derive(Clone)]
pub(crate) struct Inspected {
    pub(super) entries: Vec<Entry>,
    /// The events of their way to the border, and from it.
    pub(super) events: Vec<BorderEvent>,
    /// The status of them all; nobody has read it.
    pub(super) status: Status,
}

impl Inspected {
    /// The loss scale after them.
    pub(super) fn advance(&self, scale: &DeviceStep) -> DeviceStep {
        let of = |scopes: bool| {
            let events = self
                .events
                .iter()
                .filter(move |event| event.is_scope() == scopes);
            events.filter_map(BorderEvent::unread)
        };
        let given: Vec<_> = of(false).cloned().collect();
        scale.advance(&self.status, of(true).next(), &given)
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Waits until the outcomes of all steps are known here: to scale, counters, metrics and schedulers.
    ///
    /// With an optimizer that lets the device decide (`FusedAdam` and the like) outcomes arrive asynchronously.
    /// Records wait by themselves. Does nothing elsewhere.
    ///
    /// # Errors
    ///
    /// [`AmpError::LossScaleExhausted`], [`AmpError::LossNotFinite`] or [`AmpError::TwoPrecisions`] if one of the steps was one skip too many in a row.
    pub fn synchronize(&mut self) -> Result<(), AmpError> {
        self.resolve();
        self.take_error()
    }

    /// Resolves all steps in flight. The next call returns what was wrong. From here on the host moves the scale.
    pub(crate) fn resolve(&mut self) {
        self.scaler.live.resolve(true);
        self.end_run();
    }

    /// Ends the run: the host moves the scale from here on.
    pub(super) fn end_run(&mut self) {
        if self.flight.run.take().is_some() {
            self.scaler.live.set_device_step(None);
        }
    }

    /// Ends an iteration of which nothing is left but gradients that were unscaled and dropped, if there are any.
    pub(super) fn resolve_dropped(&mut self) -> Result<(), AmpError> {
        if self.scaler.dropped.is_empty() {
            return Ok(());
        }
        self.synchronize()?;
        self.scaler.resolve_dropped()
    }

    /// Returns, once, the error of a step that was in flight.
    pub(super) fn take_error(&self) -> Result<(), AmpError> {
        let live = &self.scaler.live;
        let error = live.account(self.scaler.place.id, |account| account.error.take());
        error.map_or(Ok(()), Err)
    }

    /// Adds a step in flight.
    pub(crate) fn push(&self, inspected: Inspected, resolution: Resolution) {
        let events = inspected.events.iter().filter_map(BorderEvent::unread);
        let events = events.cloned().collect();
        let run = self.flight.run.as_ref().map(|(run, _)| run.clone());
        let run = run.unwrap_or_default();
        let step = PendingStep {
            entries: inspected.entries,
            reading: inspected.status.start(events),
            events: inspected.events,
            clip: self.options.clip.clone(),
            number: run.next_number(),
            run,
            place: self.scaler.place.clone(),
            caller: Caller::here(),
            resolution,
        };
        self.scaler.live.push(Box::new(step));
    }

    /// Begins a step without waiting; none if the host has to decide it: all steps before are known then.
    pub(super) fn begin_on_device<M: Module>(
        &mut self,
        lr: &ModuleLearningRate,
        module: &M,
        grads: &StepGradients,
    ) -> Result<Option<Start>, AmpError> {
        self.scaler.live.resolve(false);
        if let Err(error) = self.take_error() {
            // The host's scale has not moved with the device's.
            self.resolve();
            return Err(error);
        }
        self.resolve_dropped()?;
        let start = match grads {
            StepGradients::Plain(grads) if self.why_host().is_none() => {
                self.start(lr, module, grads)
            }
            _ => None,
        };
        if start.is_none() {
            self.synchronize()?;
        }
        Ok(start)
    }

    /// Makes the step.
    pub(super) fn step_on_device<M: Module>(
        &mut self,
        (inspected, device_step): Start,
        lr: ModuleLearningRate,
        module: M,
        mut grads: GradientsParams,
        update: impl FnOnce(&mut O, Update, M, GradientsParams) -> M,
    ) -> M {
        self.scaler.check_scopes();
        self.options.loss = None;
        self.options.clip.limit(&mut grads, &inspected.entries);
        let next = Arc::new(inspected.advance(&device_step));
        (self.scaler.live).set_device_step(Some(next.clone()));
        let (grads, resolution) = ((grads, Factors::new()), Resolution::default());
        let module = self.apply(lr, module, grads, Some((&next, &resolution)), update);
        self.push(inspected, resolution);
        module
    }

    /// Checks that steps can be recorded, whatever their gradients are. The error says why not.
    pub(super) fn can_record(&self) -> Result<(), AmpError> {
        let hook = self.options.hooks.0.first();
        let hook = hook.map(|hook| format!("the hook `{}` looks at its steps", hook.name()));
        let what = hook.or_else(|| self.why_host().map(String::from));
        what.map_or(Ok(()), |what| Err(refused(what)))
    }

    /// Names the reason why the host has to decide a step, whatever its gradients are.
    fn why_host(&self) -> Option<&'static str> {
        let options = &self.options;
        let waits = [
            (
                !self.optim.takes().decision,
                "the optimizer is not a fused one (`FusedSgd`, `FusedAdam`, `FusedAdamW`), and takes its learning rate from the host",
            ),
            (
                self.scaler.ranks.is_some(),
                "the ranks of the training decide on each step together (`with_peers`)",
            ),
            (
                self.loaded.is_some(),
                "no step has used the loaded state yet",
            ),
            (
                options.window.is_some(),
                "it accumulates micro-batches (`with_accumulation`)",
            ),
            (
                !options.clip.0.is_empty() && !self.optim.takes().factors,
                "gradients are clipped twice: by `with_clipping` and by the optimizer",
            ),
            (
                !self.scaler.is_enabled(),
                "it has no loss scale that could skip a step on the device: in f32, set one that stays at 1, by \
                `amp.with_scaler(GradScalerConfig::new().with_init_scale(1.0).with_dynamic(false))`",
            ),
            (
                !self.scaler.can_step_on_device(),
                "its loss scale is moved by the host: by a `GradScaler` without a `MixedPrecision`, by several optimizers, by a \
                schedule that looks at gradients, by regions whose factors move, or in steps that are no powers of two; or a `FlightRecorder` looks \
                at each step",
            ),
        ];
        waits
            .into_iter()
            .find_map(|(waits, what)| waits.then_some(what))
    }

    /// Finds what a step begins with; none if it has to wait.
    fn start<M: Module>(
        &mut self,
        lr: &ModuleLearningRate,
        module: &M,
        grads: &GradientsParams,
    ) -> Option<Start> {
        let live = self.scaler.live.clone();
        let mut has_islands = false;
        let found = self.find_gradients(lr, module, grads, |ids| {
            let events = live.events.of_last_passes(ids);
            has_islands = events.iter().any(BorderEvent::is_return);
            events
        });
        let (entries, mut events, pass) = found.ok()?;
        // None where a hook has to see the gradients.
        let of_module = || distinct_parameters(module);
        let hooks = &self.options.hooks;
        let judged = match hooks.0.is_empty() {
            true => None,
            false => Some(hooks.judge(None, None, &of_module).ok()??),
        };
        let device_step = self.device_step(&entries)?;
        let status = inspect(pass).ok()?;
        match status.is_finite_now() {
            // What was given explains nothing.
            Some(true) => events.retain(BorderEvent::is_scope),
            // The order in which gradients have passed the islands says more, and so does what is in them.
            Some(false) if has_islands || !BorderEvent::explain(&events) => return None,
            _ => {
                events = events
                    .into_iter()
                    .filter_map(BorderEvent::measured)
                    .collect()
            }
        }
        // They go with the step.
        let ids = ids_of(&entries);
        live.events.clear(&ids, false);
        live.note_test(self.scaler.place.id, || ids);
        if let Some((hooks, ..)) = judged {
            self.options.hooks = hooks;
        }
        let inspected = Inspected {
            entries,
            events,
            status,
        };
        Some((inspected, device_step))
    }

    /// The gradients of a step that the device can decide, and where they came to the border, and left it, of the `events` of such parameters; or
    /// why it cannot.
    pub(super) fn find_gradients<M: Module>(
        &self,
        lr: &ModuleLearningRate,
        module: &M,
        grads: &GradientsParams,
        events: impl FnOnce(&[ParamId]) -> VecDeque<BorderEvent>,
    ) -> Result<(Vec<Entry>, Vec<BorderEvent>, TensorList), AmpError> {
        // What is refused is refused by the step that waits.
        let entries = Entries::find(module, Some(grads), None, Some(lr))?;
        let buffers = self.scaler.buffers.running(module, entries.buffers);
        if !buffers.is_empty() {
            let what =
                "the model has running statistics (BatchNorm's), which a skipped step must test";
            return Err(refused(what));
        }
        if entries.adapted.is_some() {
            return Err(refused("the base of a low-rank adapter has gradients"));
        }
        let entries = entries.gradients;
        self.check_entries(&entries).map_err(refused)?;
        let pass = handles(grads, &entries, None).only();
        let pass = pass.ok_or_else(|| refused("the gradients are not all on one device"))?;
        let several =
            "gradients come from several scopes, or from `rescaled` regions whose factors move";
        let events =
            BorderEvent::single(events(&ids_of(&entries))).ok_or_else(|| refused(several))?;
        Ok((entries, events, pass))
    }

    /// Refuses gradients that no device steps with, whatever is in them.
    fn check_entries(&self, entries: &[Entry]) -> Result<(), &'static str> {
        let Some(device) = entries.first().map(|entry| &entry.device) else {
            return Err("no parameter has a gradient");
        };
        if entries.len() > MAX_GRADIENTS {
            return Err("more than 65,536 parameters have gradients");
        }
        let is_known = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        let fits = |entry: &Entry| {
            entry.device == *device
                && is_known(entry.gradient)
                && is_known(entry.parameter)
                && self.optim.accepts(entry.parameter, entry.gradient)
        };
        let has_kernels = || can_update(&Tensor::<1>::empty([0], (device, DType::F32)));
        match entries.iter().all(fits) && has_kernels() {
            true => Ok(()),
            false => Err("the parameters are not all on one device, in f32, f16 or bf16"),
        }
    }

    /// The loss scale on the device: of the run that goes on with these gradients, or of a new one, before which all steps
    /// are resolved.
    fn device_step(&mut self, entries: &[Entry]) -> Option<Arc<DeviceStep>> {
        let run = self.flight.run_of(entries);
        let goes_on = |device_step: &Arc<DeviceStep>| {
            run.as_ref()
                .is_some_and(|run| Arc::ptr_eq(run, &device_step.run))
        };
        if let Some(device_step) = self.scaler.live.device_step().filter(goes_on) {
            return Some(device_step);
        }
        self.scaler.live.resolve(true);
        let id = self.scaler.place.id;
        if (self.scaler.live).account(id, |account| account.error.is_some()) {
            return None;
        }
        let scale = self.scaler.live.on_device()?.upload(&entries[0].device);
        let mut device_step = self.scaler.device_step_at(scale);
        let table = self.options.clip.table(entries);
        device_step.clip = table.map(|table| (table, Status::default()));
        let run = device_step.run.clone();
        (self.flight).begin(run, entries, &self.scaler.live);
        Some(Arc::new(device_step))
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::{Param, ParamId},
        optim::{AdamConfig, GradientsParams},
        tensor::{Device, Tensor},
    };

    use std::collections::VecDeque;

    use super::MAX_GRADIENTS;
    use crate::{AmpError, MixedPrecision, ScaledOptimizer};

    /// Recorded steps look at them in the same way: to record so many takes minutes.
    #[test]
    fn more_gradients_than_the_device_clips_are_the_hosts() {
        let zero = Tensor::<1>::zeros([1], &Device::default());
        let value = |_| {
            let value = Tensor::from_inner(zero.clone()).require_grad();
            Param::initialized(ParamId::new(), value)
        };
        let module: Vec<Param<Tensor<1>>> = (0..=MAX_GRADIENTS).map(value).collect();
        let mut grads = GradientsParams::new();
        for param in &module {
            grads.register(param.id, zero.clone());
        }
        let optim = ScaledOptimizer::new(AdamConfig::new().init(), &MixedPrecision::f16());
        let looked = optim.find_gradients(&1e-3.into(), &module, &grads, |_| VecDeque::new());
        assert!(
            matches!(looked, Err(AmpError::CannotCapture { reason }) if reason.contains("65,536"))
        );
    }
}
