//! What the optimizer's thread owns, and what it does with the gradients of a step.

use burn::{lr_scheduler::module_lr_scheduler::ModuleLearningRate, module::Module, tensor::Device};
use std::any::Any;

use super::masters::{self, Places};
use crate::{
    error::{AmpError, StepError},
    gradients::{ScaledGradients, StepGradients, widened},
    loss_scale::{LossScale, StepOutcome},
    module_optim::ModuleOptim,
    optimizer::ScaledOptimizer,
    param_tensors::ParamTensors,
    record::{self, AmpRecord},
    scaler::{Noted, Reached},
};

/// The optimizer, and the masters that it steps.
pub(super) struct Update<O> {
    pub(super) optim: ScaledOptimizer<O>,
    pub(super) host: Device,
    masters: Option<Masters>,
    /// The loss scale that is to follow the next update, whatever its outcome.
    pub(super) next_scale: Option<f64>,
}

/// A module of f32 parameters, its type forgotten.
struct Masters {
    module: Box<dyn AnyModule>,
    places: Places,
}

trait AnyModule: Any + Send {
    fn values(&self, places: &Places) -> ParamTensors;
}

impl<M: Module + 'static> AnyModule for M {
    fn values(&self, places: &Places) -> ParamTensors {
        masters::values_of(self, places)
    }
}

/// What a job has done.
pub(super) struct Updated {
    pub(super) error: Option<AmpError>,
    /// The parameters, if they have changed.
    pub(super) image: Option<ParamTensors>,
    pub(super) reached: Reached,
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
        places: Places,
        stored: &ParamTensors,
    ) -> Updated {
        let masters = masters::masters_of(&module, &places, &self.host, stored);
        let image = (stored.len() > 0).then(|| masters::image_of(&masters, &places));
        self.put_masters(masters, places);
        self.updated(Ok(()), image)
    }

    fn put_masters<M: Module + 'static>(&mut self, masters: M, places: Places) {
        let module = Box::new(masters);
        self.masters = Some(Masters { module, places });
    }

    /// The masters, if they are of this type.
    fn take_masters<M: 'static>(&mut self) -> Option<(M, Places)> {
        let is_known = |masters: &mut Masters| (&*masters.module as &dyn Any).is::<M>();
        let Masters { module, places } = self.masters.take_if(is_known)?;
        let module: Box<dyn Any> = module;
        Some((*module.downcast().ok()?, places))
    }

    /// Takes the gradients of a step, or of a micro-batch; without any, steps with the window as it is.
    pub(super) fn step<M: Module + 'static>(
        &mut self,
        lr: ModuleLearningRate,
        grads: Option<StepGradients>,
        loss: Option<f64>,
        noted: Noted,
    ) -> Updated {
        let Some((masters, places)) = self.take_masters::<M>() else {
            let reason = "belong to a module of another type";
            return self.updated(Err(AmpError::other_module("all of them", reason)), None);
        };
        let scaler = self.optim.scaler_mut();
        scaler.take_over(noted);
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
        let image =
            (outcome == Some(StepOutcome::Stepped)).then(|| masters::image_of(&masters, &places));
        self.put_masters(masters, places);
        let result = result.and(self.end_update(before, outcome));
        self.updated(result, image)
    }

    /// Puts a loss scale in the place of that which an update has reached: PyTorch's `update(new_scale)`.
    fn end_update(
        &mut self,
        before: LossScale,
        outcome: Option<StepOutcome>,
    ) -> Result<(), AmpError> {
        match outcome {
            // No update.
            None | Some(StepOutcome::Accumulated | StepOutcome::NoGradients) => Ok(()),
            Some(_) => match self.next_scale.take() {
                Some(scale) => self.optim.scaler_mut().replace_update(before, scale),
                None => Ok(()),
            },
        }
    }

    pub(super) fn updated(
        &self,
        result: Result<(), AmpError>,
        image: Option<ParamTensors>,
    ) -> Updated {
        Updated {
            error: result.err(),
            image,
            reached: self.optim.scaler().reached(),
        }
    }

    /// The state, with the masters if the parameters are not their whole image.
    pub(super) fn record(&mut self, with_masters: bool) -> AmpRecord {
        let mut record = self.optim.to_record();
        let masters = self.masters.as_ref().filter(|_| with_masters);
        record.put(masters.map(|masters| record::Masters {
            values: masters.module.values(&masters.places),
        }));
        record
    }

    /// Goes on from a record, the masters of which belong to the next module.
    pub(super) fn load_record(&mut self, record: AmpRecord) -> Result<Reached, AmpError> {
        self.optim.load_record(record)?;
        self.masters = None;
        self.next_scale = None;
        Ok(self.optim.scaler().reached())
    }
}

/// The gradients on the optimizer's device. Waits for the training device.
fn moved<M: Module>(grads: StepGradients, module: &M, host: &Device) -> StepGradients {
    match grads {
        StepGradients::Scaled(grads) if grads.loss_scale() != 1.0 => {
            let scale = grads.loss_scale();
            // As narrow as they are: unscaling widens them.
            let params = grads.into_params().to_device(host, module);
            ScaledGradients { params, scale }.into()
        }
        // Those that were tested elsewhere are tested here too: what was found is of the other side's scale.
        grads => {
            let grads = grads.into_params().to_device(host, module);
            widened(grads, module).into()
        }
    }
}
