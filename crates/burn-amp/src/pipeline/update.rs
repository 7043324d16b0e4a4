//! What the optimizer's thread owns, and what it does with the gradients of a step.

use burn::{
    lr_scheduler::module_lr_scheduler::ModuleLearningRate,
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use std::any::Any;

use super::masters::{self, Places};
use crate::{
    dtype::working_dtype,
    error::{AmpError, StepError},
    gradients::{ScaledGradients, StepGradients},
    loss_scale::{LossScale, StepOutcome},
    module_optim::ModuleOptim,
    module_path::{self, ModulePath},
    optimizer::ScaledOptimizer,
    param_tensors::ParamTensors,
    record::AmpRecord,
    scaler::{Noted, Reached},
};

/// The optimizer, and the masters that it steps.
pub(super) struct Update<O> {
    pub(super) optim: ScaledOptimizer<O>,
    pub(super) host: Device,
    masters: Option<Masters>,
    /// The loss scale that is to follow the next update, whatever its outcome.
    next_scale: Option<f64>,
}

/// A module of f32 parameters, its type forgotten.
struct Masters {
    module: Box<dyn Any + Send>,
    places: Places,
    values: fn(&Masters) -> ParamTensors,
}

/// What a job has done.
pub(super) struct Updated {
    pub(super) error: Option<AmpError>,
    /// The parameters, if they have changed.
    pub(super) image: Option<ParamTensors>,
    pub(super) reached: Reached,
}

/// What there is to do with the gradients on the optimizer's side.
pub(super) enum Call {
    Step(StepGradients),
    /// To step with the window as it is.
    Flush,
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
        self.masters = Some(Masters::new(masters, places));
        self.updated(Ok(()), image)
    }

    /// Takes the gradients of a step, or of a micro-batch.
    pub(super) fn step<M: Module + 'static>(
        &mut self,
        lr: ModuleLearningRate,
        call: Call,
        loss: Option<f64>,
        noted: Noted,
    ) -> Updated {
        let (masters, places) = match self.masters.take().map(Masters::into_inner::<M>) {
            Some(Ok(masters)) => masters,
            other => {
                self.masters = other.and_then(Result::err);
                return self.updated(Err(another_type()), None);
            }
        };
        let scaler = self.optim.scaler_mut();
        scaler.take_over(noted);
        let before = scaler.schedule();
        if let Some(loss) = loss {
            self.optim.set_loss(loss);
        }
        let stepped = match call {
            Call::Step(grads) => {
                let grads = moved(grads, &masters, &self.host);
                self.optim.try_step(lr, masters, grads)
            }
            Call::Flush => self.optim.try_flush(lr, masters),
        };
        let (masters, result) = match stepped {
            Ok(masters) => (masters, Ok(())),
            Err(StepError { module, error }) => (*module, Err(error)),
        };
        let outcome = self.optim.scaler().last_outcome();
        let image =
            (outcome == Some(StepOutcome::Stepped)).then(|| masters::image_of(&masters, &places));
        self.masters = Some(Masters::new(masters, places));
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

    pub(super) fn set_next_scale(&mut self, scale: f64) {
        self.next_scale = Some(scale);
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
    pub(super) fn to_record(&self, with_masters: bool) -> AmpRecord {
        let mut record = self.optim.to_record();
        let masters = self.masters.as_ref().filter(|_| with_masters);
        record.masters = masters.map(|masters| (masters.values)(masters));
        record
    }

    /// Goes on from a record, the masters of which belong to the next module.
    pub(super) fn try_load_record(&mut self, record: AmpRecord) -> Result<Reached, AmpError> {
        self.optim.try_load_record(record)?;
        self.masters = None;
        self.next_scale = None;
        Ok(self.optim.scaler().reached())
    }
}

impl Masters {
    fn new<M: Module + 'static>(module: M, places: Places) -> Self {
        Self {
            module: Box::new(module),
            places,
            values: |masters| match masters.module.downcast_ref::<M>() {
                Some(module) => masters::values_of(module, &masters.places),
                None => ParamTensors::default(),
            },
        }
    }

    /// The module, if it is of this type.
    fn into_inner<M: 'static>(self) -> Result<(M, Places), Self> {
        let Self {
            module,
            places,
            values,
        } = self;
        match module.downcast::<M>() {
            Ok(module) => Ok((*module, places)),
            Err(module) => Err(Self {
                module,
                places,
                values,
            }),
        }
    }
}

fn another_type() -> AmpError {
    AmpError::OtherModule {
        parameter: "all of them".to_string(),
        reason: "belong to a module of another type".to_string(),
    }
}

/// The gradients on the optimizer's device. Waits for the training device.
fn moved<M: Module>(grads: StepGradients, module: &M, host: &Device) -> StepGradients {
    match grads {
        StepGradients::Scaled(grads) if grads.loss_scale() != 1.0 => {
            let scale = grads.loss_scale();
            // As narrow as they are: unscaling widens them.
            let grads = grads.into_params().to_device(host, module);
            ScaledGradients::new(grads, scale).into()
        }
        // Those that were tested elsewhere are tested here too: what was found is of the other side's scale.
        grads => {
            let grads = grads.into_params().to_device(host, module);
            widened(grads, module).into()
        }
    }
}

/// Gradients in the dtype of the masters.
fn widened<M: Module>(grads: GradientsParams, module: &M) -> GradientsParams {
    struct Widen(GradientsParams);

    impl module_path::Visit for Widen {
        fn parameter<const D: usize>(&mut self, _path: &ModulePath, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.0.remove::<D>(param.id) {
                let working = working_dtype(param.base().dtype());
                self.0.register(param.id, grad.cast(working));
            }
        }
    }

    let mut widen = Widen(grads);
    module_path::visit(module, &mut widen);
    widen.0
}
