//! A loss scale and how it moves, as words that a device has too. Knows no tensors.

use crate::words::words;

words! {
    /// A loss scale, how it moves, and what steps have shown. Host values; the device has them as 32-bit words.
    ///
    /// The rule is that of PyTorch's `GradScaler`, with hysteresis (Megatron), bounds, a warm-up, and an interval that follows the
    /// run. All scales, factors and bounds are powers of two.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    ScaleState, WORDS, word:
    /// The loss scale, the warm-up's cap not counted.
    0 SCALE scale: f32,
    /// Clean steps since the scale last moved.
    1 TRACKER growth_tracker: u32,
    /// Overflows until the scale backs off, this one included.
    2 TOLERATED hysteresis_tracker: u32,
    /// Clean steps after which the scale grows.
    3 INTERVAL growth_interval: u32,
    /// Growths since the last overflow, or since the interval was halved.
    4 GROWTHS growths_in_a_row: u32,
    /// Steps of the warm-up that are over.
    5 WARMED warmup_step: u32,
    /// Steps, skipped ones included.
    6 STEPS steps: u32,
    /// Skipped steps.
    7 SKIPPED skipped: u32,
    /// Whether the last step was skipped: 1 or 0.
    8 FOUND found_inf: f32,
    /// Whether the scale moves: 1 or 0.
    9 DYNAMIC dynamic: u32,
    /// What a growth multiplies by.
    10 GROWTH growth_factor: f32,
    /// What an overflow multiplies by.
    11 BACKOFF backoff_factor: f32,
    /// Overflows until the scale backs off.
    12 HYSTERESIS hysteresis: u32,
    /// Whether a finite step restores all tolerated overflows: 1 or 0.
    13 CONSECUTIVE consecutive_hysteresis: u32,
    /// The scale backs off to no less; 0 for no bound.
    14 MIN min_scale: f32,
    /// The scale grows to no more; infinite for no bound.
    15 MAX max_scale: f32,
    /// The interval is doubled by an overflow, up to this; 0 if it is fixed.
    16 LONGEST max_interval: u32,
    /// The interval is halved by two growths in a row, down to this.
    17 SHORTEST min_interval: u32,
    /// Steps of the warm-up; 0 for none.
    18 WARMUP warmup_steps: u32,
    /// How often the cap doubles in the warm-up.
    19 LEVELS warmup_levels: u32,
    /// The cap of the first step.
    20 FIRST warmup_scale: f32,
    /// What the next gradients are multiplied by: the scale, as far as the warm-up allows, between 2^-126 and 2^126.
    21 FACTOR factor: f32,
    /// 1 over it: exact, as it is a power of two.
    22 INVERSE inverse: f32,
}

impl ScaleState {
    /// A scale that grows to twice its size in 2000 finite steps, and to half of it where one overflows.
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            growth_interval: 2000,
            dynamic: 1,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            hysteresis: 1,
            hysteresis_tracker: 1,
            max_scale: f32::INFINITY,
            ..Self::default()
        }
    }
}
