//! What `burn-amp-report` is told of a run, and how it tries a loss in other precisions. Internal: it may change with any release.

use burn::{
    module::Module,
    optim::GradientsParams,
    tensor::{FloatDType, Gradients, Tensor},
};
use burn_amp_kernels::ExponentHistogram;
use std::{
    any::Any,
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    cast::DryRun, dtype::is_half, entries::handles, error::AmpError,
    gradient_status::GradientStatus, gradients::UnscaledGradients, live_scale::Blame,
    loss_scale::StepOutcome, mixed_precision::MixedPrecision, probe::Probe,
    running_statistics::RunningStatistics, scaler::GradScaler, scope,
};

/// How many are attached to a `MixedPrecision` or a dry run: where there is none, probes look no further.
static OBSERVERS: AtomicUsize = AtomicUsize::new(0);

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

/// The observer of a `MixedPrecision`, or none.
#[derive(Default)]
pub(crate) struct Slot(RwLock<Option<Arc<dyn Observer>>>);

impl Slot {
    pub(crate) fn get(&self) -> Option<Arc<dyn Observer>> {
        if OBSERVERS.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let observer = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        count(observer.take().is_some(), false);
    }
}

fn count(before: bool, after: bool) {
    match (before, after) {
        (false, true) => OBSERVERS.fetch_add(1, Ordering::Relaxed),
        (true, false) => OBSERVERS.fetch_sub(1, Ordering::Relaxed),
        _ => return,
    };
}

/// Attaches an observer to all clones of a `MixedPrecision`, or none. Returns the one before.
pub fn set(amp: &MixedPrecision, observer: Option<Arc<dyn Observer>>) -> Option<Arc<dyn Observer>> {
    let slot = &amp.slot().0;
    let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
    count(slot.is_some(), observer.is_some());
    std::mem::replace(&mut slot, observer)
}

/// The observer of the dry run that the thread is in; or that of the scope around, or of the model that a `Learner` trains.
pub fn here() -> Option<Arc<dyn Observer>> {
    if OBSERVERS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    match scope::dry_run() {
        Some(dry) => dry.observer,
        None => scope::current()?.slot().get(),
    }
}

/// What gradients are multiplied by where the thread is: 1 in f32.
pub fn scale_here() -> f64 {
    scope::scale_here()
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
    Ok(handles(grads.params(), grads.entries(), None)
        .0
        .histogram()?)
}

/// Whether the gradient of the loss is to blame for an overflow, and no loss scale; and then whether the model's output was finite.
pub fn blames_the_loss(grads: &UnscaledGradients) -> Option<bool> {
    match grads.blame() {
        Blame::Loss { output_finite } if grads.has_overflow() => Some(output_finite),
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

/// What a dry run notes beside the gradients.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    read: BTreeSet<String>,
    is_loss_inside: bool,
}

impl Notes {
    pub(crate) fn read(&self, path: &str) {
        self.noted(|noted| noted.read.insert(path.to_string()));
    }

    pub(crate) fn leaves<const D: usize>(&self, tensor: &Tensor<D>) {
        let is_loss = tensor.is_tracked() && tensor.shape().num_elements() == 1;
        self.noted(|noted| noted.is_loss_inside |= is_loss);
    }

    fn noted<R>(&self, work: impl FnOnce(&mut Noted) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
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
    let opened = amp.live().opened();
    let (probe, notes) = (Probe::default(), Notes::default());
    let dry = DryRun {
        dtype: Some(trial.dtype),
        probe: trial.is_measured.then(|| probe.clone()),
        notes: Some(notes.clone()),
        observer: trial.observer.clone(),
        ..DryRun::at(trial.loss_scale)
    };
    let mut statistics = RunningStatistics::default();
    statistics.keep(model);
    count(false, trial.observer.is_some());
    let value = amp.dry_loss(dry, model, loss);
    count(trial.observer.is_some(), false);
    statistics.restore(model);
    let value = value?;
    if amp.live().opened() == opened {
        return Err(AmpError::NoScope);
    }
    if is_half(value.dtype()) {
        let dtype = value.dtype();
        return Err(AmpError::HalfPrecisionLoss { dtype });
    }
    if !value.is_tracked() {
        return Err(AmpError::NoGradients { gradients: 0 });
    }
    let grads = value.backward();
    collect(&grads);
    let noted = notes.noted(std::mem::take);
    Ok(Tried {
        loss: value.inner(),
        grads: GradientsParams::from_grads(grads, model),
        read: noted.read,
        max_abs: probe.read().largest,
        is_loss_inside: noted.is_loss_inside,
    })
}

impl GradScaler {
    /// Tells the observer that a step is over.
    pub(crate) fn tell(&self, error: Option<&AmpError>) {
        if let Some(amp) = self.precision()
            && let Some(observer) = amp.slot().get()
        {
            observer.stepped(Stepped {
                outcome: self.last_outcome(),
                loss_scale: self.loss_scale(),
                status: self.last_status(),
                error,
            });
        }
    }

    /// Shows gradients that were tested to the observer.
    pub(crate) fn show(&self, grads: &UnscaledGradients) {
        if let Some(amp) = self.precision()
            && let Some(observer) = amp.slot().get()
        {
            observer.tested(grads);
        }
    }
}
