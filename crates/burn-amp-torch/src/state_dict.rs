//! PyTorch's `state_dict`: five values of a loss scale.

use burn_amp_core::{AmpError, internal::torch::restore};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::GradScaler;

impl GradScaler {
    /// PyTorch's `state_dict` as JSON: its five values under its names, to exchange with PyTorch; `{}` of a disabled scaler.
    ///
    /// A record holds more: bounds, hysteresis, counters. The state of a static scale has growth and backoff factors of 1, which
    /// PyTorch itself would not build.
    ///
    /// ```
    /// use burn_amp::{GradScalerConfig, torch::GradScaler};
    ///
    /// let json = r#"{"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 100, "_growth_tracker": 7}"#;
    /// let mut scaler = GradScaler::new(GradScalerConfig::new())?;
    /// scaler.load_state_dict(json)?;
    /// assert_eq!(scaler.growth_tracker(), 7);
    /// assert!(scaler.state_dict().contains(r#""_growth_tracker":7"#));
    /// # Ok::<(), burn_amp::AmpError>(())
    /// ```
    pub fn state_dict(&self) -> String {
        let state = match self.is_enabled() {
            false => json!({}),
            true => json!({
                "scale": f64::from(self.loss_scale()),
                "growth_factor": self.growth_factor(),
                "backoff_factor": self.backoff_factor(),
                "growth_interval": self.growth_interval(),
                "_growth_tracker": self.growth_tracker(),
            }),
        };
        state.to_string()
    }

    /// PyTorch's `load_state_dict`: takes over the five values from JSON, such as `json.dumps(scaler.state_dict())` in Python.
    ///
    /// Bounds and the setting of hysteresis stay, hysteresis resets, and unknown names are ignored. A disabled scaler ignores any
    /// JSON object, as PyTorch's.
    ///
    /// # Errors
    ///
    /// [`AmpError::EmptyState`] with PyTorch's message, [`AmpError::InvalidState`] if it is not JSON, names a missing value or one
    /// of another type, and [`AmpError::InvalidValue`] for one outside its range; the present state stays as it was.
    pub fn load_state_dict(&mut self, json: &str) -> Result<(), AmpError> {
        let invalid = |reason: String| AmpError::InvalidState { reason };
        let state: Value =
            serde_json::from_str(json).map_err(|error| invalid(error.to_string()))?;
        let Some(values) = state.as_object() else {
            let expected = "expected an object with the values of PyTorch's `state_dict`";
            return Err(invalid(format!("it is {state}, {expected}")));
        };
        if !self.is_enabled() {
            return Ok(());
        }
        if values.is_empty() {
            return Err(AmpError::EmptyState);
        }
        let wrong = |name: &str, wanted: &str| match &state[name] {
            Value::Null => invalid(format!("`{name}` is missing")),
            other => invalid(format!("`{name}` is {other}, but must be {wanted}")),
        };
        let number = |name: &str| state[name].as_f64().ok_or_else(|| wrong(name, "a number"));
        let count =
            |name: &str| u32::deserialize(&state[name]).map_err(|_| wrong(name, "a whole number"));
        let numbers = [
            number("scale")?,
            number("growth_factor")?,
            number("backoff_factor")?,
        ];
        let counts = [count("growth_interval")?, count("_growth_tracker")?];
        restore(self, numbers, counts)
    }
}
