//! What a pass over gradients has found, as a step is counted by it. Knows no tensors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};

use crate::lock::locked;
use crate::scale::loss_scale::{Evidence, Measures, SkipCause, StepOutcome};

/// The evidence of unscaled gradients on the loss scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    /// Set if there are no gradients at all: no evidence that the scale is fine, and no reason to let it grow.
    pub(crate) is_empty: bool,
    /// The first parameter whose gradient overflows.
    pub(crate) overflow: Option<String>,
    pub(crate) cause: SkipCause,
    /// Set if they have moved the loss scale already, micro-batch by micro-batch.
    pub(crate) is_resolved: bool,
    pub(crate) measures: Measures,
    /// The reason why they are not stepped with, although they are finite.
    pub(crate) rejected: Option<Rejection>,
}

/// The hook that has rejected a step, and its reason.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rejection {
    pub(crate) hook: String,
    pub(crate) reason: String,
}

impl Finding {
    /// Says whether they are not stepped with, and this loss scale is not the cause.
    pub(crate) fn spares_scale(&self) -> bool {
        self.rejected.is_some() || (self.overflow.is_some() && self.cause != SkipCause::Scale)
    }

    /// The outcome of a step with them.
    pub(crate) fn outcome(&self) -> StepOutcome {
        match (&self.overflow, &self.rejected) {
            (Some(_), _) => StepOutcome::Skipped,
            (None, Some(_)) => StepOutcome::Guarded,
            // It is made, and changes nothing.
            (None, None) if self.is_empty => StepOutcome::NoGradients,
            (None, None) => StepOutcome::Stepped,
        }
    }

    /// Joins the findings of a sum of gradients: it overflows if either of the two does, and unless both have moved the loss
    /// scale already, the sum has not.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            is_empty: self.is_empty && other.is_empty,
            cause: match self.overflow {
                Some(_) => self.cause,
                None => other.cause,
            },
            overflow: self.overflow.or(other.overflow),
            is_resolved: self.is_resolved && other.is_resolved,
            measures: self.measures.and(other.measures),
            rejected: None,
        }
    }

    /// The evidence by which the loss scale moves, if it does.
    pub(crate) fn evidence(&self) -> Option<Evidence> {
        match self.overflow {
            _ if self.is_empty || self.is_resolved || self.spares_scale() => None,
            Some(_) => Some(Evidence::Overflow),
            None => Some(Evidence::Finite(Some(self.measures))),
        }
    }
}

/// Findings that are kept: of gradients that are dropped without an `update`, the oldest are forgotten.
const MAX_FINDINGS: usize = 256;

/// Findings of gradients that were unscaled and dropped, and that nobody has counted: PyTorch's `update` uses what `unscale_` has found, whether a
/// step followed or not.
#[derive(Debug, Default)]
pub(crate) struct Dropped(Arc<DroppedFindings>);

#[derive(Debug, Default)]
struct DroppedFindings {
    findings: Mutex<Vec<Finding>>,
    /// Set if there are some: a step that has none takes no lock.
    are_some: AtomicBool,
}

/// A finding that goes along with its gradients, and stays behind where they are dropped.
#[derive(Debug)]
pub(crate) struct PendingFinding {
    finding: Finding,
    dropped: Arc<DroppedFindings>,
    is_counted: AtomicBool,
}

impl Dropped {
    /// A finding for its gradients to take along.
    pub(crate) fn pending(&self, finding: Finding) -> Arc<PendingFinding> {
        Arc::new(PendingFinding {
            finding,
            dropped: self.0.clone(),
            is_counted: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.0.are_some.load(Ordering::Acquire)
    }

    /// Takes out all of them: the caller counts them.
    pub(crate) fn take(&self) -> Vec<Finding> {
        let mut findings = locked(&self.0.findings);
        self.0.are_some.store(false, Ordering::Release);
        std::mem::take(&mut findings)
    }

    /// All of them.
    pub(crate) fn to_vec(&self) -> Vec<Finding> {
        locked(&self.0.findings).clone()
    }
}

/// A copy of a scaler knows nothing of what the original has unscaled.
impl Clone for Dropped {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PendingFinding {
    /// Its gradients are counted by the scaler that has `dropped`; that of another scaler stays.
    pub(crate) fn count(&self, dropped: &Dropped) {
        if Arc::ptr_eq(&self.dropped, &dropped.0) {
            self.is_counted.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for PendingFinding {
    fn drop(&mut self) {
        static SAID: Once = Once::new();
        if self.is_counted.load(Ordering::Relaxed) {
            return;
        }
        let mut dropped = locked(&self.dropped.findings);
        self.dropped.are_some.store(true, Ordering::Release);
        if dropped.len() == MAX_FINDINGS {
            dropped.remove(0);
            SAID.call_once(|| {
                warn!(
                    "gradients were unscaled {MAX_FINDINGS} times without an `update`, so that the loss scale cannot adjust itself: call \
                     `GradScaler::update` once after each iteration, also if its gradients are dropped"
                );
            });
        }
        dropped.push(self.finding.clone());
    }
}
