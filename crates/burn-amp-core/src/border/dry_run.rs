//! Dry runs of a loss: how their scopes differ from those of a step, and what they find.

use burn::tensor::{DType, FloatDType, Tensor};
use burn_amp_kernels::{UnreadEvent, Watch};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::{mixed_precision::MixedPrecision, observer::Observer};
use crate::lock::locked;
use crate::values::{AnyTensor, is_half};

/// The differences between the scopes of a dry run and those of a step.
pub struct DryRun {
    /// The `MixedPrecision` that is judged.
    pub amp: MixedPrecision,
    /// The multiple of gradients, in place of the loss scale; 1 for f32.
    pub scale: f64,
    /// The dtype in place of that of `amp`, and of others that are in half precision.
    pub dtype: Option<FloatDType>,
    /// The names of regions that run in f32.
    pub in_f32: BTreeSet<String>,
    /// Set where gradients are measured at the casts.
    pub is_measured: bool,
    /// Set where the tensors that leave scopes and named regions are kept.
    pub keeps_values: bool,
    /// Set where a bare `autocast` opens scopes, as in a `Learner`.
    pub in_learner: bool,
    /// The observer in place of that of the `MixedPrecision`.
    pub observer: Option<Arc<dyn Observer>>,
    /// The seed of the devices' random numbers: runs that are compared must draw the same.
    pub seed: Option<u64>,
    /// The findings so far.
    pub notes: Mutex<DryRunNotes>,
}

/// The findings of a dry run beside the gradients.
#[derive(Default)]
pub struct DryRunNotes {
    /// The parameters that were read in half precision (or in f32, where the run is in f32, inside a scope).
    pub read: BTreeSet<String>,
    /// Set if a single value that requires gradients left a scope: a loss in half precision.
    pub is_loss_inside: bool,
    /// Set if a bare `autocast` opened no scope.
    pub(crate) runs_in_f32: bool,
    /// Out of whose scopes tensors came that require gradients.
    pub(crate) handles: Vec<MixedPrecision>,
    /// The tensors that have left scopes, and regions by their names, without their graphs.
    pub(crate) values: Vec<(Option<Arc<str>>, AnyTensor)>,
    passed: Vec<Passed>,
}

/// A gradient that has passed a cast.
struct Passed {
    event: UnreadEvent,
    factor: f64,
    /// Set where it counts as it was before the cast, and as it was after it.
    before: bool,
    after: bool,
}

impl DryRun {
    /// Makes a dry run with this multiple of gradients, which differs in nothing else.
    pub fn at(amp: &MixedPrecision, scale: f64) -> Self {
        Self {
            amp: amp.clone(),
            scale,
            dtype: None,
            in_f32: BTreeSet::new(),
            is_measured: false,
            keeps_values: false,
            in_learner: true,
            observer: None,
            seed: None,
            notes: Mutex::default(),
        }
    }

    /// Returns the dtype in scopes of this handle, and the multiple of their gradients. A part that a program runs in f32 beside the handle that is
    /// judged stays in f32.
    pub(super) fn side_of(&self, amp: &MixedPrecision) -> (FloatDType, f64) {
        let dtype = self.dtype.filter(|_| self.is_about(amp));
        match dtype.unwrap_or(amp.dtype()) {
            FloatDType::F32 if dtype.is_none() => (FloatDType::F32, 1.0),
            dtype => (dtype, self.scale),
        }
    }

    /// Says whether scopes of this handle are judged.
    pub(super) fn is_about(&self, amp: &MixedPrecision) -> bool {
        self.dtype.is_none() || is_half(amp.dtype().into()) || self.amp == *amp
    }

    /// Takes out what was found so far.
    pub fn take(&self) -> DryRunNotes {
        std::mem::take(&mut *locked(&self.notes))
    }

    /// Notes a parameter that is read in a scope of this handle, in this dtype.
    pub(super) fn reads(&self, path: &str, amp: &MixedPrecision, dtype: FloatDType) {
        if is_half(dtype.into()) || self.is_about(amp) {
            locked(&self.notes).read.insert(path.to_string());
        }
    }

    /// A tensor leaves a scope of this handle. An output of a batch of one has two dimensions, a loss has one.
    pub(super) fn leaves(&self, tensor: &AnyTensor, amp: &MixedPrecision, is_outside: bool) {
        if let Some(observer) = self.observer.as_ref().filter(|_| is_outside) {
            let output = tensor.clone().map(Tensor::inner).flat();
            output.into_iter().for_each(|output| observer.left(output));
        }
        if !tensor.is_tracked() {
            return;
        }
        let is_one = tensor.rank() == 1 && tensor.shape().num_elements() == 1;
        let mut notes = locked(&self.notes);
        notes.is_loss_inside |= is_outside && is_one && is_half(tensor.dtype());
        if !notes.handles.contains(amp) {
            notes.handles.push(amp.clone());
        }
    }

    /// Keeps a tensor that leaves a scope, or a region of this name.
    pub(super) fn keep(&self, region: Option<Arc<str>>, tensor: &AnyTensor) {
        if self.keeps_values {
            let value = tensor.clone().map(Tensor::inner);
            locked(&self.notes).values.push((region, value));
        }
    }

    /// Measures the gradient of a cast whose forward pass goes from one dtype to another.
    pub(super) fn watch(self: &Arc<Self>, from: DType, to: DType, factor: f64) -> Watch {
        let dry = self.clone();
        let counts = |dtype| is_half(dtype) || self.dtype == Some(FloatDType::F32);
        let (before, after) = (counts(to), counts(from));
        Watch::of_gradient(move |event| {
            locked(&dry.notes).passed.push(Passed {
                event,
                factor,
                before,
                after,
            });
        })
    }
}

impl DryRunNotes {
    /// The largest magnitude where gradients have passed, if any was read, and whether one has overflowed. Waits for the device.
    pub fn measured(self) -> (Option<f64>, bool) {
        let (mut largest, mut overflows) = (None, false);
        for passed in self.passed {
            let Some(status) = passed.event.read() else {
                continue;
            };
            let max_abs = largest.get_or_insert(0.0f64);
            if passed.before {
                overflows |= !status.gradient_finite;
                *max_abs = max_abs.max(status.max_abs / passed.factor);
            }
            if passed.after {
                overflows |= status.overflow || !status.gradient_finite;
            }
            if passed.after && !status.overflow {
                *max_abs = max_abs.max(status.max_abs);
            }
        }
        (largest, overflows)
    }
}
