//! What is compared.

use burn_amp::{
    AmpError, GradScalerConfig, MixedPrecision,
    adaptive::Guard,
    schedule::{AdaptiveInterval, Schedule},
};

/// A way to find the loss scale.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// What it is called in tables.
    pub name: &'static str,
    /// The settings; none for f32.
    pub config: Option<GradScalerConfig>,
    /// Whether the first scale is calibrated.
    pub calibrated: bool,
}

impl Choice {
    /// A handle of its own for each run.
    ///
    /// # Errors
    ///
    /// If a setting is outside its range.
    pub fn precision(&self) -> Result<MixedPrecision, AmpError> {
        // In f32 a scale of 1, so that gradients are measured there too.
        let one = GradScalerConfig::new()
            .with_init_scale(1.0)
            .with_dynamic(false);
        match self.config {
            Some(config) => MixedPrecision::f16().with_scaler(config),
            None => MixedPrecision::f32().with_scaler(one),
        }
    }
}

/// All schedules, after a run in f32. The growth interval is short where runs are.
pub fn schedules(growth_interval: u32) -> Vec<Choice> {
    let torch = GradScalerConfig::new().with_growth_interval(growth_interval);
    let adaptive = Schedule::AdaptiveInterval(AdaptiveInterval {
        min_interval: (growth_interval / 4).max(1),
        max_interval: growth_interval.saturating_mul(8),
    });
    let choice = |name, config, calibrated| Choice {
        name,
        config: Some(config),
        calibrated,
    };
    let with = |schedule| torch.with_schedule(schedule);
    vec![
        Choice {
            name: "f32",
            config: None,
            calibrated: false,
        },
        choice("PyTorch's", torch, false),
        choice("warm-up", torch.with_warmup_steps(100), false),
        choice("adaptive interval", with(adaptive), false),
        choice("log-max", with(Schedule::log_max()), false),
        choice("share near the top", with(Schedule::near_top()), false),
        choice("PyTorch's, calibrated", torch, true),
        choice("log-max, calibrated", with(Schedule::log_max()), true),
        choice(
            "share near the top, calibrated",
            with(Schedule::near_top()),
            true,
        ),
    ]
}

/// All guards, after a run without one.
pub fn guards() -> Vec<(&'static str, Option<Guard>)> {
    vec![
        ("none", None),
        ("zclip", Some(Guard::zclip())),
        ("skip_step", Some(Guard::skip_step())),
        ("outlier", Some(Guard::outlier())),
    ]
}

/// The steps at which a spike is planted: from the middle of a run on, when all guards know what is usual.
pub fn spikes(steps: usize) -> Vec<usize> {
    let (first, distance) = (steps / 2, steps / 12);
    (0..5).map(|spike| first + spike * distance).collect()
}
