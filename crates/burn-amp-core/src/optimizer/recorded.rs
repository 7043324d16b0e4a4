//! Steps that a device captures once and replays: what the optimizer does in them, and what it does on the host meanwhile.

use burn::tensor::{Device, Tensor};
use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};
use burn_amp_kernels::{BufferAddress, ClipTable, DeviceScale, inspect};
use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::{ScaledOptimizer, device::Inspected};
use crate::scale::border_events::{BorderEvent, next_number};
use crate::scale::device_step::{DeviceStep, Run};
use crate::scale::rehearsal::{Rehearsal, Rehearses};
use crate::{
    error::AmpError,
    gradients::entries::check_rate,
    gradients::placeholders,
    scale::in_flight::Resolution,
    update::Update,
    update::module_optim::ModuleOptim,
    values::{distinct_parameters, parameters},
};

/// The findings of a step on the device, before it changes anything: each time in the same places, if it was recorded.
pub struct InspectedStep {
    inspected: Inspected,
    /// The loss, without autodiff.
    pub loss: Tensor<1>,
}

/// The state of a captured step on the device, beside model and optimizer: the loss scale, and the rows that the optimizer reads.
pub struct Stage {
    /// The loss scale.
    pub scale: DeviceScale,
    /// The rows that the optimizer reads, for each of its calls.
    pub rows: Vec<Tensor<1>>,
    /// The table by which gradients are clipped by norms.
    pub clip: Option<ClipTable>,
}

impl Stage {
    /// The addresses at which a recording finds all of it.
    pub fn addresses(&self) -> Vec<Option<BufferAddress>> {
        let row = |row: &Tensor<1>| BufferAddress::of(row.clone().into_dispatch());
        let clip = self.clip.iter().map(ClipTable::address);
        let others = clip.chain([self.scale.address()]);
        self.rows.iter().map(row).chain(others).collect()
    }
}

impl InspectedStep {
    /// Checks the rates of a replay, as the recording has checked those of its own step.
    pub fn check_rates(&self, lr: &ModuleLearningRate) -> Result<(), AmpError> {
        let mut entries = self.inspected.entries.iter();
        entries.try_for_each(|entry| check_rate(lr, entry.id, &entry.path))
    }
}

/// The host's side of steps that a device captures.
pub struct Recorder<'a, O>(pub &'a mut ScaledOptimizer<O>);

impl<O: ModuleOptim> Recorder<'_, O> {
    /// Refuses an optimizer of which no step can be captured.
    pub fn refuses_capture<M: Module>(&mut self, module: &M) -> Result<(), AmpError> {
        self.0.check_settings()?;
        if let Some(loaded) = &self.0.loaded {
            loaded.check(parameters(module))?;
            self.0.loaded = None;
        }
        self.0.resolve_dropped()?;
        self.0.can_record()
    }

    /// The loss scale as it is, on a device: in the place of another, if there is one.
    pub fn scale_on(
        &self,
        device: &Device,
        place: Option<DeviceScale>,
    ) -> Result<DeviceScale, AmpError> {
        self.0.can_record()?;
        let state = self.0.scaler.live.on_device();
        let state = state.ok_or_else(|| refused("its loss scale is the host's"))?;
        let sent = state.upload(device);
        Ok(match place {
            Some(place) => place.become_of(sent),
            None => sent,
        })
    }

    /// Scopes take the scale from the host again, after a recording that has failed.
    pub fn end_recording(&self) {
        self.0.scaler.live.set_device_step(None);
    }

    /// Computes a loss and its gradients, at the scale on the device, and looks at them there.
    pub fn find<M: Module>(
        &self,
        scale: &DeviceScale,
        lr: &ModuleLearningRate,
        module: &M,
        loss: impl FnOnce(&M) -> Tensor<1>,
    ) -> Result<(InspectedStep, GradientsParams), AmpError> {
        let begin = next_number();
        let device_step = self.0.scaler.device_step_at(scale.clone());
        let live = &self.0.scaler.live;
        live.set_device_step(Some(Arc::new(device_step)));
        let loss = loss(module);
        let mut grads = GradientsParams::from_grads(loss.clone().backward(), module);
        live.set_device_step(None);
        let events = live.events.take_if(|event| event.number > begin);
        let (entries, events, pass) = self.0.find_gradients(lr, module, &grads, |_| events)?;
        let inspected = Inspected {
            entries,
            events: events
                .into_iter()
                .filter_map(BorderEvent::measured)
                .collect(),
            status: inspect(pass)?,
        };
        self.0.options.clip.limit(&mut grads, &inspected.entries);
        let loss = loss.inner();
        Ok((InspectedStep { inspected, loss }, grads))
    }

    /// Goes on from what was found to the step, which is not made or only recorded. Says whether all that it writes stays in its place.
    pub fn rehearse<M: Module>(
        &mut self,
        what: Rehearses,
        stage: Stage,
        lr: ModuleLearningRate,
        module: M,
        InspectedStep { inspected, .. }: &InspectedStep,
        grads: GradientsParams,
    ) -> (M, Stage, bool) {
        let rehearsal = Rehearsal::new(what, stage.rows);
        let clip = stage.clip.or_else(|| match what {
            Rehearses::Run => self.0.options.clip.table(&inspected.entries),
            _ => None,
        });
        let clips = clip.clone().map(|table| (table, inspected.status.clone()));
        // Held by nobody else when it is written, below.
        let next = (inspected.advance(&DeviceStep::new(stage.scale.clone(), Weak::new()))).scale;
        let device_step = Arc::new(DeviceStep::recorded(next, clips, Arc::default(), rehearsal));
        let update = Update::decided_by(&device_step, lr);
        let module = self.0.optim.update(update, module, grads);
        let (next, rows, stays) = DeviceStep::end(device_step);
        let before = stage.scale.address();
        let scale = stage.scale.become_of(next);
        let stays = stays && scale.address() == before;
        (module, Stage { scale, rows, clip }, stays)
    }

    /// Does the host's part before a replay: resolves steps that are over, sends what this one reads, and counts it.
    pub fn begin_replay<M: Module>(
        &mut self,
        mut stage: Stage,
        recorded: &InspectedStep,
        lr: ModuleLearningRate,
        module: &M,
        device: &Device,
    ) -> Result<Stage, AmpError> {
        let run = match self.replay_run(recorded)? {
            Some(run) => run,
            // The host has moved the scale, or may have.
            None => {
                stage.scale = self.scale_on(device, Some(stage.scale))?;
                let run = Arc::<Run>::default();
                let entries = &recorded.inspected.entries;
                (self.0.flight).begin(run.clone(), entries, &self.0.scaler.live);
                run
            }
        };
        let Stage { scale, rows, clip } = stage;
        let rehearsal = Rehearsal::new(Rehearses::Replay, rows);
        let device_step = Arc::new(DeviceStep::recorded(scale, None, run, rehearsal));
        let entries = recorded.inspected.entries.iter();
        let ids: HashSet<_> = entries.map(|entry| entry.id).collect();
        let stepped = distinct_parameters(module).into_iter();
        let grads = placeholders(stepped.filter(|parameter| ids.contains(&parameter.id)));
        // Untracked: a parameter that is tracked anew leaves a node behind, which only a backward pass frees.
        let update = Update::decided_by(&device_step, lr);
        self.0.optim.update(update, module.clone().no_grad(), grads);
        let (scale, rows, _) = DeviceStep::end(device_step);
        Ok(Stage { scale, rows, clip })
    }

    /// The run that a replay goes on with; none if a new one begins.
    fn replay_run(&mut self, recorded: &InspectedStep) -> Result<Option<Arc<Run>>, AmpError> {
        self.0.scaler.live.resolve(false);
        self.0.take_error()?;
        self.0.resolve_dropped()?;
        self.0.can_record()?;
        let run = self.0.flight.run_of(&recorded.inspected.entries);
        if run.is_none() {
            self.0.scaler.live.resolve(true);
            self.0.take_error()?;
        }
        Ok(run)
    }

    /// The device has refused the last step of the run: it counts as skipped, and the next one begins a run.
    pub fn undo_step(&mut self) {
        if let Some((run, _)) = &self.0.flight.run {
            run.add_skip(run.next_number());
        }
        self.0.end_run();
    }

    /// Does the host's part after a replay: the step is pending.
    pub fn end_replay(&self, recorded: &InspectedStep) {
        // With an event, both go into one tensor that is read.
        let mut inspected = recorded.inspected.clone();
        if inspected.events.is_empty() {
            inspected.status = inspected.status.copied();
        }
        self.0.push(inspected, Resolution::default());
    }
}

/// The error of a step that cannot be captured.
pub fn refused(reason: impl Into<String>) -> AmpError {
    AmpError::CannotCapture {
        reason: reason.into(),
    }
}
