use serde::{Deserialize, Serialize};

use super::GradScaler;
use crate::{
    error::AmpError,
    loss_scale::{DynamicLossScale, DynamicSettings, InvalidValue, LossScale},
};

/// What PyTorch's `GradScaler.state_dict()` holds, under its names, to exchange with PyTorch as JSON.
///
/// Empty if it is that of a disabled scaler. [`AmpRecord`](crate::AmpRecord) holds more: bounds,
/// hysteresis, counters.
///
/// ```
/// use burn_amp::{GradScalerConfig, GradScalerState};
///
/// let json = r#"{"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 100, "_growth_tracker": 7}"#;
/// let mut scaler = GradScalerConfig::new().init()?;
/// scaler.load_state(&GradScalerState::from_json(json)?)?;
/// assert_eq!(scaler.growth_tracker(), 7);
/// # Ok::<(), burn_amp::AmpError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GradScalerState {
    /// The loss scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// The factor of a growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_factor: Option<f64>,
    /// The factor of a backoff.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff_factor: Option<f64>,
    /// Clean steps in a row before a growth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_interval: Option<u32>,
    /// Clean steps in a row so far.
    #[serde(rename = "_growth_tracker", skip_serializing_if = "Option::is_none")]
    pub growth_tracker: Option<u32>,
}

impl GradScalerState {
    /// Whether it holds no value at all, as the state of a disabled scaler.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The state as JSON, readable by Python's `json` for `GradScaler.load_state_dict`.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a state is plain data")
    }

    /// Reads JSON, such as `json.dumps(scaler.state_dict())` in Python. Unknown names are ignored.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidState`] if it is not JSON or a value has another type.
    pub fn from_json(json: &str) -> Result<Self, AmpError> {
        serde_json::from_str(json).map_err(|error| AmpError::InvalidState {
            reason: error.to_string(),
        })
    }
}

impl GradScaler {
    /// PyTorch's `state_dict`: the five values, or none of a disabled scaler.
    ///
    /// That of a static scale has growth and backoff factors of 1, which PyTorch itself would not build.
    pub fn state(&self) -> GradScalerState {
        if !self.enabled {
            return GradScalerState::default();
        }
        GradScalerState {
            scale: Some(self.loss_scale().into()),
            growth_factor: Some(self.growth_factor()),
            backoff_factor: Some(self.backoff_factor()),
            growth_interval: Some(self.growth_interval()),
            growth_tracker: Some(self.growth_tracker()),
        }
    }

    /// PyTorch's `load_state_dict`: takes over the five values; bounds and hysteresis stay. A disabled scaler
    /// ignores the state, as PyTorch's.
    ///
    /// # Errors
    ///
    /// [`AmpError::EmptyState`] with PyTorch's message, [`AmpError::InvalidState`] that names a missing value,
    /// and [`AmpError::InvalidValue`] for one outside its range; the present state stays as it was.
    pub fn load_state(&mut self, state: &GradScalerState) -> Result<(), AmpError> {
        if !self.enabled {
            return Ok(());
        }
        if state.is_empty() {
            return Err(AmpError::EmptyState);
        }
        let missing = |name: &str| AmpError::InvalidState {
            reason: format!("`{name}` is missing"),
        };
        let scale = state.scale.ok_or_else(|| missing("scale"))?;
        let growth = state
            .growth_factor
            .ok_or_else(|| missing("growth_factor"))?;
        let backoff = (state.backoff_factor).ok_or_else(|| missing("backoff_factor"))?;
        let interval = (state.growth_interval).ok_or_else(|| missing("growth_interval"))?;
        let tracker = (state.growth_tracker).ok_or_else(|| missing("_growth_tracker"))?;
        let schedule = match self.schedule() {
            schedule @ LossScale::Static(_) => schedule.with_scale(scale)?,
            LossScale::Dynamic(dynamic) => LossScale::Dynamic(restored(
                dynamic, scale, growth, backoff, interval, tracker,
            )?),
        };
        self.set_schedule(schedule);
        Ok(())
    }
}

fn restored(
    dynamic: DynamicLossScale,
    scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: u32,
    growth_tracker: u32,
) -> Result<DynamicLossScale, InvalidValue> {
    let settings = DynamicSettings {
        growth_factor,
        backoff_factor,
        growth_interval,
        ..*dynamic.settings()
    };
    DynamicLossScale::new(settings)?.restored(scale, growth_tracker)
}
