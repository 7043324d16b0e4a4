//! What happened since the last `update`: the joint outcome, and what was found in unscaled gradients.

use burn::module::ParamId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use crate::{
    StepOutcome, error::AmpError, gradients::UnscaledGradients, lock::locked,
    scale::finding::Finding, scale::loss_scale::Evidence,
};

/// The key of gradients that are observed: they belong to no optimizer.
pub(crate) const OBSERVED: usize = 0;

/// The joint outcome of an iteration, and which parameters were stepped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Iteration {
    /// What the steps so far have shown, if any was recorded.
    pub(crate) seen: Option<Evidence>,
    /// The optimizers that have stepped each parameter: clones of a network have parameters of the same ids.
    stepped: HashMap<ParamId, Vec<usize>>,
    /// The first parameter of each overflow.
    pub(crate) overflows: Vec<String>,
    /// What its steps have done, those that are skipped for another reason than the loss scale included.
    pub(crate) outcome: Option<StepOutcome>,
    /// How many calls the journals have, with the scale before its end.
    pub(crate) shown: usize,
}

impl Iteration {
    /// Whether anything was counted in it.
    pub(crate) fn is_open(&self) -> bool {
        self.seen.is_some() || self.outcome.is_some() || self.shown > 0
    }

    /// Refuses a second step of an optimizer for the same parameters before the `update`, as PyTorch does.
    pub(crate) fn check(
        &self,
        grads: &UnscaledGradients,
        optimizer: usize,
    ) -> Result<(), AmpError> {
        let again = |id: &ParamId| {
            let by = self.stepped.get(id);
            by.is_some_and(|by| {
                optimizer == OBSERVED || by.contains(&OBSERVED) || by.contains(&optimizer)
            })
        };
        match grads.parameters().find(|(_, id)| again(id)) {
            Some((path, _)) => Err(AmpError::UpdateMissing {
                parameter: path.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// An optimizer has stepped these parameters.
    pub(crate) fn mark(&mut self, grads: &UnscaledGradients, optimizer: usize) {
        for (_, id) in grads.parameters() {
            self.stepped.entry(id).or_default().push(optimizer);
        }
    }

    /// Takes what was found into the joint outcome.
    pub(crate) fn record(&mut self, found: &Finding) {
        if let Some(seen) = found.evidence() {
            self.overflows.extend(found.overflow.clone());
            self.seen = Some(seen.after(self.seen));
        }
    }
}

/// Gradients that were unscaled, and have not moved the loss scale yet.
///
/// Each has a handle on what was found in it. Where the last handle is gone, the gradients were dropped: PyTorch's `update` uses what
/// `unscale_` has found, whether a step followed or not.
#[derive(Debug, Default)]
pub(crate) struct PendingFindings {
    findings: Mutex<Vec<Arc<Finding>>>,
    warned: OnceLock<()>,
}

/// Findings that are kept: of gradients that are unscaled without an `update`, the oldest are forgotten.
const MAX_FINDINGS: usize = 256;

impl PendingFindings {
    /// Gives gradients a handle on their finding.
    pub(crate) fn register(&self, mut grads: UnscaledGradients) -> UnscaledGradients {
        let finding = Arc::new(grads.finding.clone());
        grads.pending.push(finding.clone());
        let mut findings = locked(&self.findings);
        if findings.len() == MAX_FINDINGS {
            findings.remove(0);
            self.warned.get_or_init(|| {
                warn!(
                    "gradients were unscaled {MAX_FINDINGS} times without an `update`, so that the loss scale cannot adjust itself: call \
                     `GradScaler::update` once after each iteration, also if its gradients are dropped"
                );
            });
        }
        findings.push(finding);
        drop(findings);
        grads
    }

    /// These findings are counted by the caller.
    pub(crate) fn take(&self, taken: &[Arc<Finding>]) {
        let is_taken = |finding: &Arc<Finding>| taken.iter().any(|one| Arc::ptr_eq(one, finding));
        locked(&self.findings).retain(|finding| !is_taken(finding));
    }

    /// What was found in gradients that were dropped.
    pub(crate) fn dropped(&self) -> Vec<Arc<Finding>> {
        let findings = locked(&self.findings);
        let dropped = findings.iter().filter(|one| Arc::strong_count(one) == 1);
        dropped.cloned().collect()
    }
}

/// A copy of a scaler knows nothing of what the original has unscaled.
impl Clone for PendingFindings {
    fn clone(&self) -> Self {
        Self::default()
    }
}
