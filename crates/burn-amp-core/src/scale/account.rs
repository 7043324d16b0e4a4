//! What one optimizer has come to: the only place where its steps are counted and logged, and where a run is found to be at its end.
//! Knows no tensors, and moves no scale.

use log::Level;
use std::sync::Arc;

use crate::error::{AmpError, short};
use crate::scale::finding::{Finding, Rejection, SkipCause, Tested};
use crate::scale::loss_scale::{Evidence, LossScale, StepOutcome};
use crate::scale::{status::GradientStatus, step_counters::StepCounters};

/// The number of overflows in a row at which the likely causes are named.
const MANY_SKIPS: u64 = 6;
const CAUSES: &str = ". If it goes on: an operation inside `autocast` overflows (put it into `in_f32`), or \
                      the loss is scaled twice (multiplied by hand, or by a second `GradScaler`)";

/// The purpose that gradients had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Step,
    /// A part of an accumulation window, which leaves out those that overflow.
    MicroBatch,
    /// Nothing: they were thrown away.
    Discarded,
    /// Nothing any more: they were unscaled, and dropped.
    Dropped,
}

impl Purpose {
    /// Says what becomes of gradients that overflow.
    fn skip(self) -> &'static str {
        match self {
            Self::Step => "step skipped",
            Self::MicroBatch => "micro-batch dropped",
            Self::Discarded => "gradients discarded",
            Self::Dropped => "gradients dropped",
        }
    }
}

/// An error where so many in a row are too many.
fn limit(
    schedule: &LossScale,
    in_a_row: u64,
    error: impl FnOnce() -> AmpError,
) -> Result<(), AmpError> {
    let max = schedule.config.max_consecutive_skips;
    match max.is_some_and(|max| in_a_row > u64::from(max)) {
        true => Err(error()),
        false => Ok(()),
    }
}

/// The end of all that an overflow can lower.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor {
    /// Set where the scale cannot fall.
    pub(super) is_reached: bool,
    /// Set where an overflow ends the run, because nothing can be lowered.
    pub(super) ends: bool,
}

/// The result of a call of an optimizer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    /// Its outcome; none before the first call, and where gradients were refused.
    pub(crate) outcome: Option<StepOutcome>,
    /// The measures of its gradients; none where nothing was measured.
    pub(crate) status: Option<Arc<GradientStatus>>,
    /// Set if it was a step, applied or not.
    pub(crate) is_step: bool,
}

impl Call {
    /// A call that has not stepped.
    pub(crate) fn of(outcome: StepOutcome, status: Option<Arc<GradientStatus>>) -> Self {
        Self {
            outcome: Some(outcome),
            status,
            is_step: false,
        }
    }
}

/// The counters of an optimizer, and its last call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    pub(crate) counters: StepCounters,
    pub(crate) last: Call,
    /// The error that ends the run, until a call returns it: a step that nobody has waited for has no call of its own.
    pub(crate) error: Option<AmpError>,
    warned_of_nothing: bool,
    pub(crate) warned_of_zeros: bool,
    /// Gradients in a row that were discarded and that nobody has tested.
    untested: u32,
    /// The loss scale at which gradients were finite last, and not all zero.
    worked_at: Option<f32>,
    /// The number of those skips in a row that were at scales far above that.
    skips_above: u64,
}

impl Account {
    /// Goes on from other counters, and forgets all else.
    pub(crate) fn restart_at(&mut self, counters: StepCounters) {
        *self = Self {
            counters,
            ..Self::default()
        };
    }

    /// Counts and logs gradients, by the `schedule` as it was before it is moved by them. `floor` says what an overflow can lower. `is_first` of its
    /// iteration to overflow, of those of several optimizers. An error if they are an overflow, or a rejection, too many.
    pub(super) fn record(
        &mut self,
        purpose: Purpose,
        found: &Finding,
        schedule: &LossScale,
        floor: Floor,
        is_first: bool,
    ) -> Result<(), AmpError> {
        self.untested = 0;
        let overflows = found.skips();
        match purpose {
            Purpose::Step => {
                let is_rejected = matches!(found.tested, Tested::Rejected(_));
                self.counters.steps += 1;
                self.counters.skipped += u64::from(overflows);
                self.counters.guarded += u64::from(is_rejected);
                self.counters.guarded_in_a_row = match is_rejected {
                    true => self.counters.guarded_in_a_row + 1,
                    false => 0,
                };
            }
            Purpose::MicroBatch => self.counters.dropped += u64::from(overflows),
            Purpose::Discarded | Purpose::Dropped => self.counters.discarded += 1,
        }
        match &found.tested {
            Tested::Overflow { parameter, cause } => match *cause {
                SkipCause::Scale => {
                    self.record_overflow(found, schedule, parameter, floor, is_first)
                }
                SkipCause::OtherScale => self.record_other_scale(purpose, schedule),
                cause => self.record_bad_loss(purpose, schedule, parameter, cause),
            },
            Tested::Rejected(rejection) => self.record_rejected(schedule, rejection),
            Tested::Finite | Tested::Nothing => {
                self.record_finite(purpose, found, schedule);
                Ok(())
            }
        }
    }

    /// Keeps why the run cannot go on, for the next call. Logs it: there may be no next call.
    pub(crate) fn keep(&mut self, error: AmpError) {
        if self.error.is_none() {
            warn!("{error}");
            self.error = Some(error);
        }
    }

    /// Skips are counted in a row anew.
    pub(crate) fn end_row(&mut self) {
        self.counters.consecutive_skips = 0;
        self.skips_above = 0;
    }

    /// Counts gradients that are thrown away untested, and warns of many in a row: if they overflow, the next ones will too.
    pub(crate) fn record_untested(&mut self, is_enabled: bool) {
        const MANY: u32 = 50;
        self.counters.discarded += 1;
        self.untested = self.untested.saturating_add(u32::from(is_enabled));
        if is_enabled && self.untested == MANY {
            warn!(
                "{MANY} gradients in a row were discarded untested: if they overflow, the loss scale does not back off. Discard what \
                 `optim.unscale(optim.backward(loss, &model), &model)` has tested, or give them to `step`"
            );
        }
    }

    /// Warns, once, of gradients that are all zero although others came to the border, or a loss was scaled.
    pub(crate) fn warn_of_zeros(&mut self, status: &GradientStatus, scale: f32) {
        if !std::mem::replace(&mut self.warned_of_zeros, true) {
            warn!(
                "all {} gradient values are zero at loss scale {}: they underflow in half \
                 precision (or the loss is zero, or does not depend on the parameters). A larger `init_scale` or a shorter \
                 `growth_interval` helps against underflow",
                status.elements(),
                short(scale.into())
            );
        }
    }

    fn record_finite(&mut self, purpose: Purpose, found: &Finding, schedule: &LossScale) {
        if purpose == Purpose::Step && found.is_resolved {
            self.counters.skipped_windows = 0;
        }
        // No gradients are no evidence that anything is fine.
        if found.tested == Tested::Nothing {
            if purpose == Purpose::Step && !std::mem::replace(&mut self.warned_of_nothing, true) {
                warn!(
                    "a step found no gradient for any parameter, and changes nothing. Likely causes: all parameters are frozen; adapters \
                     were attached in the wrong order (low-rank adapters first, then `MixedPrecision`); the loss was computed from \
                     another copy of the model, or without autodiff"
                );
            }
            return;
        }
        self.counters.bad_losses_in_a_row = 0;
        if !found.measures.are_all_zero() {
            self.worked_at = Some(schedule.scale());
        }
    }

    /// Says whether a scale is more than one growth above the last at which gradients were finite, or the first of all, and can still fall to it.
    fn is_above(&self, schedule: &LossScale, floor: Floor) -> bool {
        let config = &schedule.config;
        // All gradients so far may have been zero.
        let worked = self.worked_at.map_or(config.init_scale, f64::from);
        let is_above = f64::from(schedule.scale()) > worked * config.growth_factor;
        is_above && !floor.is_reached
    }

    /// A step that was rejected does not move the loss scale.
    fn record_rejected(
        &self,
        schedule: &LossScale,
        Rejection { hook, reason }: &Rejection,
    ) -> Result<(), AmpError> {
        let steps = self.counters.guarded_in_a_row;
        limit(schedule, steps, || AmpError::AlwaysGuarded {
            hook: hook.clone(),
            steps,
            reason: reason.clone(),
        })?;
        info!("step rejected by the hook `{hook}`: {reason}");
        Ok(())
    }

    fn record_overflow(
        &mut self,
        found: &Finding,
        schedule: &LossScale,
        parameter: &str,
        floor: Floor,
        is_first: bool,
    ) -> Result<(), AmpError> {
        let exhausted = |skips| AmpError::LossScaleExhausted {
            scale: schedule.scale(),
            skips,
            parameter: parameter.to_string(),
        };
        if found.is_resolved {
            // No loss scale is too high there, and none helps.
            self.counters.skipped_windows += 1;
            warn!(
                "window skipped: the sum of its micro-batches overflows, first in `{parameter}`, though each of them is finite"
            );
            let skips = self.counters.skipped_windows;
            return limit(schedule, skips, || exhausted(skips));
        }
        // Two optimizers that overflow in one iteration are one reason to back off, not two.
        if is_first {
            self.counters.consecutive_skips += 1;
            self.skips_above += u64::from(self.is_above(schedule, floor));
        }
        let skips = self.counters.consecutive_skips;
        if floor.ends {
            return Err(exhausted(skips));
        }
        limit(schedule, skips.saturating_sub(self.skips_above), || {
            exhausted(skips)
        })
    }

    /// Gradients that no loss scale has made infinite or NaN: it stays.
    fn record_bad_loss(
        &mut self,
        purpose: Purpose,
        schedule: &LossScale,
        parameter: &str,
        cause: SkipCause,
    ) -> Result<(), AmpError> {
        self.counters.bad_losses += 1;
        self.counters.bad_losses_in_a_row += 1;
        self.counters.unknown_causes += u64::from(cause == SkipCause::Unknown);
        let skips = self.counters.bad_losses_in_a_row;
        limit(schedule, skips, || match cause {
            SkipCause::Loss { output_finite } => AmpError::LossNotFinite {
                skips,
                output_finite,
                parameter: None,
                last_read: None,
            },
            _ => AmpError::UnknownCause {
                skips,
                parameter: parameter.to_string(),
            },
        })?;
        let skip = purpose.skip();
        match cause {
            SkipCause::Loss { output_finite } => {
                let what = match output_finite {
                    true => "the gradient of the loss is infinite or NaN",
                    false => "the model's output is infinite or NaN",
                };
                warn!(
                    "{skip}: {what}, {skips} in a row; the loss scale stays. Look at the inputs of this step"
                );
            }
            _ => warn!(
                "{skip}: the gradient of `{parameter}` is infinite or NaN, although all that `autocast` gave is finite, {skips} in a row; the loss \
                 scale stays. It became so outside of all scopes"
            ),
        }
        Ok(())
    }

    fn record_other_scale(
        &mut self,
        purpose: Purpose,
        schedule: &LossScale,
    ) -> Result<(), AmpError> {
        self.counters.consecutive_skips += 1;
        let (skip, skips) = (purpose.skip(), self.counters.consecutive_skips);
        warn!("{skip}, {skips} in a row: {}", AmpError::TwoPrecisions);
        limit(schedule, skips, || AmpError::TwoPrecisions)
    }
}

/// Logs that the scale has moved, or that a step was skipped at its floor, after so many `skips` in a row. `overflows` are the first parameters
/// that overflow, of each optimizer. It moves `often` where its rule looks at the gradients: maybe with every step.
pub(super) fn log_scale(
    [before, after]: [f32; 2],
    seen: Evidence,
    purpose: Purpose,
    overflows: &[String],
    skips: u64,
    often: bool,
) {
    let [from, to] = [before, after].map(|scale| short(scale.into()));
    if seen == Evidence::Overflow {
        if skips > 2 {
            let causes = if skips == MANY_SKIPS { CAUSES } else { "" };
            warn!("{skips} overflows in a row at loss scale {from}{causes}");
        }
        log_skip([before, after], purpose, overflows);
    } else {
        let level = if often { Level::Debug } else { Level::Info };
        let what = if after > before { "grows" } else { "falls" };
        say!(level, "loss scale {what} from {from} to {to}");
    }
}

/// A skip is never invisible.
pub(crate) fn log_skip([before, after]: [f32; 2], purpose: Purpose, overflows: &[String]) {
    let (before, after) = (short(before.into()), short(after.into()));
    let paths: Vec<_> = overflows.iter().map(|path| format!("`{path}`")).collect();
    let first = match paths.is_empty() {
        true => String::new(),
        false => format!(", first in {},", paths.join(" and in ")),
    };
    let skip = purpose.skip();
    info!("{skip}: gradients overflow{first} at loss scale {before}, next {after}");
}
