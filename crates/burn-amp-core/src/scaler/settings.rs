//! PyTorch's five values of a `GradScaler`: getters, setters, `state_dict`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Scaler;
use crate::error::AmpError;
use crate::scale::loss_scale::{GradScalerConfig, LossScale};

impl Scaler {
    /// The loss scale at present; 1 if disabled (as PyTorch's `get_scale`).
    pub fn loss_scale(&self) -> f32 {
        self.live.loss_scale()
    }

    /// The factor of a growth; 1 for a static scale.
    pub fn growth_factor(&self) -> f64 {
        self.setting(1.0, |config| config.growth_factor)
    }

    /// The factor of a backoff; 1 for a static scale.
    pub fn backoff_factor(&self) -> f64 {
        self.setting(1.0, |config| config.backoff_factor)
    }

    /// Finite steps in a row before a growth, at present; 0, for never, with a static scale.
    pub fn growth_interval(&self) -> u32 {
        let schedule = self.schedule();
        self.setting(0, |_| schedule.growth_interval())
    }

    /// Finite steps in a row so far (PyTorch's `_growth_tracker`).
    pub fn growth_tracker(&self) -> u32 {
        self.schedule().growth_tracker()
    }

    /// Sets the loss scale, and with it a new start of the count of skips in a row. The growth tracker stays.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `scale` is positive, finite as an f32 and
    /// within `min_scale` and `max_scale`, which do not bound a static scale.
    pub fn set_loss_scale(&mut self, scale: f64) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_scale("loss_scale", scale))?;
        self.account(|account| account.end_row());
        self.live.show(self.id(), false);
        Ok(())
    }

    /// Sets the growth factor.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `factor` is finite and above 1 and the scale dynamic.
    pub fn set_growth_factor(&mut self, factor: f64) -> Result<(), AmpError> {
        self.change(|schedule| {
            schedule.with_setting("growth_factor", factor, |config| {
                config.growth_factor = factor
            })
        })
    }

    /// Sets the backoff factor.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `factor` lies between 0 and 1 and the scale is dynamic.
    pub fn set_backoff_factor(&mut self, factor: f64) -> Result<(), AmpError> {
        self.change(|schedule| {
            schedule.with_setting("backoff_factor", factor, |config| {
                config.backoff_factor = factor
            })
        })
    }

    /// Sets the growth interval, in steps. One at or below the growth tracker makes the next finite step grow
    /// (PyTorch would never grow again).
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, if `interval` is 0 or the scale static.
    pub fn set_growth_interval(&mut self, interval: u32) -> Result<(), AmpError> {
        self.change(|schedule| {
            let change = |config: &mut GradScalerConfig| config.growth_interval = interval;
            schedule.with_setting("growth_interval", interval.into(), change)
        })
    }

    /// Sets the count of finite steps in a row.
    ///
    /// # Errors
    ///
    /// [`AmpError::InvalidValue`], the old value kept, unless `tracker` is below the growth interval and the scale dynamic.
    pub fn set_growth_tracker(&mut self, tracker: u32) -> Result<(), AmpError> {
        self.change(|schedule| schedule.with_growth_tracker(tracker))
    }

    /// A setting of the schedule, if it moves.
    fn setting<T>(&self, fixed: T, get: impl FnOnce(&GradScalerConfig) -> T) -> T {
        let config = self.config();
        match config.dynamic {
            true => get(&config),
            false => fixed,
        }
    }

    fn change(
        &mut self,
        change: impl Fn(LossScale) -> Result<LossScale, AmpError>,
    ) -> Result<(), AmpError> {
        self.live.resolve(true);
        self.live.change(change).map(drop)
    }

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
        self.change(|schedule| schedule.restored(numbers, counts))
    }
}
