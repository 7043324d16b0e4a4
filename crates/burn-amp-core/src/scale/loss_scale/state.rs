//! The scale and its counts as the rule in `rule.rs` of the kernels has them, which a device follows too.

use burn_amp_kernels::ScaleState;

use super::{GradScalerConfig, LossScale, Memory, Schedule};

/// The first scale, the counts before the first step, and the settings, each as an f32 or a count: those that are no f32 are rounded.
pub(super) fn first_state(config: &GradScalerConfig, memory: &Memory) -> ScaleState {
    let [min_scale, max_scale] = config.bounds();
    let mut state = ScaleState {
        scale: config.init_scale as f32,
        hysteresis_tracker: config.hysteresis,
        growth_interval: config.growth_interval,
        dynamic: config.dynamic.into(),
        growth_factor: config.growth_factor as f32,
        backoff_factor: config.backoff_factor as f32,
        hysteresis: config.hysteresis,
        consecutive_hysteresis: config.consecutive_hysteresis.into(),
        min_scale,
        max_scale,
        // A static scale has none.
        warmup_steps: config.warmup_steps * u32::from(config.dynamic),
        warmup_levels: config.warmup_levels,
        warmup_scale: config.warmup_scale as f32,
        ..ScaleState::default()
    };
    if let (Memory::AdaptiveInterval, Schedule::AdaptiveInterval(settings)) =
        (memory, &config.schedule)
    {
        (state.min_interval, state.max_interval) = (settings.min_interval, settings.max_interval);
    }
    state
}

impl LossScale {
    /// The state as a device moves it; none of a schedule that looks at more than whether a step was skipped, or whose scales and
    /// factors are not powers of two. From 2^-126 on, which no scope goes below.
    pub(crate) fn on_device(&self) -> Option<ScaleState> {
        let config = &self.config;
        let bounds = config.min_scale.into_iter().chain(config.max_scale);
        let bounds = bounds.map(|bound| f64::from(bound as f32));
        let factors = [config.growth_factor, config.backoff_factor];
        let mut numbers = bounds
            .chain(factors)
            .chain([self.state.scale.into(), config.warmup_scale]);
        // Their inverses are exact, on every device.
        let is_power = |number: f64| {
            let narrow = number as f32;
            narrow.is_normal() && narrow.to_bits() << 9 == 0 && f64::from(narrow) == number
        };
        (!self.needs_measures() && numbers.all(is_power)).then_some(self.state)
    }
}
