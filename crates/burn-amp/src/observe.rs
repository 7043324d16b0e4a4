//! What `burn-amp-report` is told of a run, and how it tries a loss in other precisions. Internal: it may change with any release.

use burn::{
    module::Module,
    optim::GradientsParams,
    tensor::{FloatDType, Gradients, Tensor},
};
use burn_amp_kernels::ExponentHistogram;
use std::{any::Any, collections::BTreeSet, sync::Arc};

use crate::{
    cast::CastFloat,
    dry_run::DryRun,
    entries::handles,
    error::AmpError,
    gradient_status::GradientStatus,
    gradients::UnscaledGradients,
    loss_scale::{SkipCause, StepOutcome},
    mixed_precision::MixedPrecision,
    running_statistics::RunningStatistics,
    scaler::GradScaler,
    scope::{self, Region},
    slot::{self, Slot},
};

/// Is told of the steps of a [`MixedPrecision`], on the threads that make them. It must not wait for the device.
pub trait Observer: Any + Send + Sync {
    /// The gradients of a step were tested, and nothing was done with them yet.
    fn tested(&self, grads: &UnscaledGradients);

    /// A call of `step` is over.
    fn stepped(&self, step: Stepped<'_>);
}

/// What a step has done. Host values.
#[derive(Clone, Copy, Debug)]
pub struct Stepped<'a> {
    /// None of gradients that were refused.
    pub outcome: Option<StepOutcome>,
    /// The loss scale after it.
    pub loss_scale: f32,
    /// None where nothing was measured.
    pub status: Option<&'a GradientStatus>,
    /// Why the run cannot go on, if it cannot.
    pub error: Option<&'a AmpError>,
}

/// An observer in a slot, which takes any type.
struct Attached(Arc<dyn Observer>);

fn content(observer: Arc<dyn Observer>) -> Option<Arc<dyn Any + Send + Sync>> {
    Some(Arc::new(Attached(observer)))
}

fn of_slot(content: Option<Arc<dyn Any + Send + Sync>>) -> Option<Arc<dyn Observer>> {
    let attached = content?.downcast::<Attached>().ok()?;
    Some(attached.0.clone())
}

/// Attaches an observer to all clones of a `MixedPrecision`, or none. Returns the one before.
pub fn set(amp: &MixedPrecision, observer: Option<Arc<dyn Observer>>) -> Option<Arc<dyn Observer>> {
    of_slot(amp.slot().replace(observer.and_then(content)))
}

/// The observer of the dry run that the thread is in; or that of the scope around, or of the model that a `Learner` trains.
pub fn here() -> Option<Arc<dyn Observer>> {
    if !slot::are_any() {
        return None;
    }
    of_slot(match scope::dry_run() {
        Some(dry) => dry.observer.and_then(|observer| observer.get()),
        None => scope::current()?.slot().get(),
    })
}

/// What gradients are multiplied by where the thread is: 1 in f32.
pub fn scale_here() -> f64 {
    scope::scale_here()
}

/// Runs a part of the forward pass that has a name: as it is, or as a [`Trial`] says.
pub fn region<I: CastFloat, R: CastFloat>(name: &str, input: I, part: impl FnOnce(I) -> R) -> R {
    let region = Region {
        name: Some(name.into()),
        ..Region::default()
    };
    region.run(input, part)
}

/// Whether the loss scale moves by itself.
pub fn is_dynamic(amp: &MixedPrecision) -> bool {
    amp.is_scaled() && amp.live().schedule().config().dynamic
}

/// The parameters whose gradients are not finite, and how many of their values are not.
pub fn overflows(grads: &UnscaledGradients) -> Vec<(String, u64)> {
    let counts = grads.overflow_counts();
    counts
        .map(|(path, count)| (path.to_string(), count))
        .collect()
}

/// Counts gradients by exponent. Waits for the device.
pub fn histogram(grads: &UnscaledGradients) -> Result<ExponentHistogram, AmpError> {
    Ok(handles(grads.params(), grads.entries(), None).histogram()?)
}

/// Whether the gradient of the loss is the cause of an overflow, and no loss scale; and then whether the model's output was finite.
pub fn is_loss_the_cause(grads: &UnscaledGradients) -> Option<bool> {
    match grads.finding.cause {
        SkipCause::Loss { output_finite } if grads.has_overflow() => Some(output_finite),
        _ => None,
    }
}

/// How [`dry_run`] computes.
#[derive(Clone)]
pub struct Trial {
    /// The dtype of scopes.
    pub dtype: FloatDType,
    /// In place of the loss scale; 1 for f32.
    pub loss_scale: f64,
    /// Whether gradients are measured at the casts.
    pub is_measured: bool,
    /// The names of [`region`]s that run in f32.
    pub in_f32: BTreeSet<String>,
    /// Is found by [`here`], in place of that of the `MixedPrecision`.
    pub observer: Option<Arc<dyn Observer>>,
}

/// What [`dry_run`] has found.
pub struct Tried<const D: usize> {
    /// The loss, without its graph.
    pub loss: Tensor<D>,
    /// Unscaled.
    pub grads: GradientsParams,
    /// The parameters that were read in half precision (or in f32, where the trial is in f32, inside a scope).
    pub read: BTreeSet<String>,
    /// The largest finite gradient at the casts, as the scale has made it; 0 where it is not measured.
    pub max_abs: f64,
    /// Whether a single value that requires gradients left a scope: a loss in half precision.
    pub is_loss_inside: bool,
}

/// Runs a loss and its backward pass in another precision, and leaves no trace: running statistics are put back. `collect` sees
/// the gradients of all leaves. Waits for the device.
///
/// # Errors
///
/// As [`MixedPrecision::check`], of what is refused before there are gradients.
pub fn dry_run<M: Module, const D: usize>(
    amp: &MixedPrecision,
    trial: Trial,
    model: &M,
    loss: &mut impl FnMut(&M) -> Tensor<D>,
    collect: impl FnOnce(&Gradients),
) -> Result<Tried<D>, AmpError> {
    let dry = DryRun {
        dtype: Some(trial.dtype),
        in_f32: Arc::new(trial.in_f32),
        is_measured: trial.is_measured,
        observer: trial
            .observer
            .map(|observer| Arc::new(Slot::of(content(observer)))),
        ..DryRun::at(trial.loss_scale)
    };
    let notes = dry.notes.clone();
    let forward = || amp.dry_loss(dry, || loss(model));
    let loss = RunningStatistics::unchanged(model, forward)?;
    let grads = loss.backward();
    collect(&grads);
    let mut noted = notes.take();
    Ok(Tried {
        loss: loss.inner(),
        grads: GradientsParams::from_grads(grads, model),
        read: std::mem::take(&mut noted.read),
        is_loss_inside: noted.is_loss_inside,
        max_abs: noted.measured().largest,
    })
}

impl GradScaler {
    /// Tells the observer that a step is over.
    pub(crate) fn tell(&self, error: Option<&AmpError>) {
        if let Some(observer) = self.observer() {
            let status = self.last_status();
            observer.stepped(Stepped {
                outcome: self.last_outcome(),
                loss_scale: self.loss_scale(),
                status: status.as_ref(),
                error,
            });
        }
    }

    /// Shows gradients that were tested to the observer.
    pub(crate) fn show(&self, grads: &UnscaledGradients) {
        if let Some(observer) = self.observer() {
            observer.tested(grads);
        }
    }

    fn observer(&self) -> Option<Arc<dyn Observer>> {
        of_slot(self.precision()?.slot().get())
    }
}
