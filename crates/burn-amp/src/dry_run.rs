//! Dry runs of a loss: how their scopes differ from those of a step, and what they note.

use burn::tensor::{DType, FloatDType};
use burn_amp_kernels::{Crossing, Watch};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use crate::{
    any_tensor::AnyTensor, dtype::is_half, lock::locked, mixed_precision::MixedPrecision,
    slot::Slot,
};

/// How the scopes of a dry run differ.
#[derive(Clone)]
pub(crate) struct DryRun {
    /// In place of the loss scale.
    pub(crate) scale: f64,
    /// In place of the factors of parts.
    pub(crate) parts: PartFactors,
    /// In place of that of the `MixedPrecision`.
    pub(crate) dtype: Option<FloatDType>,
    /// The names of regions that run in f32.
    pub(crate) in_f32: Arc<BTreeSet<String>>,
    /// Whether gradients are measured at the casts.
    pub(crate) is_measured: bool,
    /// Whether a bare `autocast` opens scopes, as in a `Learner`.
    pub(crate) in_learner: bool,
    pub(crate) observer: Option<Arc<Slot>>,
    pub(crate) notes: Notes,
}

impl DryRun {
    /// With this in place of the loss scale.
    pub(crate) fn at(scale: f64) -> Self {
        Self {
            scale,
            parts: PartFactors::Own,
            dtype: None,
            in_f32: Arc::default(),
            is_measured: false,
            in_learner: true,
            observer: None,
            notes: Notes::default(),
        }
    }
}

/// What parts multiply gradients by in a dry run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PartFactors {
    /// Their own factors.
    Own,
    /// Half of those.
    Half,
    /// Nothing.
    One,
}

impl PartFactors {
    pub(crate) fn of(self, factor: f64) -> f64 {
        match self {
            Self::Own => factor,
            Self::Half => factor / 2.0,
            Self::One => 1.0,
        }
    }
}

/// What a dry run notes beside the gradients. A handle: clones note together.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Noted>>);

#[derive(Default)]
pub(crate) struct Noted {
    /// The parameters that were read in half precision.
    pub(crate) read: BTreeSet<String>,
    pub(crate) is_loss_inside: bool,
    /// Whether a part with a factor was opened.
    pub(crate) has_parts: bool,
    /// Out of whose scopes tensors came that require gradients.
    pub(crate) handles: Vec<MixedPrecision>,
    passed: Vec<Passed>,
}

/// A gradient that has passed a cast.
struct Passed {
    crossing: Crossing,
    factor: f64,
    /// Whether it was in half precision before the cast, and after it.
    before: bool,
    after: bool,
}

/// The gradients that have passed casts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    /// Whether anything has passed.
    pub(crate) is_any: bool,
    /// The largest finite magnitude in half precision.
    pub(crate) max_abs: f64,
    /// The same, of all casts of the dry run, those of f32 included.
    pub(crate) largest: f64,
    /// Whether something was not finite there.
    pub(crate) overflow: bool,
}

impl Notes {
    pub(crate) fn read(&self, path: &str) {
        self.noted(|noted| noted.read.insert(path.to_string()));
    }

    pub(crate) fn opens_part(&self) {
        self.noted(|noted| noted.has_parts = true);
    }

    /// A tensor leaves a scope of this handle. An output of a batch of one has two dimensions, a loss has one.
    pub(crate) fn leaves(&self, tensor: &AnyTensor, amp: &MixedPrecision, is_outside: bool) {
        if !tensor.is_tracked() {
            return;
        }
        let is_one = tensor.rank() == 1 && tensor.shape().num_elements() == 1;
        let is_loss = is_outside && is_one;
        self.noted(|noted| {
            noted.is_loss_inside |= is_loss;
            if !noted.handles.iter().any(|known| known.is(amp)) {
                noted.handles.push(amp.clone());
            }
        });
    }

    /// Measures the gradient of a cast whose forward pass goes from one dtype to another.
    pub(crate) fn watch(&self, from: DType, to: DType, factor: f64) -> Watch {
        let notes = self.clone();
        Watch::of_gradient(move |crossing| {
            let passed = Passed {
                crossing,
                factor,
                before: is_half(to),
                after: is_half(from),
            };
            notes.noted(|noted| noted.passed.push(passed));
        })
    }

    /// What was noted so far.
    pub(crate) fn take(&self) -> Noted {
        self.noted(std::mem::take)
    }

    fn noted<R>(&self, work: impl FnOnce(&mut Noted) -> R) -> R {
        work(&mut locked(&self.0))
    }
}

impl Noted {
    /// Reads the gradients that have passed. Waits for the device.
    pub(crate) fn measured(self) -> Measured {
        let mut measured = Measured::default();
        for Passed {
            crossing,
            factor,
            before,
            after,
        } in self.passed
        {
            let Some(status) = crossing.read() else {
                continue;
            };
            measured.is_any = true;
            let (first, last) = (status.max_abs / factor, status.max_abs);
            if !status.overflow {
                measured.largest = measured.largest.max(first).max(last);
            }
            measured.overflow |= before && !status.gradient_finite;
            measured.overflow |= after && (status.overflow || !status.gradient_finite);
            if before {
                measured.max_abs = measured.max_abs.max(first);
            }
            if after && !status.overflow {
                measured.max_abs = measured.max_abs.max(last);
            }
        }
        measured
    }
}
