//! A rule that moves a loss scale: it is shown the evidence of an iteration, and says the scale that it wants next. Knows no settings.

use serde::{Deserialize, Serialize};
use std::{error::Error, fmt::Debug};

use super::outcome::StepOutcome;

/// A rule that moves a loss scale: give your own to [`LossScale::with_rule`](crate::LossScale::with_rule). The built-in ones that look at
/// gradients are rules too, named by [`Schedule`](crate::Schedule).
///
/// A rule says what it wants. Bounds, growth and back-off factor, hysteresis, warm-up and the count of finite iterations are those of
/// [`GradScalerConfig`](crate::GradScalerConfig), under every rule. It sees no tensors. The host calls it once an iteration, so that steps do not
/// run ahead on a device, as under any rule that looks at gradients. It is deterministic: the same evidence leads to the same scales. No lock is held
/// meanwhile: it may log, and ask the [`MixedPrecision`](crate::MixedPrecision), but not change the scale that it moves. Where another thread
/// changes that meanwhile, it is called again, on a copy.
///
/// ```
/// use burn_amp::{GradScalerConfig, MixedPrecision, schedule::{Evidence, NextScale, Rule}};
/// use std::error::Error;
///
/// /// Keeps the largest magnitude of the last iteration at 1024 once it is scaled.
/// #[derive(Clone, Debug, Default, PartialEq)]
/// struct Follow {
///     max_abs: f64,
/// }
///
/// impl Rule for Follow {
///     fn name(&self) -> &str {
///         "follow"
///     }
///
///     fn advance(&mut self, _scale: f32, evidence: Evidence) -> NextScale {
///         match evidence {
///             Evidence::Overflow => NextScale::Counted, // back off
///             Evidence::Finite(Some(measures)) if measures.max_abs > 0.0 => {
///                 self.max_abs = measures.max_abs;
///                 NextScale::UpTo((1024.0 / self.max_abs).log2().floor().exp2() as f32)
///             }
///             Evidence::Finite(_) => NextScale::Same,
///         }
///     }
///
///     fn state(&self) -> String {
///         self.max_abs.to_string()
///     }
///
///     fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
///         self.max_abs = state.parse()?;
///         match self.max_abs >= 0.0 {
///             true => Ok(()),
///             false => Err("a magnitude is not negative".into()),
///         }
///     }
/// }
///
/// let schedule = GradScalerConfig::new().schedule()?.with_rule(Follow::default())?;
/// let amp = MixedPrecision::f16().with_schedule(schedule)?;
/// # let _ = amp;
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
pub trait Rule: Debug + Send + Sync + 'static {
    /// The name under which records hold its state. Not empty, none of [`Schedule`](crate::Schedule)'s, and always the same.
    fn name(&self) -> &str;

    /// Takes in what an iteration has shown, in which `scale` was used, and says what it wants of the scale next.
    ///
    /// Called once an iteration, with what the gradients of all its optimizers have shown. After gradients that are all zero nothing is counted, and a
    /// scale that is higher than before is not taken. Also called on a copy, to look ahead. Not called for a static scale,
    /// nor where the scale is not the cause of a skip, nor for the factor of a region that was not opened.
    fn advance(&mut self, scale: f32, evidence: Evidence) -> NextScale;

    /// The magnitude from which on scaled values are counted in [`Measures::above`]; none, the default: they are not.
    fn count_from(&self) -> Option<f32> {
        None
    }

    /// Stores its memory as text: JSON, or any other.
    fn state(&self) -> String;

    /// Goes on from the text that [`state`](Self::state) has returned. Called on a copy of the rule as it was given to the scale.
    ///
    /// # Errors
    ///
    /// Refuses a state that no run can have stored, with the reason: the copy is thrown away, and loading the record is an error that says it; in a
    /// `Learner`, which knows no errors there, a panic.
    fn load_state(&mut self, state: &str) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// The evidence of one iteration: what its gradients say of the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Evidence {
    /// All gradients were finite; with their measures, if they were measured.
    Finite(Option<Measures>),
    /// A gradient was infinite or NaN, because of the scale.
    Overflow,
}

impl Evidence {
    /// The evidence of a step with this outcome; none of an outcome that says nothing of the scale. [`Stepped`](StepOutcome::Stepped) counts as
    /// finite, [`Skipped`](StepOutcome::Skipped) and [`Dropped`](StepOutcome::Dropped) as an overflow.
    pub fn of(outcome: StepOutcome, measures: Option<Measures>) -> Option<Self> {
        match outcome {
            StepOutcome::Stepped => Some(Self::Finite(measures)),
            StepOutcome::Skipped | StepOutcome::Dropped => Some(Self::Overflow),
            _ => None,
        }
    }

    /// Joins the steps of an iteration: this one comes after those before.
    pub(crate) fn after(self, before: Option<Self>) -> Self {
        match (before, self) {
            (None, seen) => seen,
            (Some(Self::Finite(before)), Self::Finite(seen)) => {
                let measures = [before, seen].into_iter().flatten();
                Self::Finite(measures.reduce(Measures::and))
            }
            _ => Self::Overflow,
        }
    }

    /// All gradients were zero: no scale is too low for them, and none is known not to be too high.
    pub(crate) fn is_all_zero(self) -> bool {
        matches!(self, Self::Finite(Some(measures)) if measures.are_all_zero())
    }

    pub(crate) fn outcome(self) -> StepOutcome {
        match self {
            Self::Finite(_) => StepOutcome::Stepped,
            Self::Overflow => StepOutcome::Skipped,
        }
    }
}

/// The measures of an iteration's gradients, of all its optimizers, unscaled and before clipping. For the factor of a region: those that came to
/// it, with the loss scale and the [`outer_factor`](Self::outer_factor), and without its own factor. Host values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Measures {
    /// The largest finite magnitude.
    #[serde(with = "crate::values::number")]
    pub max_abs: f64,
    /// The number of values.
    pub elements: u64,
    /// The number of values that are zero; for the factor of a region, all of them or 0.
    #[serde(skip_serializing_if = "crate::values::number::is_default")]
    pub zeros: u64,
    /// The number of values whose scaled magnitude is [`Rule::count_from`](crate::schedule::Rule::count_from) or more; 0 where that is none.
    pub above: u64,
    /// The L2 norm over the finite values.
    #[serde(with = "crate::values::number")]
    pub norm: f64,
    /// The product of the factors of the regions that enclose a region: gradients that come to it are multiplied by this, beside the loss scale. 1 for a loss scale.
    #[serde(with = "crate::values::number")]
    pub outer_factor: f64,
}

/// The measures of no values.
impl Default for Measures {
    fn default() -> Self {
        Self {
            max_abs: 0.0,
            elements: 0,
            zeros: 0,
            above: 0,
            norm: 0.0,
            outer_factor: 1.0,
        }
    }
}

impl Measures {
    /// Tells whether there are values, and each of them is zero: no evidence of a scale.
    pub fn are_all_zero(&self) -> bool {
        self.elements > 0 && self.zeros >= self.elements
    }

    /// Joins the measures of several gradients.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            max_abs: self.max_abs.max(other.max_abs),
            elements: self.elements.saturating_add(other.elements),
            zeros: self.zeros.saturating_add(other.zeros),
            above: self.above.saturating_add(other.above),
            norm: self.norm.hypot(other.norm),
            outer_factor: self.outer_factor.max(other.outer_factor),
        }
    }
}

/// The scale that a rule wants next. One that has no inverse in f32 (NaN, infinity, zero) is not applied: scale and rule stay as they
/// were, and the log says so.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum NextScale {
    /// PyTorch's next scale: to grow after `growth_interval` finite iterations in a row, to back off at an overflow that `hysteresis`
    /// does not tolerate. Such a back-off sets a ceiling for [`UpTo`](Self::UpTo) and [`AtOnce`](Self::AtOnce), which is multiplied by
    /// `growth_factor` after `growth_interval` finite iterations in a row.
    Counted,
    /// The present one.
    Same,
    /// The present one, multiplied by `backoff_factor` at once.
    Lower,
    /// This one, up to the ceiling, and no more than one growth at a time.
    UpTo(f32),
    /// This one, up to the ceiling, in one step.
    AtOnce(f32),
    /// This one, within the bounds.
    Exactly(f32),
}
