//! What a pass over gradients has found, as a step is counted by it. Knows no tensors.

use burn::module::ParamId;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering as Order;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock::locked;
use crate::scale::loss_scale::{Evidence, Measures, StepOutcome};
use crate::scale::status::GradientStatus;

/// The evidence of unscaled gradients on the loss scale.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Finding {
    pub(crate) tested: Tested,
    /// Set if they have moved the loss scale already, micro-batch by micro-batch.
    pub(crate) is_resolved: bool,
    pub(crate) measures: Measures,
}

/// The result of a test of gradients, and of the hooks that judge them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Tested {
    /// There are none: no evidence that the scale is fine, and no reason to let it grow.
    Nothing,
    /// All are finite.
    Finite,
    /// All are finite, and are not stepped with.
    Rejected(Rejection),
    /// One is not: the gradient of this parameter is the first.
    Overflow { parameter: String, cause: SkipCause },
}

/// The effect of a finding on the loss scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Effect {
    /// It moves by this once the iteration ends.
    Moves(Evidence),
    /// It stays, because it is not the cause that the gradients are not stepped with.
    Spares,
    /// None: there are no gradients, or they have moved it already.
    Nothing,
}

/// The evidence of an iteration so far, of all findings that were counted in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// None as long as nothing is to move the loss scale.
    pub(crate) evidence: Option<Evidence>,
    /// The first parameter of each overflow.
    pub(crate) overflows: Vec<String>,
}

/// The hook that has rejected a step, and its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rejection {
    pub(crate) hook: String,
    pub(crate) reason: String,
}

/// The cause of a skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SkipCause {
    /// A gradient was too large for half precision once it was multiplied, or became so inside.
    Scale,
    /// The gradient of the loss was infinite or NaN before it reached half precision.
    Loss {
        /// The model's output was finite.
        output_finite: bool,
    },
    /// The gradient became infinite or NaN in a scope of another handle, whose loss scale this one's optimizers do not move.
    OtherScale,
    /// All that scopes have given was finite: gradients became infinite or NaN outside of them.
    Unknown,
}

impl SkipCause {
    /// The order of causes, if several are found by threads or ranks that compute one step: the last holds.
    pub(crate) fn severity(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Scale => 1,
            Self::OtherScale => 2,
            Self::Loss { output_finite } => 4 - u32::from(output_finite),
        }
    }

    /// The cause as it is counted. An infinity that no scope gave may be another rank's overflow: it lowers the scale, as with PyTorch. A NaN may be of
    /// any loss.
    pub(crate) fn counted(self, has_nan: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Unknown if !has_nan() => Self::Scale,
            known => known,
        }
    }

    /// The one of two causes that holds, with the regions at fault.
    pub(crate) fn most_severe(
        (one, own): (Self, BTreeSet<Arc<str>>),
        (other, others): (Self, BTreeSet<Arc<str>>),
    ) -> (Self, BTreeSet<Arc<str>>) {
        let order = one.severity().cmp(&other.severity());
        let regions = join_regions(order, own, others);
        match order {
            Order::Less => (other, regions),
            _ => (one, regions),
        }
    }
}

/// The regions at fault by two findings in this order: those of the one that holds, or of both. Without regions it is the scale that all share.
pub(crate) fn join_regions<T: Ord>(
    order: Order,
    mut own: BTreeSet<T>,
    others: BTreeSet<T>,
) -> BTreeSet<T> {
    match order {
        Order::Greater => own,
        Order::Less => others,
        _ if own.is_empty() || others.is_empty() => BTreeSet::new(),
        _ => {
            own.extend(others);
            own
        }
    }
}

/// The grounds of a cause. Ranks believe the one with better grounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) enum Grounds {
    /// Nothing that came to a scope shows it: the part of the batch was empty, say.
    Guess,
    /// What came before the last test, of any optimizer: it may be of this step, or of one that is over.
    Earlier,
    /// What this step has shown.
    #[default]
    Own,
}

impl Tested {
    /// The result of a pass. The scale is the cause of an overflow until another is found.
    pub(crate) fn of(status: &GradientStatus) -> Self {
        match &status.overflow {
            Some(parameter) => Self::Overflow {
                parameter: parameter.clone(),
                cause: SkipCause::Scale,
            },
            None if status.gradients == 0 => Self::Nothing,
            None => Self::Finite,
        }
    }
}

impl Finding {
    /// Gives an overflow its cause.
    pub(crate) fn explain(&mut self, found: SkipCause) {
        if let Tested::Overflow { cause, .. } = &mut self.tested {
            *cause = found;
        }
    }

    /// The cause of an overflow, if there is one.
    pub(crate) fn cause(&self) -> Option<SkipCause> {
        match self.tested {
            Tested::Overflow { cause, .. } => Some(cause),
            _ => None,
        }
    }

    /// Says whether one is not finite: never with a disabled scaler, which tests none.
    pub(crate) fn skips(&self) -> bool {
        matches!(self.tested, Tested::Overflow { .. })
    }

    /// The parameter whose gradient is the first that is not finite, if there is one.
    pub(crate) fn overflow(&self) -> Option<&String> {
        match &self.tested {
            Tested::Overflow { parameter, .. } => Some(parameter),
            _ => None,
        }
    }

    /// Its effect on the loss scale.
    pub(crate) fn effect(&self) -> Effect {
        match self.tested {
            Tested::Rejected(_) => Effect::Spares,
            Tested::Overflow { cause, .. } if cause != SkipCause::Scale => Effect::Spares,
            _ if self.is_resolved => Effect::Nothing,
            Tested::Nothing => Effect::Nothing,
            Tested::Finite => Effect::Moves(Evidence::Finite(Some(self.measures))),
            Tested::Overflow { .. } => Effect::Moves(Evidence::Overflow),
        }
    }

    /// The outcome of a step with them.
    pub(crate) fn outcome(&self) -> StepOutcome {
        match self.tested {
            // It is made, and changes nothing.
            Tested::Nothing => StepOutcome::NoGradients,
            Tested::Finite => StepOutcome::Stepped,
            Tested::Rejected(_) => StepOutcome::Guarded,
            Tested::Overflow { .. } => StepOutcome::Skipped,
        }
    }

    /// Joins the findings of a sum of gradients: it overflows if either of the two does, and unless both have moved the loss
    /// scale already, the sum has not.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            tested: match (self.tested, other.tested) {
                (found @ Tested::Overflow { .. }, _) | (_, found @ Tested::Overflow { .. }) => {
                    found
                }
                (Tested::Nothing, Tested::Nothing) => Tested::Nothing,
                _ => Tested::Finite,
            },
            is_resolved: self.is_resolved && other.is_resolved,
            measures: self.measures.and(other.measures),
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
    findings: Mutex<Vec<(Finding, Vec<ParamId>)>>,
    /// Set if there are some: a step that has none takes no lock.
    are_some: AtomicBool,
}

/// A finding that goes along with its gradients, and stays behind where they are dropped.
#[derive(Debug)]
pub(crate) struct PendingFinding {
    found: (Finding, Vec<ParamId>),
    dropped: Arc<DroppedFindings>,
    is_counted: AtomicBool,
}

impl Dropped {
    /// A finding for its gradients, which are of these parameters, to take along.
    pub(crate) fn pending(&self, finding: Finding, ids: Vec<ParamId>) -> Arc<PendingFinding> {
        Arc::new(PendingFinding {
            found: (finding, ids),
            dropped: self.0.clone(),
            is_counted: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.0.are_some.load(Ordering::Acquire)
    }

    /// Takes out all of them, each with the parameters of its gradients: the caller counts them.
    pub(crate) fn take(&self) -> Vec<(Finding, Vec<ParamId>)> {
        let mut findings = locked(&self.0.findings);
        self.0.are_some.store(false, Ordering::Release);
        std::mem::take(&mut findings)
    }

    /// All of them.
    pub(crate) fn to_vec(&self) -> Vec<Finding> {
        let findings = locked(&self.0.findings);
        findings.iter().map(|(found, _)| found.clone()).collect()
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
        if self.is_counted.load(Ordering::Relaxed) {
            return;
        }
        let mut dropped = locked(&self.dropped.findings);
        self.dropped.are_some.store(true, Ordering::Release);
        if dropped.len() == MAX_FINDINGS {
            dropped.remove(0);
            warn_once!(
                "gradients were unscaled {MAX_FINDINGS} times without an `update`, so that the loss scale cannot adjust itself: call \
                 `GradScaler::update` once after each iteration, also if its gradients are dropped"
            );
        }
        dropped.push(self.found.clone());
    }
}
