//! A [`PipelinedOptimizer`] in a `Learner`: where it is kept, and how checkpoints find the optimizer's state, which is on another thread.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, Param, ParamGroup, ParamId},
    optim::{
        DynOptimizer, DynState, GradientsParams, LearningRate, ModuleOptimizer, StateSink,
        StateSource,
    },
    tensor::{Device, Tensor, TensorData, kind::BridgeTensor},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fused::Stepper;
use crate::{
    error::{AmpError, StepError},
    module_path::{self, ModulePath},
    optimizer::ScaledOptimizer,
    param_tensors::ParamTensors,
    pipeline::{PipelinedOptimizer, put},
    record::{AmpRecord, Container},
};

/// The pipeline of a run. Clones of the model share it.
#[derive(Clone)]
pub(super) struct Pipeline {
    host: Device,
    synchronous: bool,
    /// Whether it makes one pass for all parameters.
    fused: bool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// None before the first step.
    optim: Option<PipelinedOptimizer<Stepper>>,
    /// What was received between two steps: the learner's own model does not have it yet.
    newest: ParamTensors,
    /// The optimizer's state for a checkpoint that is being taken.
    stored_optimizer: Option<Container>,
    /// Whether other parameters were loaded since the last step.
    is_reloaded: bool,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("host", &self.host)
            .field("optim", &self.state().optim)
            .finish_non_exhaustive()
    }
}

impl Pipeline {
    pub(super) fn new(host: Device, synchronous: bool, fused: bool) -> Self {
        Self {
            host,
            synchronous,
            fused,
            state: Arc::default(),
        }
    }

    pub(super) fn is_fused(&self) -> bool {
        self.fused
    }

    pub(super) fn is_started(&self) -> bool {
        self.state().optim.is_some()
    }

    /// Starts the thread with an optimizer and its state, and masters of a checkpoint if there are any. `shell`, the learner's own
    /// optimizer, has nothing but handles from now on.
    pub(super) fn start<M: Module>(
        &self,
        shell: &mut ModuleOptimizer,
        model: &M,
        optim: ScaledOptimizer<Stepper>,
        masters: Option<ParamTensors>,
    ) -> Result<(), AmpError> {
        let optim = PipelinedOptimizer::new(optim, self.host.clone())?;
        let mut optim = optim.with_synchronous(self.synchronous);
        optim.store_masters(masters.unwrap_or_default());
        *self.state() = State {
            optim: Some(optim),
            ..State::default()
        };
        self.empty(shell, model);
        Ok(())
    }

    /// Puts handles in the place of an optimizer's states.
    fn empty<M: Module>(&self, shell: &mut ModuleOptimizer, model: &M) {
        struct Zeros {
            grads: GradientsParams,
            ids: Vec<ParamId>,
        }

        impl module_path::Visit for Zeros {
            fn parameter<const D: usize>(&mut self, _path: &ModulePath, param: &Param<Tensor<D>>) {
                let value = param.base();
                if value.is_require_grad() {
                    let (device, dtype) = (value.device().inner(), value.dtype());
                    let zero = Tensor::<D>::zeros([1; D], (&device, dtype));
                    let zeros: Tensor<D> = zero.expand::<D, _>(value.shape());
                    self.grads.register(param.id, zeros);
                    self.ids.push(param.id);
                }
            }
        }

        let mut zeros = Zeros {
            grads: GradientsParams::new(),
            ids: Vec::new(),
        };
        module_path::visit(model, &mut zeros);
        let group = ParamGroup::from_ids(zeros.ids);
        *shell = (shell.clone()).with_group(group, Handles(self.clone()), None);
        // Burn makes states in a step alone.
        let _ = shell.step(ModuleLearningRate::from(0.0), model.clone(), zeros.grads);
    }

    /// The step of the learner.
    pub(super) fn step<M: Module + 'static>(
        &self,
        lr: ModuleLearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, StepError<M>> {
        let mut state = self.state();
        let model = state.take_newest(model);
        state.stored_optimizer = None;
        let is_reloaded = std::mem::take(&mut state.is_reloaded);
        let Some(optim) = &mut state.optim else {
            unreachable!("it is started before a step")
        };
        if is_reloaded && let Err(error) = optim.reload(&model) {
            return Err(StepError::new(model, error));
        }
        optim.try_step(lr, model, grads)
    }

    /// The model with its newest parameters, which the learner's own gets with the next step.
    pub(super) fn newest<M: Module + 'static>(&self, model: M) -> Result<M, StepError<M>> {
        let mut state = self.state();
        let model = put(model, &state.newest);
        let Some(optim) = &mut state.optim else {
            return Ok(model);
        };
        let received = optim.try_synchronize(model);
        let image = optim.image();
        state.newest = image;
        received
    }

    /// The model that a forward pass is to see.
    pub(super) fn current<M: Module>(&self, model: &M) -> Option<M> {
        let state = self.state();
        (state.newest.len() > 0).then(|| put(model.clone(), &state.newest))
    }

    /// Takes note of a model into which other parameters were loaded.
    pub(super) fn reload(&self) {
        let mut state = self.state();
        state.is_reloaded = state.optim.is_some();
        state.newest = ParamTensors::default();
    }

    /// The state of the scaler, of a guard, and the masters, after all that is on its way. None before the first step.
    pub(super) fn record(&self) -> Option<AmpRecord> {
        let mut state = self.state();
        let mut record = state.optim.as_ref()?.to_record();
        state.stored_optimizer = record.take_optimizer();
        Some(record)
    }

    pub(super) fn scaler(&self) -> Option<crate::GradScaler> {
        let state = self.state();
        state
            .optim
            .as_ref()
            .map(PipelinedOptimizer::side_that_scales)
    }

    /// How many passes its thread has made.
    #[cfg(test)]
    pub(super) fn passes(&self) -> u32 {
        let (sender, passes) = std::sync::mpsc::channel();
        let mut state = self.state();
        let optim = state.optim.as_mut().expect("it was started");
        let count = move |_: &mut _| {
            sender.send(crate::fused::PASSES.get()).unwrap();
            Ok(())
        };
        optim.queue(count).unwrap();
        passes.recv().unwrap()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here is left half written by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_newest<M: Module>(&mut self, model: M) -> M {
        let newest = std::mem::take(&mut self.newest);
        match newest.len() {
            0 => model,
            _ => put(model, &newest),
        }
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
        if self.0.state().stored_optimizer.is_none() {
            let _ = self.0.record();
        }
        let mut state = self.0.state();
        let Some(container) = &mut state.stored_optimizer else {
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
