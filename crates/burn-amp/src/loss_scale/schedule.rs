use super::{DynamicLossScale, DynamicSettings, InvalidValue, StaticLossScale, StepOutcome};
use serde::{Deserialize, Serialize};

/// The state of a loss-scale schedule. Cloned, compared and stored by value.
///
/// Pure and on the host: nothing here touches a tensor or waits for a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LossScale {
    /// A constant scale.
    Static(StaticLossScale),
    /// Back off at an overflow, grow after a run of clean steps.
    Dynamic(DynamicLossScale),
}

/// PyTorch's: a dynamic schedule with the default settings.
impl Default for LossScale {
    fn default() -> Self {
        Self::Dynamic(DynamicLossScale::default())
    }
}

impl LossScale {
    /// A constant scale.
    ///
    /// # Errors
    ///
    /// As [`StaticLossScale::new`].
    pub fn fixed(scale: f64) -> Result<Self, InvalidValue> {
        StaticLossScale::new(scale).map(Self::Static)
    }

    /// A dynamic schedule at its first step.
    ///
    /// # Errors
    ///
    /// As [`DynamicLossScale::new`].
    pub fn dynamic(settings: DynamicSettings) -> Result<Self, InvalidValue> {
        DynamicLossScale::new(settings).map(Self::Dynamic)
    }

    /// The factor by which the loss of the next step is multiplied.
    pub fn scale(&self) -> f32 {
        match self {
            Self::Static(scale) => scale.scale(),
            Self::Dynamic(scale) => scale.scale(),
        }
    }

    /// The state after one more iteration with this outcome: a deterministic function of both.
    ///
    /// Never fails and never yields a scale that is negative or not finite.
    #[must_use]
    pub fn adjust(self, outcome: StepOutcome) -> Self {
        match self {
            Self::Static(_) => self,
            Self::Dynamic(scale) => Self::Dynamic(scale.adjust(outcome)),
        }
    }

    /// The schedule with the same settings at its first step. A static scale stays where it was set.
    #[must_use]
    pub fn restarted(self) -> Self {
        match self {
            Self::Static(_) => self,
            Self::Dynamic(scale) => Self::Dynamic(scale.restarted()),
        }
    }

    /// Whether one more overflow finds no lower scale to go to; see [`DynamicLossScale::is_at_floor`].
    ///
    /// Always false for a static scale, which has no floor: there a limit on consecutive skips ends the run.
    pub fn is_at_floor(&self) -> bool {
        match self {
            Self::Static(_) => false,
            Self::Dynamic(scale) => scale.is_at_floor(),
        }
    }

    /// The factor of a growth; 1 for a static scale.
    pub fn growth_factor(&self) -> f64 {
        self.settings().map_or(1.0, |s| s.growth_factor)
    }

    /// The factor of a backoff; 1 for a static scale.
    pub fn backoff_factor(&self) -> f64 {
        self.settings().map_or(1.0, |s| s.backoff_factor)
    }

    /// Clean steps in a row before a growth; 0, for never, with a static scale.
    pub fn growth_interval(&self) -> u32 {
        self.settings().map_or(0, |s| s.growth_interval)
    }

    /// Clean steps in a row so far; 0 for a static scale.
    pub fn growth_tracker(&self) -> u32 {
        match self {
            Self::Static(_) => 0,
            Self::Dynamic(scale) => scale.growth_tracker(),
        }
    }

    /// The same state with another scale; trackers stay, as in PyTorch's `update(new_scale)`.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] unless `scale` is positive, finite as an f32, and within the schedule's bounds.
    pub fn with_scale(self, scale: f64) -> Result<Self, InvalidValue> {
        match self {
            Self::Static(state) => state.with_scale(scale).map(Self::Static),
            Self::Dynamic(state) => state.with_scale(scale).map(Self::Dynamic),
        }
    }

    /// The same state with another growth factor.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] unless `factor` is finite and above 1, and the schedule dynamic.
    pub fn with_growth_factor(self, factor: f64) -> Result<Self, InvalidValue> {
        self.map_dynamic("growth_factor", factor, |s| s.with_growth_factor(factor))
    }

    /// The same state with another backoff factor.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] unless `factor` lies between 0 and 1, and the schedule is dynamic.
    pub fn with_backoff_factor(self, factor: f64) -> Result<Self, InvalidValue> {
        self.map_dynamic("backoff_factor", factor, |s| s.with_backoff_factor(factor))
    }

    /// The same state with another growth interval, counted in steps.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] unless `interval` is at least 1, and the schedule dynamic.
    pub fn with_growth_interval(self, interval: u32) -> Result<Self, InvalidValue> {
        self.map_dynamic("growth_interval", interval, |s| {
            s.with_growth_interval(interval)
        })
    }

    /// The same state with another count of clean steps in a row.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`] unless `tracker` is below the growth interval, and the schedule dynamic.
    pub fn with_growth_tracker(self, tracker: u32) -> Result<Self, InvalidValue> {
        self.map_dynamic("growth_tracker", tracker, |s| {
            s.with_growth_tracker(tracker)
        })
    }

    fn settings(&self) -> Option<&DynamicSettings> {
        match self {
            Self::Static(_) => None,
            Self::Dynamic(scale) => Some(scale.settings()),
        }
    }

    fn map_dynamic(
        self,
        field: &'static str,
        value: impl ToString,
        change: impl FnOnce(DynamicLossScale) -> Result<DynamicLossScale, InvalidValue>,
    ) -> Result<Self, InvalidValue> {
        match self {
            Self::Static(_) => {
                let allowed = "left alone: the loss scale is static";
                Err(InvalidValue::new(field, value, allowed))
            }
            Self::Dynamic(scale) => change(scale).map(Self::Dynamic),
        }
    }
}
