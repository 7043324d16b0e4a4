//! Hooks: parts that a program adds to the steps of a [`ScaledOptimizer`](crate::ScaledOptimizer). The hooks
//! of this crate use this public interface only.
//!
//! ```
//! use burn::{nn::LinearConfig, optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor}};
//! use burn_amp::{MixedPrecision, hook::{Hook, Proposed, State, Verdict}};
//!
//! /// Rejects a step whose gradients are `times` as long as those of the step before.
//! #[derive(Clone, Debug)]
//! struct Jump {
//!     times: f64,
//!     before: Option<f64>,
//! }
//!
//! impl Hook for Jump {
//!     fn name(&self) -> &str {
//!         "jump"
//!     }
//!
//!     fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
//!         let Some(norm) = step.status().map(|status| status.norm()) else {
//!             return Verdict::Wait;
//!         };
//!         match self.before.replace(norm) {
//!             Some(before) if norm > self.times * before => {
//!                 Verdict::Reject { reason: format!("the norm is {norm}, after {before}") }
//!             }
//!             _ => Verdict::Apply,
//!         }
//!     }
//!
//!     fn state(&self) -> Option<State> {
//!         State::of(&self.before).ok()
//!     }
//!
//!     fn restore(&mut self, state: Option<State>) -> Result<(), String> {
//!         self.before = state.map(|state| state.values()).transpose()?.flatten();
//!         Ok(())
//!     }
//! }
//!
//! let device = Device::flex().autodiff();
//! let amp = MixedPrecision::f16();
//! let (model, optim) = amp.prepare(LinearConfig::new(4, 2).init(&device), SgdConfig::new().init());
//! let mut optim = optim.with_hook(Jump { times: 10.0, before: None });
//!
//! let output = amp.autocast(Tensor::<2>::ones([8, 4], &device), |x| model.forward(x));
//! let grads = GradientsParams::from_grads(output.mean().backward(), &model);
//! let model = optim.step(0.1, model, grads);
//! assert!(optim.hook::<Jump>().unwrap().before.is_some());
//! # let _ = model;
//! ```

mod list;

use burn::{module::ParamId, tensor::Tensor};
use std::{cell::LazyCell, collections::HashMap, fmt::Debug};

use crate::{
    error::AmpError, gradients::UnscaledGradients, gradients::status::GradientStatus,
    scale::device_step::DeviceStep, values::AnyTensor,
};

pub use crate::{record::State, scale::in_flight::Resolution, values::Parameter};
pub(crate) use list::{Hooks, show_applied};

/// A part that a program adds to the steps of a [`ScaledOptimizer`](crate::ScaledOptimizer), by
/// [`with_hook`](crate::ScaledOptimizer::with_hook).
///
/// A hook sees the host's values, and tensors that it must not wait for. A step that overflows is shown to no hook. A clone of the optimizer
/// has clones of its hooks.
pub trait Hook: Debug + Send + Sync + 'static {
    /// Its name, which no other hook of an optimizer has, and that of its state in records.
    fn name(&self) -> &str;

    /// Judges a step whose gradients are finite, before they are clipped. If the step is refused with an error, or the hook is asked again,
    /// what the call has changed in the hook is undone.
    ///
    /// A fused optimizer that does not wait asks first without a [status](Proposed::status): [`Verdict::Apply`] lets the
    /// device decide the step, [`Verdict::Wait`] makes the host read the status and ask all hooks again. By
    /// default a hook waits, and accepts every step.
    fn judge(&mut self, step: &mut Proposed<'_>) -> Verdict {
        match step.is_on_device() {
            true => Verdict::Wait,
            false => Verdict::Apply,
        }
    }

    /// A step was applied, or, if [the device decides it](Applied::skipped), may have been. By default it does nothing.
    fn applied(&mut self, _step: &mut Applied<'_>) {}

    /// The state that a record stores; none if there is nothing to store yet.
    fn state(&self) -> Option<State> {
        None
    }

    /// Goes on from the state of a record, or starts again where the record has none.
    ///
    /// # Errors
    ///
    /// Says why no run can have stored this state. The record is refused then, and nothing has changed.
    fn restore(&mut self, _state: Option<State>) -> Result<(), String> {
        Ok(())
    }
}

/// The argument of [`with_hook`](crate::ScaledOptimizer::with_hook): every [`Hook`] that can be cloned, and settings that become one.
pub trait IntoHook {
    /// The hook.
    ///
    /// # Errors
    ///
    /// Of settings: [`AmpError::InvalidValue`] for one that is out of its range. It is an error of the optimizer's first step.
    fn into_hook(self) -> Result<impl Hook + Clone, AmpError>;
}

impl<H: Hook + Clone> IntoHook for H {
    fn into_hook(self) -> Result<impl Hook + Clone, AmpError> {
        Ok(self)
    }
}

/// The verdict of a hook on a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It may be applied.
    Apply,
    /// The host is to read the status first.
    Wait,
    /// It may be applied with gradients that are multiplied by a factor, from above 0 to 1.
    Clip {
        /// The factor. Of several hooks' factors, and of clipping's, the smallest holds.
        factor: f64,
        /// The reason, for the log.
        reason: String,
    },
    /// It is not applied. Parameters, optimizer and loss scale stay as they are.
    Reject {
        /// The reason, for the log, and for the error where too many steps in a row are rejected.
        reason: String,
    },
}

/// The float parameters of a module, listed once somebody asks for them.
type Parameters<'a> = LazyCell<Vec<Parameter>, &'a dyn Fn() -> Vec<Parameter>>;

/// A step that is judged.
pub struct Proposed<'a> {
    /// The gradients; none where the device decides.
    grads: Option<&'a mut UnscaledGradients>,
    loss: Option<f64>,
    parameters: Parameters<'a>,
    /// The reason why the gradients could not be measured.
    error: Option<AmpError>,
}

impl Proposed<'_> {
    /// The measures of the unscaled gradients, before clipping; of an accumulation window, those of its mean or sum. None on a step that
    /// [the device decides](Self::is_on_device).
    ///
    /// The test of the gradients has found them. Where nothing has tested them, without a loss scale or after a change, this is one pass and
    /// one wait.
    pub fn status(&mut self) -> Option<&GradientStatus> {
        let grads = self.grads.as_deref_mut()?;
        if let Err(error) = grads.measured() {
            self.error = Some(error);
            return None;
        }
        // An overflow that nobody had seen yet is no hook's.
        (!grads.finding.skips()).then(|| grads.status())
    }

    /// The unscaled gradients, before clipping, for what the status does not say: those of one parameter, for example, by
    /// [`get`](UnscaledGradients::get). None on a step that the device decides.
    pub fn gradients(&self) -> Option<&UnscaledGradients> {
        self.grads.as_deref()
    }

    /// The loss that [`set_loss`](crate::ScaledOptimizer::set_loss) was given, or the mean of those of an accumulation window; none if it was
    /// given none.
    pub fn loss(&self) -> Option<f64> {
        self.loss
    }

    /// Tells whether a device is to decide the step, and nobody waits for it.
    pub fn is_on_device(&self) -> bool {
        self.grads.is_none()
    }

    /// The float parameters of the module, each once, as they are before the step. Walks over the module.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
}

/// A step that was applied, or that a device decides.
pub struct Applied<'a> {
    parameters: Parameters<'a>,
    /// Decides the step, if the device does.
    device_step: Option<&'a DeviceStep>,
    resolution: Resolution,
    values: HashMap<ParamId, AnyTensor>,
}

impl Applied<'_> {
    /// The float parameters of the module, each once, after the step. Walks over the module.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The device's decision, where that decides the step: one f32 value there, 1 if the step was skipped, and 0 if it was applied. None: it was applied.
    pub fn skipped(&self) -> Option<Tensor<1>> {
        self.device_step.map(|step| step.scale.found_inf())
    }

    /// Says later whether the step was applied.
    pub fn resolution(&self) -> Resolution {
        self.resolution.clone()
    }

    /// Gives a parameter another value of the same shape, which is cast to its dtype. The last call for a parameter holds. A value of another shape is
    /// dropped, with a warning. On a step that the device decides the value counts even if the step is skipped: answer [`Verdict::Wait`] before.
    pub fn replace<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) {
        self.replace_any(id, AnyTensor::new(value));
    }

    pub(crate) fn replace_any(&mut self, id: ParamId, value: AnyTensor) {
        self.values.insert(id, value);
    }
}
