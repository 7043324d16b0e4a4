//! The parts of a step that a program makes one by one, as with PyTorch.

use burn::{module::Module, optim::GradientsParams};

use crate::error::{AmpError, StepError};
use crate::gradients::{Entries, ScaledGradients, StepGradients, UnscaledGradients, failed_step};
use crate::scaler::{Failed, Inspected, Scaler, accumulation::AccumulationWindow};
pub use crate::{
    border::multiply_losses, check::search_scale, gradients::unchanged, scaler::Joint,
    update::masters::show_master,
};
use crate::{
    scale::account::Call, scale::finding::Effect, scale::loss_scale::StepOutcome,
    update::ModuleOptim,
};

/// Unscales and tests gradients: an iteration waits for their step from now on.
pub fn unscale<M: Module>(
    scaler: &Scaler,
    grads: ScaledGradients,
    module: &M,
) -> Result<UnscaledGradients, AmpError> {
    scaler.expect(true);
    scaler.unscale(grads, module)
}

/// Refuses gradients of dtypes that an optimizer cannot combine with their parameters.
pub fn check_accepted<O: ModuleOptim>(
    optim: &O,
    grads: &UnscaledGradients,
) -> Result<(), AmpError> {
    crate::update::module_optim::check_accepted(optim, &grads.entries, |entry| {
        grads.dtype_of(entry)
    })
}

/// Says whether gradients are not stepped with, and the loss scale is not the cause.
pub fn spares_scale(grads: &UnscaledGradients) -> bool {
    grads.finding.effect() == Effect::Spares
}

/// The gradients to step with.
pub fn into_tested(grads: UnscaledGradients) -> GradientsParams {
    grads.into_tested()
}

/// The error of a step that has failed, for the program and for an observer.
pub fn failed<M: Module>(scaler: &Scaler, module: M, error: AmpError) -> StepError<M> {
    let failed = failed_step(module, error);
    scaler.notify(scaler.last_outcome(), Some(&failed.error));
    failed
}

/// Adds gradients to a window, or empties it. Gives the gradients to step with if it is full, or was emptied.
pub fn fill<M: Module>(
    scaler: &mut Scaler,
    window: &mut AccumulationWindow,
    grads: Option<StepGradients>,
    module: &M,
) -> Result<Option<UnscaledGradients>, AmpError> {
    if window.config.skip_micro_batch && grads.is_some() {
        scaler.expect(true);
    }
    let params = grads.as_ref().map(StepGradients::params);
    let entries = Entries::find(module, params, Some(&window.state.sums), None);
    let inspected = entries.map_err(Failed::from).and_then(|entries| {
        if let Some(StepGradients::Unscaled(grads)) = &grads {
            grads.count(&scaler.dropped);
        }
        scaler.inspect(Some(window), grads, entries, &mut None)
    });
    match inspected {
        Ok(Inspected::Tested(grads, status)) => {
            scaler.enter(Call::of(StepOutcome::Accumulated, status));
            Ok(Some(scaler.registered(*grads)))
        }
        Ok(Inspected::Waits(_)) => Ok(None),
        Err(Failed { error, outcome }) => {
            if outcome.is_none() {
                scaler.enter(Call::default());
            }
            Err(error)
        }
    }
}

/// Takes over PyTorch's scale, growth factor and backoff factor, and its growth interval and growth tracker.
pub fn restore(scaler: &mut Scaler, numbers: [f64; 3], counts: [u32; 2]) -> Result<(), AmpError> {
    scaler.change(|schedule| schedule.restored(numbers, counts))
}
