//! What the optimizer's thread owns, and what it does with the gradients of a step.

use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, tensor::Device};
use std::any::Any;

use super::masters::{self, Trained, images_of, values_of};
use burn_amp_core::internal::{
    HandedOver, ParamTensors, Parameter, StepGradients, distinct_parameters, widened,
};
use burn_amp_core::{
    AmpError, AmpRecord, ModuleOptim, ScaledGradients, ScaledOptimizer, Scaler, StepError,
    StepOutcome,
};

/// The optimizer, and the masters that it steps.
pub(super) struct Update<O> {
    pub(super) optim: ScaledOptimizer<O>,
    pub(super) host: Device,
    masters: Option<Box<dyn Masters>>,
    /// The loss scale that is to follow the next update, whatever its outcome.
    pub(super) next_scale: Option<f64>,
}

/// A module of f32 parameters, its type forgotten.
trait Masters: Any + Send {
    fn parameters(&self) -> Vec<Parameter>;
}

impl<M: Module + 'static> Masters for M {
    fn parameters(&self) -> Vec<Parameter> {
        distinct_parameters(self)
    }
}

/// What a job has done.
pub(super) struct Updated {
    pub(super) error: Option<AmpError>,
    /// The parameters, if they have changed.
    pub(super) image: Option<Trained>,
    pub(super) reached: Scaler,
}

impl<O: ModuleOptim> Update<O> {
    pub(super) fn new(optim: ScaledOptimizer<O>, host: Device) -> Self {
        Self {
            optim,
            host,
            masters: None,
            next_scale: None,
        }
    }

    /// Keeps masters of this module: those of a record, or its parameters.
    pub(super) fn begin<M: Module + 'static>(
        &mut self,
        module: M,
        trained: &Trained,
        stored: &ParamTensors,
    ) -> Updated {
        let masters = masters::masters_of(&module, trained, &self.host, stored);
        let image = (!stored.is_empty()).then(|| images_of(masters.parameters(), trained));
        self.masters = Some(Box::new(masters));
        self.updated(Ok(()), image)
    }

    /// The masters, if they are of this type.
    fn take_masters<M: 'static>(&mut self) -> Option<M> {
        let is_known = |masters: &mut Box<dyn Masters>| (&**masters as &dyn Any).is::<M>();
        let masters: Box<dyn Any> = self.masters.take_if(is_known)?;
        Some(*masters.downcast().ok()?)
    }

    /// Takes the gradients of a step, or of a micro-batch; without any, steps with the window as it is.
    pub(super) fn step<M: Module + 'static>(
        &mut self,
        lr: ModuleLearningRate,
        grads: Option<StepGradients>,
        loss: Option<f64>,
        handed: HandedOver,
        trained: &Trained,
    ) -> Updated {
        let Some(masters) = self.take_masters::<M>() else {
            let reason = "belong to a module of another type";
            return self.updated(Err(AmpError::other_module("all of them", reason)), None);
        };
        let scaler = self.optim.scaler_mut();
        scaler.take_over(handed);
        let before = scaler.schedule();
        if let Some(loss) = loss {
            self.optim.set_loss(loss);
        }
        let stepped = match grads {
            Some(grads) => {
                let grads = moved(grads, &masters, &self.host);
                self.optim.try_step(lr, masters, grads)
            }
            None => self.optim.try_flush(lr, masters),
        };
        let (masters, result) = StepError::split(stepped);
        let outcome = self.optim.scaler().last_outcome();
        // Hooks may replace parameters after a step without gradients, too.
        let is_applied = matches!(
            outcome,
            Some(StepOutcome::Stepped | StepOutcome::NoGradients)
        );
        let image = is_applied.then(|| images_of(masters.parameters(), trained));
        self.masters = Some(Box::new(masters));
        let is_update = !matches!(
            outcome,
            None | Some(StepOutcome::Accumulated | StepOutcome::NoGradients)
        );
        // In the place of what the update has reached: PyTorch's `update(new_scale)`.
        let replaced = match self.next_scale.take_if(|_| is_update) {
            Some(scale) => self.optim.scaler_mut().replace_update(before, scale),
            None => Ok(()),
        };
        self.updated(result.and(replaced), image)
    }

    pub(super) fn updated(&self, result: Result<(), AmpError>, image: Option<Trained>) -> Updated {
        Updated {
            error: result.err(),
            image,
            reached: self.optim.scaler().detached(),
        }
    }

    /// The masters of these parameters; those of a record, where no module was stepped with them yet.
    pub(super) fn masters_or(&self, stored: ParamTensors, of: Option<&Trained>) -> ParamTensors {
        match (&self.masters, of) {
            (Some(masters), Some(trained)) if stored.is_empty() => {
                values_of(masters.parameters(), trained)
            }
            _ => stored,
        }
    }

    /// Goes on from a record, the masters of which belong to the next module.
    pub(super) fn load_record(&mut self, record: AmpRecord) -> Result<Scaler, AmpError> {
        self.optim.load_record(record)?;
        self.masters = None;
        self.next_scale = None;
        Ok(self.optim.scaler().detached())
    }
}

/// The gradients on the optimizer's device. Waits for the training device.
fn moved<M: Module>(grads: StepGradients, module: &M, host: &Device) -> StepGradients {
    let scale = match &grads {
        StepGradients::Scaled(grads) => grads.loss_scale(),
        // Those that were tested elsewhere are tested here too: what was found is of the other side's scale.
        _ => 1.0,
    };
    let grads = grads.into_params().to_device(host, module);
    match scale == 1.0 {
        true => widened(grads, module).into(),
        // As narrow as they are: unscaling widens them.
        false => ScaledGradients::new(grads, scale).into(),
    }
}
