//! The hooks of an optimizer, their types forgotten.

use burn::module::Module;
use std::{any::Any, cell::LazyCell, sync::Arc};

use super::{Applied, Hook, Parameters, Proposed, Resolution, State, Verdict};
use crate::values::{ParamTensors, Parameter, distinct_parameters, is_half, replaced};
use crate::{
    error::AmpError, gradients::UnscaledGradients, record::AmpRecord,
    scale::device_step::DeviceStep, scale::finding::Rejection,
};

/// A [`Hook`] whose type is erased, and that can be cloned.
pub(crate) trait AnyHook: Any + Hook {
    fn boxed(&self) -> Box<dyn AnyHook>;
}

impl<H: Hook + Clone> AnyHook for H {
    fn boxed(&self) -> Box<dyn AnyHook> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn AnyHook> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// All hooks, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct Hooks(pub(crate) Vec<Box<dyn AnyHook>>);

/// The hooks as they are if the step is made, what its gradients are multiplied by, and who has rejected it.
type Judged = (Hooks, f64, Option<Rejection>);

impl Hooks {
    /// Adds a hook, in the place of one of the same type and name.
    pub(crate) fn add<H: Hook + Clone>(&mut self, hook: H) -> Result<(), AmpError> {
        let name = hook.name().to_string();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if name.is_empty() || !name.chars().all(is_plain) {
            let allowed = "letters, digits, `_` and `-` for a hook";
            return Err(AmpError::refused("name", format!("`{name}`"), allowed));
        }
        match self.0.iter_mut().find(|other| other.name() == name) {
            Some(place) if (&**place as &dyn Any).is::<H>() => *place = Box::new(hook),
            Some(_) => {
                let allowed = "the name of no other hook here";
                return Err(AmpError::refused("name", format!("`{name}`"), allowed));
            }
            None => self.0.push(Box::new(hook)),
        }
        Ok(())
    }

    /// The first hook of a type.
    pub fn get<H: Hook>(&self) -> Option<&H> {
        let mut hooks = self.0.iter();
        hooks.find_map(|hook| (&**hook as &dyn Any).downcast_ref())
    }

    /// Judges gradients that are finite, or the next step of a module without them; none if the host is to read them first. It changes
    /// nothing here: a step that is judged may be refused, or judged again.
    pub(crate) fn judge(
        &self,
        grads: Option<&mut UnscaledGradients>,
        loss: Option<f64>,
        of_module: &dyn Fn() -> Vec<Parameter>,
    ) -> Result<Option<Judged>, AmpError> {
        let mut step = Proposed {
            grads,
            loss,
            parameters: Parameters::new(of_module),
            error: None,
        };
        let (mut smallest, mut rejected) = (1.0f64, None);
        let mut hooks = self.clone();
        for hook in &mut hooks.0 {
            match hook.judge(&mut step) {
                Verdict::Apply => {}
                _ if step.is_on_device() => return Ok(None),
                Verdict::Wait => {}
                // Not a number, too.
                Verdict::Clip { factor, .. } if !(factor > 0.0 && factor <= 1.0) => {
                    let hook = hook.name();
                    let allowed = format!("above 0 and at most 1, for the hook `{hook}`");
                    return Err(AmpError::invalid("factor", factor, allowed));
                }
                Verdict::Clip { factor, reason } => {
                    info!("gradients clipped by the hook `{}`: {reason}", hook.name());
                    smallest = smallest.min(factor);
                }
                Verdict::Reject { reason } => {
                    let hook = hook.name().to_string();
                    rejected.get_or_insert(Rejection { hook, reason });
                }
            }
        }
        (step.error).map_or(Ok(Some((hooks, smallest, rejected))), Err)
    }

    /// Each hook, to be shown a step.
    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut dyn Hook> {
        self.0.iter_mut().map(|hook| &mut **hook as &mut dyn Hook)
    }

    /// The states that a record stores, with the names of their hooks.
    pub(crate) fn states(&self) -> impl Iterator<Item = (String, State)> {
        let hooks = self.0.iter();
        hooks.filter_map(|hook| Some((hook.name().to_string(), hook.state()?)))
    }

    /// The same hooks with the states of a record, which are taken out of it.
    pub fn restored(&self, record: &mut AmpRecord) -> Result<Self, AmpError> {
        let steps = record.counters().map_or(0, |counters| counters.steps());
        let mut hooks = self.clone();
        for hook in &mut hooks.0 {
            let name = hook.name().to_string();
            let state = record.hooks.remove(&name);
            if state.is_none() && (steps > 0 || hook.state().is_some()) {
                warn!(
                    "{} holds no state of the hook `{name}`, which starts again, after {steps} steps",
                    record.origin
                );
            }
            let restored = hook.restore(state);
            restored.map_err(|reason| record.refused_state(&name, &reason))?;
        }
        Ok(hooks)
    }
}

/// Shows hooks a module after its update. Returns the module with the values that they give. `masters` are those of the optimizer; `device` decides
/// the step, and resolves it later, if it is not the host's.
pub(crate) fn show_applied<'h, M: Module>(
    hooks: impl IntoIterator<Item = &'h mut dyn Hook>,
    module: M,
    masters: &dyn Fn() -> ParamTensors,
    device: Option<(&Arc<DeviceStep>, &Resolution)>,
) -> M {
    let of_module = || with_masters(distinct_parameters(&module), masters);
    let mut step = Applied {
        parameters: Parameters::new(&of_module),
        device_step: device.map(|(decides, _)| &**decides),
        resolution: device.map_or_else(Resolution::applied, |(_, later)| later.clone()),
        values: Default::default(),
    };
    for hook in hooks {
        hook.applied(&mut step);
    }
    let values = step.values;
    if values.is_empty() {
        return module;
    }
    replaced(module, |id, old| {
        let new = values.get(&id)?.clone();
        let Parameter { path, value, .. } = old();
        let (shape, other) = (value.shape(), new.shape());
        if other != shape {
            warn!("a hook gave `{path}` a value of shape {other}, but it has {shape}: it stays");
            return None;
        }
        Some(new.moved_to(&value.device()).cast(value.dtype()))
    })
}

/// Parameters with the f32 values of those in half precision, which are asked for if there is one.
fn with_masters(
    mut parameters: Vec<Parameter>,
    masters: &dyn Fn() -> ParamTensors,
) -> Vec<Parameter> {
    let masters = LazyCell::new(masters);
    let half = |parameter: &&mut Parameter| is_half(parameter.value.dtype());
    for Parameter { id, value, .. } in parameters.iter_mut().filter(half) {
        let master = masters.get(id).cloned();
        let master = master.and_then(|master| master.live(&value.device()));
        *value = match master {
            Some(master) if master.shape() == value.shape() => master,
            _ => continue,
        };
    }
    parameters
}
