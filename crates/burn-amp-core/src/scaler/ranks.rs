//! Decisions that several ranks take together.

use std::sync::Arc;

use super::Scaler;
use crate::peers::{Ballot, Ranks};
use crate::{
    error::AmpError,
    gradients::UnscaledGradients,
    scale::finding::{Grounds, SkipCause},
};

impl Scaler {
    /// Decides with the other ranks what was found in gradients. The `loss` becomes that of all.
    pub(super) fn agree(
        &self,
        ranks: &Ranks,
        grads: &mut UnscaledGradients,
        loss: &mut Option<f64>,
    ) -> Result<(), AmpError> {
        if !grads.finding.skips() && self.live.has_regions() {
            self.live.read_measures();
        }
        let spares = |cause: SkipCause| cause.counted(|| grads.has_nan()) == SkipCause::Unknown;
        let mut ballot = Ballot::of(&grads.finding, self.loss_scale(), &self.counters());
        ballot.spares = grads.finding.cause().is_some_and(spares);
        let (regions, grounds) = self.live.regions_at_fault();
        ballot.regions = regions.iter().map(|name| name.to_string()).collect();
        ballot.grounds = grounds;
        ballot.entered = self.live.regions.lock().of_step();
        let joined = ranks.decide(ballot, loss)?;
        let found = &mut grads.finding;
        (found.tested, found.measures) = (joined.tested.clone(), joined.measures);
        for (name, state) in joined.entered {
            (self.live.regions).replace(|regions| regions.join(&name, state));
        }
        if let Some(cause) = found.cause() {
            let cause = cause.counted(|| joined.spares);
            found.explain(cause);
            let regions = joined.regions.into_iter().map(Arc::from);
            self.live.set_cause(cause, regions.collect(), Grounds::Own);
        }
        Ok(())
    }
}
