use burn::module::ParamId;
use std::collections::HashSet;

use crate::{
    error::AmpError, gradients::UnscaledGradients, live_scale::Blame, loss_scale::StepOutcome,
};

/// What happened since the last `update`: the joint outcome, and which parameters were stepped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Iteration {
    outcome: Option<StepOutcome>,
    stepped: HashSet<ParamId>,
}

impl Iteration {
    /// Refuses a second step for the same parameters before the `update`, as PyTorch does.
    pub(crate) fn check(&self, grads: &UnscaledGradients) -> Result<(), AmpError> {
        match grads.parameters().find(|(_, id)| self.stepped.contains(id)) {
            Some((path, _)) => Err(AmpError::UpdateMissing {
                parameter: path.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// Counts a step for these parameters.
    pub(crate) fn record(&mut self, grads: &UnscaledGradients) {
        self.stepped.extend(grads.parameters().map(|(_, id)| id));
        self.learn(grads);
    }

    /// Takes a verdict into the joint outcome.
    pub(crate) fn learn(&mut self, grads: &UnscaledGradients) {
        // No gradients are no evidence that the scale is fine: they must not make it grow. Nor must it learn twice, or from
        // a loss that is not finite.
        let bad_loss = grads.has_overflow() && grads.blame() != Blame::Scale;
        if grads.entries().is_empty() || grads.is_settled() || bad_loss {
            return;
        }
        let outcome = match grads.has_overflow() {
            true => StepOutcome::Skipped,
            false => StepOutcome::Stepped,
        };
        self.outcome = Some(match self.outcome {
            Some(StepOutcome::Skipped) => StepOutcome::Skipped,
            _ => outcome,
        });
    }

    pub(crate) fn has_skip(&self) -> bool {
        self.outcome == Some(StepOutcome::Skipped)
    }

    pub(crate) fn outcome(&self) -> Option<StepOutcome> {
        self.outcome
    }

    /// Goes on where a stored iteration stopped. Which parameters were stepped is not stored.
    pub(crate) fn restore(&mut self, outcome: Option<StepOutcome>) {
        self.stepped.clear();
        self.outcome = outcome;
    }

    /// Ends the iteration and tells its outcome, if any step was recorded.
    pub(crate) fn finish(&mut self) -> Option<StepOutcome> {
        self.stepped.clear();
        self.outcome.take()
    }
}
