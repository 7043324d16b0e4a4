//! What happened since the last `update`: the joint outcome, and what unscaled gradients have told.

use burn::module::ParamId;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    error::AmpError,
    finding::Finding,
    gradients::UnscaledGradients,
    lock::locked,
    loss_scale::{Measures, Observation, StepOutcome},
};

/// The key of gradients that are observed: they belong to no optimizer.
pub(crate) const OBSERVED: usize = 0;

/// The joint outcome of an iteration, and which parameters were stepped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Iteration {
    outcome: Option<StepOutcome>,
    /// What the gradients of all its steps have shown.
    measures: Option<Measures>,
    /// The optimizers that have stepped each parameter: clones of a network have parameters of the same ids.
    stepped: HashMap<ParamId, Vec<usize>>,
    /// The first parameter of each overflow.
    overflows: Vec<String>,
}

impl Iteration {
    /// Refuses a second step of an optimizer for the same parameters before the `update`, as PyTorch does.
    pub(crate) fn check(
        &self,
        grads: &UnscaledGradients,
        optimizer: usize,
    ) -> Result<(), AmpError> {
        let again = |id: &ParamId| {
            let by = self.stepped.get(id).map_or(&[][..], Vec::as_slice);
            by.contains(&optimizer)
                || by.contains(&OBSERVED)
                || (optimizer == OBSERVED && !by.is_empty())
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

    /// Takes a verdict into the joint outcome.
    pub(crate) fn learn(&mut self, verdict: &Finding) {
        if !verdict.moves_scale() {
            return;
        }
        if let Some(parameter) = &verdict.overflow {
            self.outcome = Some(StepOutcome::Skipped);
            self.overflows.push(parameter.clone());
        }
        self.outcome.get_or_insert(StepOutcome::Stepped);
        let measures = verdict.measures;
        self.measures = Some(self.measures.map_or(measures, |sum| sum.and(measures)));
    }

    pub(crate) fn outcome(&self) -> Option<StepOutcome> {
        self.outcome
    }

    /// What the loss scale is to learn from the steps so far, if any was recorded.
    pub(crate) fn observation(&self) -> Option<Observation> {
        let measures = self.measures;
        self.outcome
            .map(|outcome| Observation { outcome, measures })
    }

    /// Goes on where a stored iteration stopped. Which parameters were stepped is not stored.
    pub(crate) fn restore(&mut self, observation: Option<Observation>) {
        *self = Self {
            outcome: observation.map(|seen| seen.outcome),
            measures: observation.and_then(|seen| seen.measures),
            ..Self::default()
        };
    }

    /// Ends the iteration: what is to be learned from it, and the first parameter of each overflow.
    pub(crate) fn finish(&mut self) -> (Option<Observation>, Vec<String>) {
        let observation = self.observation();
        (observation, std::mem::take(self).overflows)
    }
}

/// Gradients that were unscaled, and from which the loss scale has not learned yet.
///
/// Each has a handle on its verdict. Where the last handle is gone, the gradients were dropped: PyTorch's `update` uses what
/// `unscale_` has found, whether a step followed or not.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    verdicts: Mutex<Vec<Arc<Finding>>>,
    warned: AtomicBool,
}

/// Verdicts that are kept: of gradients that are unscaled without an `update`, the oldest are forgotten.
const MAX_VERDICTS: usize = 256;

impl Unsettled {
    /// Gives gradients a handle on their verdict.
    pub(crate) fn register(&self, mut grads: UnscaledGradients) -> UnscaledGradients {
        let verdict = Arc::new(grads.verdict());
        grads.verdicts.push(verdict.clone());
        let mut verdicts = locked(&self.verdicts);
        if verdicts.len() == MAX_VERDICTS {
            verdicts.remove(0);
            if !self.warned.swap(true, Ordering::Relaxed) {
                log::warn!(
                    "gradients were unscaled {MAX_VERDICTS} times without an `update`, so that the loss scale cannot adjust itself: call \
                     `GradScaler::update` once after each iteration, also if its gradients are dropped"
                );
            }
        }
        verdicts.push(verdict);
        drop(verdicts);
        grads
    }

    /// The verdict of these gradients is counted by the caller.
    pub(crate) fn take(&self, grads: &UnscaledGradients) {
        let of_these = |verdict: &Arc<Finding>| {
            let mut handles = grads.verdicts.iter();
            handles.any(|handle| Arc::ptr_eq(handle, verdict))
        };
        locked(&self.verdicts).retain(|verdict| !of_these(verdict));
    }

    /// Takes the verdicts of gradients that were dropped.
    pub(crate) fn dropped(&self) -> Vec<Arc<Finding>> {
        let mut verdicts = locked(&self.verdicts);
        verdicts
            .extract_if(.., |verdict| Arc::strong_count(verdict) == 1)
            .collect()
    }

    /// Looks at the verdicts of gradients that were dropped.
    pub(crate) fn look(&self, mut look: impl FnMut(&Finding)) {
        let verdicts = locked(&self.verdicts);
        let dropped = verdicts
            .iter()
            .filter(|verdict| Arc::strong_count(verdict) == 1);
        dropped.for_each(|verdict| look(verdict));
    }
}

/// A copy of a scaler knows nothing of what the original has unscaled.
impl Clone for Unsettled {
    fn clone(&self) -> Self {
        Self::default()
    }
}
