//! A [`PipelinedOptimizer`] in a `Learner`: what it has, and the learner's own model and optimizer do not.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, optim::GradientsParams,
};
use std::mem::take;

use super::stepper::{Place, Stepper};
use crate::{
    error::{AmpError, StepError},
    optimizer::ScaledOptimizer,
    param_tensors::ParamTensors,
    pipeline::{PipelinedOptimizer, put},
    record::{AmpRecord, Container},
    scaler::GradScaler,
};

/// The optimizer of a run on a thread of its own, and what the learner's own model does not have of it yet.
pub(super) struct Remote {
    pub(super) optim: PipelinedOptimizer<Stepper>,
    /// Whether parameters were received between two steps.
    is_ahead: bool,
    /// Whether other parameters were loaded since the last step.
    is_reloaded: bool,
    /// The optimizer's state for a checkpoint that is being taken.
    stored_optimizer: Option<Container>,
}

impl Remote {
    /// Starts the thread, with masters of a checkpoint, if there are any.
    pub(super) fn start(
        optim: ScaledOptimizer<Stepper>,
        place: &Place,
        masters: ParamTensors,
    ) -> Result<Self, AmpError> {
        let optim = PipelinedOptimizer::new(optim, place.host.clone())?;
        let mut optim = optim.with_synchronous(place.synchronous);
        optim.stored = masters;
        Ok(Self {
            optim,
            is_ahead: false,
            is_reloaded: false,
            stored_optimizer: None,
        })
    }

    pub(super) fn scaler(&self) -> &GradScaler {
        &self.optim.scaler
    }

    /// The step of the learner. A thread takes over parameters that were loaded.
    pub(super) fn step<M: Module + 'static>(
        &mut self,
        lr: ModuleLearningRate,
        model: M,
        grads: GradientsParams,
    ) -> Result<M, StepError<M>> {
        let model = self.current(&model).unwrap_or(model);
        (self.is_ahead, self.stored_optimizer) = (false, None);
        if take(&mut self.is_reloaded)
            && let Err(error) = self.optim.reload(&model)
        {
            return Err(StepError::new(model, error));
        }
        self.optim.try_step(lr, model, grads)
    }

    /// The model with its newest parameters, which the learner's own gets with the next step.
    pub(super) fn newest<M: Module + 'static>(&mut self, model: M) -> Result<M, StepError<M>> {
        let model = self.current(&model).unwrap_or(model);
        self.is_ahead = true;
        self.optim.synchronize(model)
    }

    /// The model that a forward pass is to see, if it is another.
    pub(super) fn current<M: Module>(&self, model: &M) -> Option<M> {
        let newest = self.optim.trained.as_ref().filter(|_| self.is_ahead)?;
        Some(put(model.clone(), newest))
    }

    /// Takes note of a model into which other parameters were loaded.
    pub(super) fn reload(&mut self) {
        (self.is_ahead, self.is_reloaded) = (false, true);
    }

    /// The state of the scaler, of a guard, and the masters, after all that is on its way.
    pub(super) fn record(&mut self) -> AmpRecord {
        let mut record = self.optim.to_record();
        self.stored_optimizer = record.take_optimizer();
        record
    }

    /// The optimizer's state, of the record that was taken last.
    pub(super) fn stored_optimizer(&mut self) -> Option<&mut Container> {
        if self.stored_optimizer.is_none() {
            self.record();
        }
        self.stored_optimizer.as_mut()
    }
}
