//! What the optimizer's thread owns, and what it does with the gradients of a step.

use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, tensor::Device};
use std::any::Any;

use super::masters::{images_of, masters_of, values_of};
use burn_amp_core::internal::pipeline::{Made, Trained, make_step, of_this_thread, scaled_by};
use burn_amp_core::internal::{
    ParamTensors, Parameter, StepGradients, distinct_parameters, widened,
};
use burn_amp_core::{AmpError, ModuleOptim, ScaledOptimizer, Scaler};

/// The optimizer, and the masters that it steps.
pub(super) struct Update<O> {
    pub(super) optim: ScaledOptimizer<O>,
    pub(super) host: Device,
    pub(super) masters: Option<Box<dyn Masters>>,
    /// The parameters as they were handed over: their images are like them.
    pub(super) trained: Trained,
}

/// A module of f32 parameters, its type forgotten.
pub(super) trait Masters: Any + Send {
    fn parameters(&self) -> Vec<Parameter>;
}

impl<M: Module + 'static> Masters for M {
    fn parameters(&self) -> Vec<Parameter> {
        distinct_parameters(self)
    }
}

impl<O: ModuleOptim> Update<O> {
    /// Keeps masters of this module: those of a record, or its parameters.
    pub(super) fn begin<M: Module + 'static>(
        &mut self,
        module: M,
        trained: Trained,
        stored: &ParamTensors,
    ) -> Made {
        let masters = masters_of(&module, &trained, &self.host, stored);
        let image = (!stored.is_empty()).then(|| images_of(&masters, &trained));
        self.masters = Some(Box::new(masters));
        self.trained = trained;
        image.into()
    }

    /// The masters, if they are of this type.
    fn take_masters<M: 'static>(&mut self) -> Option<M> {
        let is_known = |masters: &mut Box<dyn Masters>| (&**masters as &dyn Any).is::<M>();
        let masters: Box<dyn Any> = self.masters.take_if(is_known)?;
        Some(*masters.downcast().ok()?)
    }

    /// Takes the gradients of a step, or of a micro-batch, which the scaler tests; without any, steps with the window as it is.
    pub(super) fn step<M: Module + 'static>(
        &mut self,
        scaler: Scaler,
        lr: ModuleLearningRate,
        grads: Option<StepGradients>,
        loss: Option<f64>,
    ) -> Result<Made, AmpError> {
        let other = || AmpError::other_module("all of them", "belong to a module of another type");
        let masters: M = self.take_masters().ok_or_else(other)?;
        let grads = grads.map(|grads| moved(grads, &masters, &self.host));
        let image = |masters: &M| images_of(masters, &self.trained);
        let (masters, made) = make_step(&mut self.optim, scaler, lr, masters, grads, loss, image);
        self.masters = Some(Box::new(masters));
        made
    }

    /// The masters, where the module does not have them; those of a record, where no module was stepped with them yet.
    pub(super) fn masters_or(&self, stored: ParamTensors, are_missing: bool) -> ParamTensors {
        match &self.masters {
            Some(masters) if are_missing && stored.is_empty() => {
                values_of(masters.parameters(), &self.trained)
            }
            _ => stored,
        }
    }
}

/// The gradients on the optimizer's device. Waits for the training device.
fn moved<M: Module>(grads: StepGradients, module: &M, host: &Device) -> StepGradients {
    let scale = match &grads {
        StepGradients::Scaled(grads) => grads.loss_scale(),
        // Those that were tested elsewhere are tested here too: what was found is of the other side's scale.
        _ => 1.0,
    };
    // Of the training device itself, they are still in memory of the other thread.
    let grads = of_this_thread(grads.into_params().to_device(host, module), module);
    match scale == 1.0 {
        true => widened(grads, module).into(),
        // As narrow as they are: unscaling widens them.
        false => scaled_by(grads, scale).into(),
    }
}
