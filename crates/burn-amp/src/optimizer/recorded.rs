//! Steps that a device records once and makes again: what the optimizer does in them, and what it does on the host meanwhile.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, Param, ParamId},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use burn_amp_kernels::{ClipTable, DeviceScale, Status, inspect};
use std::{collections::HashSet, sync::Arc};

use super::{ScaledOptimizer, unheard::Waits};
use crate::{
    ahead::{Ahead, Run},
    clip::Factors,
    entries::{Entry, check_rate},
    error::AmpError,
    fused::step_by,
    live_scale::OneCrossing,
    module_optim::ModuleOptim,
    module_path::{self, ModulePath},
    rehearsal::{Rehearsal, Rehearses},
};

/// What a step finds on the device, before it changes anything: each time in the same places, if it was recorded.
pub(crate) struct Found {
    entries: Vec<Entry>,
    crossing: Option<OneCrossing>,
    status: Status,
    pub(crate) loss: Tensor<1>,
}

/// What a captured step has on the device, beside model and optimizer: the loss scale, and the rows that the optimizer reads.
pub(crate) struct Stage {
    pub(crate) scale: DeviceScale,
    pub(crate) rows: Vec<Tensor<1>>,
    /// How gradients are clipped by norms.
    pub(crate) clip: Option<ClipTable>,
}

impl Found {
    /// As the recording has checked those of its own step.
    pub(crate) fn check_rates(&self, lr: &ModuleLearningRate) -> Result<(), AmpError> {
        let mut entries = self.entries.iter();
        entries.try_for_each(|entry| check_rate(lr, entry.id, &entry.path))
    }
}

impl<O: ModuleOptim> ScaledOptimizer<O> {
    /// Why no step of this optimizer can be captured, if so.
    pub(crate) fn refuses_capture<M: Module>(&mut self, module: &M) -> Result<(), AmpError> {
        self.check_loaded(module)?;
        match self.cannot_record() {
            Some(what) => Err(refused(what)),
            None => Ok(()),
        }
    }

    /// The loss scale as it is, on a device: in the place of another, if there is one.
    pub(crate) fn scale_on(
        &self,
        device: &Device,
        place: Option<DeviceScale>,
    ) -> Result<DeviceScale, AmpError> {
        let waits = || {
            refused(
                self.cannot_record()
                    .unwrap_or("its loss scale is the host's"),
            )
        };
        let state = self.scaler.state_on_device().ok_or_else(waits)?;
        let sent = state.upload(device);
        Ok(match place {
            Some(place) => place.become_of(sent),
            None => sent,
        })
    }

    /// Scopes take the scale from the host again, after a recording that has failed.
    pub(crate) fn end_recording(&self) {
        self.scaler.go_ahead(None);
    }

    /// Computes a loss and its gradients, at the scale on the device, and looks at them there.
    pub(crate) fn find<M: Module>(
        &self,
        scale: &DeviceScale,
        lr: &ModuleLearningRate,
        module: &M,
        loss: impl FnOnce(&M) -> Tensor<1>,
    ) -> Result<(Found, GradientsParams), AmpError> {
        drop(self.scaler.take_noted());
        let ahead = self.scaler.ahead_of(scale.clone(), Arc::default());
        self.scaler.go_ahead(ahead);
        let loss = loss(module);
        let mut grads = GradientsParams::from_grads(loss.clone().backward(), module);
        self.scaler.go_ahead(None);
        let mut noted = self.scaler.take_noted();
        let looked = self.look(lr, module, &grads, &mut noted);
        let (entries, crossing, pass) = looked.map_err(|waits| match waits {
            Waits::For(what) => refused(what),
            Waits::Error(error) => error,
        })?;
        let status = inspect(pass).map_err(AmpError::from)?;
        self.options.clip.limit(&mut grads, &entries);
        let found = Found {
            entries,
            crossing,
            status,
            loss: loss.inner(),
        };
        Ok((found, grads))
    }

    /// Goes on from what was found to the step, which is not made or only recorded. Says whether all that it writes stays in its place.
    pub(crate) fn rehearse<M: Module>(
        &mut self,
        what: Rehearses,
        stage: Stage,
        lr: ModuleLearningRate,
        module: M,
        found: &Found,
        grads: GradientsParams,
    ) -> (M, Stage, bool) {
        let rehearsal = Rehearsal::new(what, stage.rows);
        let clip = stage.clip.or_else(|| match what {
            Rehearses::Run => self.options.clip.table(&found.entries),
            _ => None,
        });
        let clips = clip.clone().map(|table| (table, found.status.clone()));
        let crossing = found.crossing.as_ref().map(|(_, crossing)| crossing);
        let next = stage.scale.clone().advance(&found.status, crossing);
        let verdict = Arc::new(Ahead::recorded(next, clips, Arc::default(), rehearsal));
        let module = step_by(
            &mut self.optim,
            Some(&verdict),
            &Factors::new(),
            lr,
            module,
            grads,
        );
        let (next, rehearsal) = Ahead::into_parts(verdict);
        let before = stage.scale.place();
        let scale = stage.scale.become_of(next);
        let (rows, stays) = rehearsal.map(Rehearsal::end).unwrap_or_default();
        let stays = stays && scale.place() == before;
        (module, Stage { scale, rows, clip }, stays)
    }

    /// What the host does before a replay: hears of steps that are over, sends what this one reads, and counts it.
    pub(crate) fn begin_replay<M: Module>(
        &mut self,
        stage: Stage,
        recorded: &Found,
        lr: ModuleLearningRate,
        module: M,
        device: &Device,
    ) -> (M, Result<Stage, AmpError>) {
        let run = match self.replay_run(recorded) {
            Ok(run) => run,
            Err(error) => return (module, Err(error)),
        };
        let Stage {
            mut scale,
            rows,
            clip,
        } = stage;
        let run = match run {
            Some(run) => run,
            // The host has moved the scale, or may have.
            None => {
                scale = match self.scale_on(device, Some(scale)) {
                    Ok(scale) => scale,
                    Err(error) => return (module, Err(error)),
                };
                let run = Arc::<Run>::default();
                let ids = recorded.entries.iter().map(|entry| entry.id);
                self.unread.begin(run.clone(), ids.collect());
                run
            }
        };
        let rehearsal = Rehearsal::new(Rehearses::Replay, rows);
        let verdict = Arc::new(Ahead::recorded(scale, None, run, rehearsal));
        let grads = Placeholders::of(&module, &recorded.entries);
        let module = step_by(
            &mut self.optim,
            Some(&verdict),
            &Factors::new(),
            lr,
            module,
            grads,
        );
        let (scale, rehearsal) = Ahead::into_parts(verdict);
        let (rows, _) = rehearsal.map(Rehearsal::end).unwrap_or_default();
        (module, Ok(Stage { scale, rows, clip }))
    }

    /// The run that a replay goes on with; none if a new one begins.
    fn replay_run(&mut self, recorded: &Found) -> Result<Option<Arc<Run>>, AmpError> {
        self.hear(false)?;
        if let Some(what) = self.cannot_record() {
            return Err(refused(what));
        }
        let ids = recorded.entries.iter().map(|entry| entry.id);
        let run = self.unread.run_of(ids);
        if run.is_none() {
            self.hear(true)?;
        }
        Ok(run)
    }

    /// What the host does after a replay: it will hear of it.
    pub(crate) fn end_replay(&mut self, recorded: &Found) {
        // With a crossing, both go into one tensor that is read.
        let status = match recorded.crossing {
            Some(_) => recorded.status.clone(),
            None => recorded.status.copied(),
        };
        let (entries, crossing) = (recorded.entries.clone(), recorded.crossing.clone());
        self.unread.push(entries, status, crossing);
    }
}

pub(crate) fn refused(reason: impl Into<String>) -> AmpError {
    AmpError::CannotCapture {
        reason: reason.into(),
    }
}

/// The parameters themselves, where Burn's optimizer asks for their gradients: it hands on what has one.
struct Placeholders {
    ids: HashSet<ParamId>,
    grads: GradientsParams,
}

impl Placeholders {
    fn of<M: Module>(module: &M, entries: &[Entry]) -> GradientsParams {
        let mut found = Self {
            ids: entries.iter().map(|entry| entry.id).collect(),
            grads: GradientsParams::new(),
        };
        module_path::visit(module, &mut found);
        found.grads
    }
}

impl module_path::Visit for Placeholders {
    fn parameter<const D: usize>(&mut self, _path: &ModulePath, param: &Param<Tensor<D>>) {
        if self.ids.contains(&param.id) {
            self.grads.register(param.id, param.base().inner());
        }
    }
}
