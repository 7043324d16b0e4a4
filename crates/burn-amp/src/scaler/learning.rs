//! What the loss scale learns from gradients: the counts, the limits that end a run, and its moves.

use log::Level;

use super::GradScaler;
use crate::{
    error::{AmpError, short},
    gradients::{UnscaledGradients, Verdict},
    live_scale::Blame,
    loss_scale::{Observation, Schedule, StepOutcome},
};

impl GradScaler {
    /// Counts the step; an error if it is an overflow too many.
    pub(super) fn record(
        &mut self,
        grads: &UnscaledGradients,
        optimizer: usize,
    ) -> Result<(), AmpError> {
        self.remember(grads);
        self.untested = 0;
        let verdict = grads.verdict();
        if verdict.overflow.is_none() {
            self.last_outcome = Some(match verdict.is_empty {
                true => StepOutcome::NoGradients,
                false => StepOutcome::Stepped,
            });
            self.counters.record(StepOutcome::Stepped);
            match verdict.is_empty {
                true => self.warn_of_nothing(),
                false => self.counters.reset_bad_losses(),
            }
            if verdict.is_settled {
                self.counters.reset_skipped_windows();
            }
            self.iteration.record(grads, optimizer);
            return Ok(());
        }
        self.last_outcome = Some(StepOutcome::Skipped);
        self.counters.record(StepOutcome::Skipped);
        self.count_overflow(&verdict, "step skipped")?;
        if verdict.blame == Blame::Scale {
            self.iteration.record(grads, optimizer);
        }
        Ok(())
    }

    /// Counts a step that a guard holds back; an error if it is one too many.
    pub(super) fn record_guarded(
        &mut self,
        grads: &UnscaledGradients,
        optimizer: usize,
        reason: String,
    ) -> Result<(), AmpError> {
        self.remember(grads);
        self.untested = 0;
        self.last_outcome = Some(StepOutcome::Guarded);
        self.counters.record(StepOutcome::Guarded);
        self.iteration.mark(grads, optimizer);
        if self.is_enabled() {
            // The others that share the scale are not kept waiting.
            self.move_scale(None);
        }
        let steps = self.counters.guarded_in_a_row();
        if self.is_too_many(steps) {
            self.end_iteration();
            return Err(AmpError::AlwaysGuarded { steps, reason });
        }
        log::info!("step held back by the guard: {reason}");
        Ok(())
    }

    /// Learns from gradients that no optimizer steps with; `what` became of them. An error if they are an overflow too many.
    pub(super) fn learn_without_step(
        &mut self,
        verdict: &Verdict,
        what: &str,
    ) -> Result<(), AmpError> {
        self.untested = 0;
        if verdict.overflow.is_some() {
            self.count_overflow(verdict, what)?;
        } else if !verdict.is_empty {
            self.counters.reset_bad_losses();
        }
        self.iteration.learn(verdict);
        Ok(())
    }

    /// Counts an overflow among those in a row. The error that ends the run if it is one too many.
    fn count_overflow(&mut self, verdict: &Verdict, what: &str) -> Result<(), AmpError> {
        if let Blame::Loss { output_finite } = verdict.blame {
            let error = self.skip_bad_loss(output_finite, what);
            return error.map_or(Ok(()), Err);
        }
        let parameter = verdict.overflow.as_deref().unwrap_or("?");
        let error = match verdict.is_settled {
            true => self.skip_window(parameter),
            false => {
                // Two optimizers that overflow in one iteration are one reason to back off, not two.
                if !self.iteration.has_skip() {
                    self.counters.add_consecutive_skip();
                }
                self.exhausted(parameter)
            }
        };
        match error {
            Some(error) => {
                self.end_iteration();
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// The first step without any gradient is most likely a mistake.
    fn warn_of_nothing(&mut self) {
        if !std::mem::replace(&mut self.warned_of_nothing, true) {
            log::warn!(
                "a step found no gradient for any parameter, and changes nothing. Likely causes: all parameters are frozen; adapters \
                 were attached in the wrong order (low-rank adapters first, then `MixedPrecision`); the loss was computed from \
                 another copy of the model, or without autodiff"
            );
        }
    }

    /// Counts gradients that are discarded and that nobody has tested: if they overflow, the next ones will too.
    pub(super) fn warn_of_untested(&mut self) {
        const MANY: u32 = 50;
        self.untested = self.untested.saturating_add(1);
        if self.untested == MANY {
            log::warn!(
                "{MANY} gradients in a row were discarded untested: if they overflow, the loss scale does not learn of it. Discard what \
                 `optim.unscale(optim.backward(loss, &model), &model)` has tested, or give them to `step`"
            );
        }
    }

    /// Counts a window whose micro-batches were clean and whose sum overflows: no loss scale is too high there, and none
    /// helps. The error that ends the run if it is one too many.
    fn skip_window(&mut self, parameter: &str) -> Option<AmpError> {
        self.counters.add_skipped_window();
        log::warn!(
            "window skipped: the sum of its micro-batches overflows, first in `{parameter}`, though each of them is finite"
        );
        let skips = self.counters.skipped_windows();
        self.is_too_many(skips)
            .then(|| self.error(skips, parameter))
    }

    /// Counts a skip that no loss scale is to blame for; `skip` is what it did. The error that ends the run if it is one too
    /// many.
    pub(crate) fn skip_bad_loss(&mut self, output_finite: bool, skip: &str) -> Option<AmpError> {
        self.counters.add_bad_loss();
        self.move_scale(None);
        let skips = self.counters.bad_losses_in_a_row();
        if self.is_too_many(skips) {
            return Some(AmpError::LossNotFinite {
                skips,
                output_finite,
            });
        }
        let what = match output_finite {
            true => "the gradient of the loss is infinite or NaN",
            false => "the model's output is infinite or NaN",
        };
        log::warn!("{skip}: {what}, {skips} in a row; the loss scale stays");
        None
    }

    /// The error that ends the run if this overflow, first in `parameter`, is one too many.
    pub(crate) fn exhausted(&self, parameter: &str) -> Option<AmpError> {
        let skips = self.counters.consecutive_skips();
        let schedule = self.schedule();
        let at_floor = schedule.config().raise_error_at_min_scale && schedule.is_at_floor();
        (at_floor || self.is_too_many(skips)).then(|| self.error(skips, parameter))
    }

    fn is_too_many(&self, skips: u64) -> bool {
        self.config()
            .max_consecutive_skips
            .is_some_and(|max| skips > u64::from(max))
    }

    fn error(&self, skips: u64, parameter: &str) -> AmpError {
        AmpError::LossScaleExhausted {
            scale: self.schedule().scale(),
            skips,
            parameter: parameter.to_string(),
        }
    }

    /// Moves the schedule; for the log, `skip` is what an overflow did, and `overflows` the first parameter of each.
    pub(crate) fn adjust(&mut self, seen: Observation, skip: &str, overflows: &[String]) {
        if self.is_enabled() {
            let (before, after) = self.move_scale(Some(seen));
            if seen.outcome.is_skipped() {
                let skips = self.counters.consecutive_skips();
                if skips > 2 {
                    log::warn!(
                        "{skips} overflows in a row at loss scale {}",
                        short(before.into())
                    );
                }
                log_skip(before, after, overflows, skip);
            } else if before != after {
                // Those that look at the gradients may move it with every step.
                let level = match self.config().schedule {
                    Schedule::GrowthInterval | Schedule::AdaptiveInterval { .. } => Level::Info,
                    _ => Level::Debug,
                };
                let what = if after > before { "grows" } else { "falls" };
                let (before, after) = (short(before.into()), short(after.into()));
                log::log!(level, "loss scale {what} from {before} to {after}");
            }
        }
    }

    /// Moves the schedule by what was seen, none if it says nothing of the scale; the scale before and after.
    pub(crate) fn move_scale(&mut self, seen: Option<Observation>) -> (f32, f32) {
        if let Some(border) = &self.border {
            return border.amp.live().report(&border.member, seen);
        }
        let before = self.schedule.scale();
        if let Some(seen) = seen {
            self.schedule = self.schedule.learn(seen);
        }
        (before, self.schedule.scale())
    }
}

/// A skip is never invisible.
pub(super) fn log_skip(before: f32, after: f32, overflows: &[String], skip: &str) {
    let (before, after) = (short(before.into()), short(after.into()));
    let paths: Vec<_> = overflows.iter().map(|path| format!("`{path}`")).collect();
    let first = match paths.is_empty() {
        true => String::new(),
        false => format!(", first in {},", paths.join(" and in ")),
    };
    log::info!("{skip}: gradients overflow{first} at loss scale {before}, next {after}");
}
