//! A [`PipelinedOptimizer`] in a `Learner`: where it is kept, and how checkpoints find the optimizer's state, which is on another thread.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, ParamGroup},
    optim::{
        DynOptimizer, DynState, GradientsParams, LearningRate, ModuleOptimizer, StateSink,
        StateSource,
    },
    tensor::{Device, TensorData, kind::BridgeTensor},
};
use std::{
    mem::take,
    sync::{Arc, Mutex},
};

use super::stepper::Stepper;
use crate::{
    error::{AmpError, StepError},
    gradients::placeholders,
    lock::locked,
    module_path::distinct_parameters,
    optimizer::ScaledOptimizer,
    param_tensors::ParamTensors,
    pipeline::{PipelinedOptimizer, put},
    record::{AmpRecord, Container},
};

/// Where a thread steps: the device of its masters, and whether each step waits for it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) host: Device,
    pub(super) synchronous: bool,
}

/// The thread of a run. Clones share it.
#[derive(Clone)]
pub(super) struct Pipeline {
    place: Place,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// None before the first step.
    thread: Option<PipelinedOptimizer<Stepper>>,
    /// Masters of a checkpoint, for the thread to begin with.
    masters: ParamTensors,
    /// What was received between two steps: the learner's own model does not have it yet.
    newest: ParamTensors,
    /// The optimizer's state for a checkpoint that is being taken.
    stored_optimizer: Option<Container>,
    /// Whether other parameters were loaded since the last step.
    is_reloaded: bool,
}

impl Pipeline {
    pub(super) fn new(place: Place) -> Self {
        Self {
            place,
            state: Arc::default(),
        }
    }

    /// Masters of a checkpoint, before the first step.
    pub(super) fn begin_with(&self, masters: ParamTensors) {
        locked(&self.state).masters = masters;
    }

    pub(super) fn is_started(&self) -> bool {
        locked(&self.state).thread.is_some()
    }

    /// Before a step: starts the thread with `shell`, the learner's own optimizer, and with scaler and options of `optim`. The shell has
    /// nothing but handles from then on. A thread that has started takes over parameters that were loaded.
    fn prepare<M: Module + 'static>(
        &self,
        state: &mut State,
        optim: &ScaledOptimizer<Stepper>,
        shell: &mut ModuleOptimizer,
        model: &M,
    ) -> Result<(), AmpError> {
        let is_reloaded = take(&mut state.is_reloaded);
        if let Some(thread) = &mut state.thread {
            return if is_reloaded {
                thread.reload(model)
            } else {
                Ok(())
            };
        }
        let stepper = optim.optimizer().with(shell.clone());
        let (scaler, options) = (optim.scaler().clone(), optim.options.clone());
        let own = ScaledOptimizer::from_parts(stepper, scaler, options);
        let thread = PipelinedOptimizer::new(own, self.place.host.clone())?;
        let mut thread = thread.with_synchronous(self.place.synchronous);
        thread.stored = take(&mut state.masters);
        state.thread = Some(thread);
        self.put_handles(shell, model);
        Ok(())
    }

    /// Puts handles in the place of the states of the learner's own optimizer.
    fn put_handles<M: Module>(&self, shell: &mut ModuleOptimizer, model: &M) {
        let trained = distinct_parameters(model).into_iter();
        let trained: Vec<_> = trained.filter(|parameter| parameter.is_trained).collect();
        let group = ParamGroup::from_ids(trained.iter().map(|parameter| parameter.id).collect());
        *shell = (shell.clone()).with_group(group, Handles(self.clone()), None);
        // Burn makes states in a step alone.
        let grads = placeholders(trained);
        let _ = shell.step(ModuleLearningRate::from(0.0), model.clone(), grads);
    }

    /// The step of the learner. `optim` has the scaler, as far as the training knows.
    pub(super) fn step<M: Module + 'static>(
        &self,
        optim: &mut ScaledOptimizer<Stepper>,
        shell: &mut ModuleOptimizer,
        lr: ModuleLearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, StepError<M>> {
        let mut state = locked(&self.state);
        let model = put(model, &take(&mut state.newest));
        state.stored_optimizer = None;
        let prepared = self.prepare(&mut state, optim, shell, &model);
        let model = StepError::join(model, prepared)?;
        let Some(thread) = &mut state.thread else {
            unreachable!("it is started before a step")
        };
        let stepped = thread.try_step(lr, model, grads);
        *optim.scaler_mut() = thread.scaler.clone();
        stepped
    }

    /// The model with its newest parameters, which the learner's own gets with the next step.
    pub(super) fn newest<M: Module + 'static>(
        &self,
        optim: &mut ScaledOptimizer<Stepper>,
        model: M,
    ) -> Result<M, StepError<M>> {
        let mut state = locked(&self.state);
        let model = put(model, &state.newest);
        let Some(thread) = &mut state.thread else {
            return Ok(model);
        };
        let received = thread.synchronize(model);
        *optim.scaler_mut() = thread.scaler.clone();
        let image = thread.module.image.clone();
        state.newest = image;
        received
    }

    /// The model that a forward pass is to see, if it is another.
    pub(super) fn current<M: Module>(&self, model: &M) -> Option<M> {
        let state = locked(&self.state);
        (state.newest.len() > 0).then(|| put(model.clone(), &state.newest))
    }

    /// Takes note of a model into which other parameters were loaded.
    pub(super) fn reload(&self) {
        let mut state = locked(&self.state);
        state.is_reloaded = state.thread.is_some();
        state.newest = ParamTensors::default();
    }

    /// The state of the scaler, of a guard, and the masters, after all that is on its way. None before the first step.
    pub(super) fn record(&self) -> Option<AmpRecord> {
        locked(&self.state).record()
    }

    /// How many passes its thread has made.
    #[cfg(test)]
    pub(super) fn passes(&self) -> u32 {
        let (sender, passes) = std::sync::mpsc::channel();
        let mut state = locked(&self.state);
        let thread = state.thread.as_mut().expect("it was started");
        let count = move |_: &mut _| {
            sender.send(crate::fused::PASSES.get()).unwrap();
            Ok(())
        };
        thread.queue(count).unwrap();
        passes.recv().unwrap()
    }
}

impl State {
    fn record(&mut self) -> Option<AmpRecord> {
        let mut record = self.thread.as_mut()?.to_record();
        self.stored_optimizer = record.take_optimizer();
        Some(record)
    }

    /// The optimizer's state, of the record that was taken last.
    fn stored_optimizer(&mut self) -> Option<&mut Container> {
        if self.stored_optimizer.is_none() {
            self.record();
        }
        self.stored_optimizer.as_mut()
    }
}

/// In the learner's own optimizer, in the place of the one that steps: finds the states where they are when a record is taken.
struct Handles(Pipeline);

/// The state of a parameter is on the other thread.
#[derive(Clone)]
struct Handle;

impl DynOptimizer for Handles {
    fn step_dyn(
        &self,
        rank: usize,
        _lr: LearningRate,
        tensor: BridgeTensor,
        _grad: BridgeTensor,
        _state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        (tensor, Some(DynState::create(Handle, rank)))
    }

    fn to_device_dyn(&self, state: DynState, _device: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, _state: &DynState, out: &mut StateSink) {
        let mut state = locked(&self.0.state);
        let Some(container) = state.stored_optimizer() else {
            panic!("the optimizer's thread has ended: there is no state to be stored");
        };
        let field = |name: &str| {
            let (id, field) = name.split_once('.')?;
            (id == prefix).then(|| field.to_string())
        };
        for (name, value) in container.scalars() {
            if let Some(field) = field(name).filter(|field| field != "__rank") {
                out.push_scalar(prefix, &field, *value);
            }
        }
        for tensor in container.split_tensors(|name| field(name).is_some()) {
            let name = tensor.name.clone();
            let (_, dtype, shape, _, bytes) = tensor
                .into_parts()
                .unwrap_or_else(|error| panic!("the optimizer's state cannot be read: {error}"));
            if let Some(field) = field(&name) {
                out.push_tensor(prefix, &field, TensorData::from_bytes(bytes, shape, dtype));
            }
        }
    }

    fn state_unflatten(
        &self,
        _rank: usize,
        _prefix: &str,
        _src: &mut StateSource,
        _device: &Device,
    ) -> Option<DynState> {
        log::warn!(
            "an optimizer's record was loaded in the middle of a pipelined run, and is not used: load it before the first step"
        );
        None
    }
}
