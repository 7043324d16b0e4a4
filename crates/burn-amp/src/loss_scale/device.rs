//! The same schedule on the device.

use burn_amp_kernels::ScaleState;

use super::{LossScale, State, schedule::Schedule};

impl LossScale {
    /// The state as a device moves it; none of a schedule that looks at more than whether a step was skipped, or whose scales and
    /// factors are not powers of two. From 2^-126 on, which no scope goes below.
    #[doc(hidden)]
    pub fn on_device(&self) -> Option<ScaleState> {
        let config = &self.config;
        let (max_interval, min_interval, growths_in_a_row) = match (&self.state, config.schedule) {
            (State::GrowthInterval, _) => (0, 0, 0),
            (
                State::AdaptiveInterval(state),
                Schedule::AdaptiveInterval {
                    min_interval,
                    max_interval,
                },
            ) => (max_interval, min_interval, state.growths_in_a_row),
            _ => return None,
        };
        // Their inverses are exact, on every device.
        let power = |value: f32| (value.is_normal() && value.to_bits() << 9 == 0).then_some(value);
        let narrow = |value: f64| power(value as f32).filter(|narrow| f64::from(*narrow) == value);
        let bound = |bound: Option<f32>, none| bound.map_or(Some(none), power);
        Some(ScaleState {
            scale: power(self.scale)?,
            growth_tracker: self.growth_tracker,
            hysteresis_tracker: self.hysteresis_tracker,
            growth_interval: self.growth_interval(),
            growths_in_a_row,
            warmup_step: self.warmup_step,
            dynamic: config.dynamic.into(),
            growth_factor: narrow(config.growth_factor)?,
            backoff_factor: narrow(config.backoff_factor)?,
            hysteresis: config.hysteresis,
            consecutive_hysteresis: config.consecutive_hysteresis.into(),
            min_scale: bound(config.min(), 0.0)?,
            max_scale: bound(config.max(), f32::INFINITY)?,
            max_interval,
            min_interval,
            warmup_steps: if config.dynamic {
                config.warmup_steps
            } else {
                0
            },
            warmup_levels: config.warmup_levels,
            warmup_scale: narrow(config.warmup_scale)?,
            ..ScaleState::default()
        })
    }
}
