//! A loss scale and how it moves, as words that a device has too: one rule for the host and for CubeCL's kernels. Knows no tensors.

#[cfg(feature = "cubecl")]
use cubecl::prelude::*;

use crate::status::{FIELDS, MAX_ABS};
use crate::{step::*, words::words};

const INFINITY: u32 = f32::INFINITY.to_bits();
/// Of 2^-126. Scales below have no inverse in f32, and are not gone to; GPUs flush what is less to zero.
const SMALLEST: u32 = 1 << 23;
/// Of 2^126, which has an inverse that is normal.
const LARGEST: u32 = 253 << 23;

words! {
    /// A loss scale, how it moves, and what steps have shown. Host values; the device has them as 32-bit words.
    ///
    /// The rule is that of PyTorch's `GradScaler`, with hysteresis (Megatron), bounds, a warm-up, and an interval that follows the
    /// run. All scales, factors and bounds are powers of two.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    ScaleState, WORDS, word:
    /// The loss scale, the warm-up's cap not counted.
    0 SCALE scale: f32,
    /// Finite steps since the scale last moved.
    1 TRACKER growth_tracker: u32,
    /// Overflows until the scale backs off, this one included.
    2 TOLERATED hysteresis_tracker: u32,
    /// Finite steps after which the scale grows.
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

    /// The scale that counts: no larger than the warm-up allows.
    pub fn capped(&self) -> f32 {
        capped(&self.words())
    }

    /// Counts a step as [`DeviceScale::advance`](crate::DeviceScale::advance) does, for a scale that moves by other numbers than this one's, and leaves
    /// the scale as it is. Returns whether it is to back off, if the step was skipped, or to grow.
    pub fn count(&mut self, skipped: bool) -> bool {
        self.become_next(|state, next| count(state, next, skipped))
    }

    /// Counts a growth that has raised such a scale.
    pub fn count_growth(&mut self) {
        self.become_next(count_growth);
    }

    /// Becomes what the rule makes of its words.
    fn become_next<R>(&mut self, rule: impl FnOnce(&[u32], &mut [u32]) -> R) -> R {
        let state = self.words();
        let mut next = state;
        let result = rule(&state, &mut next);
        *self = Self::of(&next);
        result
    }
}

/// Moves a scale after a step of which these rows were found, as a kernel does where there is one. `border` has the rows of what came to the border
/// and of what left half precision again, as far as there are any.
#[cfg(feature = "flex")]
pub(crate) fn advance_on_host(
    state: &[u32],
    rows: &[f32],
    border: &[Vec<f32>],
    largest: f32,
) -> Vec<u32> {
    let any = |rows: &[f32]| (0..rows.len() / FIELDS).any(|row| is_bad(rows, row));
    let all_zero = (0..rows.len() / FIELDS).all(|row| is_zero(rows, row));
    let spares = border.first().is_some_and(|arrived| {
        let is_given = border.get(1).is_none_or(|given| any(given));
        spares(arrived, is_given, state, largest)
    });
    let mut moved = state.to_vec();
    advance(state, &mut moved, any(rows), all_zero, spares);
    moved
}

/// Decides the rows of an update, as a kernel does where there is one, and clips by the factors if there are any.
#[cfg(feature = "flex")]
pub(crate) fn decide_on_host(
    undecided: &[u32],
    state: &[u32],
    factors: Option<&[f32]>,
    rule: UpdateRule,
) -> Vec<f32> {
    let rows = undecided.chunks_exact(UNDECIDED).flat_map(|words| {
        let mut row: [f32; ROW] = std::array::from_fn(|i| f32::from_bits(words[i]));
        decide(&mut row, 0, state, words[ROW], rule);
        row[column::SCALE] *= factors.map_or(1.0, |factors| factors[words[ROW + 1] as usize]);
        row
    });
    rows.collect()
}

/// Whether values of the tensor that a row of a status is of are not finite, before scaling or after.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn is_bad(rows: &[f32], row: usize) -> bool {
    let at = row * FIELDS;
    rows[at + 2] + rows[at + 3] + rows[at + 4] + rows[at + 5] > 0.0f32
}

/// Whether no value of the tensor that a row of a status is of is both finite and other than zero.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn is_zero(rows: &[f32], row: usize) -> bool {
    // The number itself may be too small for a GPU's comparison.
    rows[row * FIELDS + MAX_ABS].to_bits() == 0u32
}

/// Whether no scale is the cause of values that are not finite: they were so where they `arrived` at the border, in the first row; or nothing
/// overflowed there, and half precision has `given` none.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn spares(arrived: &[f32], given: bool, state: &[u32], largest: f32) -> bool {
    let largest = largest * f32::from_bits(state[word::INVERSE]);
    let overflows = arrived[MAX_ABS] >= largest;
    is_bad(arrived, 0usize) || !(overflows || given)
}

/// Counts a step, which may have been skipped, and moves the scale, unless a skip `spares` it. Gradients that are all zero move none whose interval
/// follows the run; PyTorch counts them. `next` is the state before.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn advance(state: &[u32], next: &mut [u32], skipped: bool, is_zero: bool, spares: bool) {
    next[word::STEPS] = state[word::STEPS] + 1u32;
    next[word::FOUND] = 0u32;
    if skipped {
        next[word::SKIPPED] = state[word::SKIPPED] + 1u32;
        // 1.0.
        next[word::FOUND] = 0x3F80_0000u32;
    }
    let is_nothing = !skipped && is_zero && state[word::LONGEST] > 0u32;
    if state[word::DYNAMIC] > 0u32 && !is_nothing && !(skipped && spares) {
        let moves = count(state, next, skipped);
        if moves && skipped {
            let lowered = capped(state) * f32::from_bits(state[word::BACKOFF]);
            next[word::SCALE] = lowered.max(f32::from_bits(state[word::MIN])).to_bits();
        } else if moves {
            grow(state, next);
        }
        if capped(&*next).to_bits() < SMALLEST {
            next[word::SCALE] = state[word::SCALE];
        }
        write_factor(next);
    }
}

/// Counts a step, which may have been skipped. Whether the scale is to back off then, or to grow after it.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn count(state: &[u32], next: &mut [u32], skipped: bool) -> bool {
    // Below the largest number, or the sum is none.
    let warmed = state[word::WARMED].min(0xFFFF_FFFEu32) + 1u32;
    next[word::WARMED] = warmed.min(state[word::WARMUP]);
    let tracker = state[word::TRACKER].min(0xFFFF_FFFEu32) + 1u32;
    let is_due = tracker >= state[word::INTERVAL];
    let is_last = state[word::TOLERATED] <= 1u32;
    next[word::TRACKER] = select(skipped || is_due, 0u32, tracker);
    if skipped {
        next[word::GROWTHS] = 0u32;
        let longest = state[word::LONGEST];
        if longest > 0u32 {
            let interval = state[word::INTERVAL].min(longest);
            next[word::INTERVAL] = interval + interval.min(longest - interval);
        }
        if !is_last {
            next[word::TOLERATED] = state[word::TOLERATED] - 1u32;
        }
    } else if is_due || state[word::CONSECUTIVE] > 0u32 {
        next[word::TOLERATED] = state[word::HYSTERESIS];
    }
    (skipped && is_last) || (is_due && !skipped)
}

/// Writes the factor that goes with the scale, and its inverse: of a power of two, by its exponent.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn write_factor(next: &mut [u32]) {
    // Magnitudes of positive floats are in the order of their bits.
    let bits = capped(&*next).to_bits();
    let factor = bits.clamp(SMALLEST, LARGEST);
    next[word::FACTOR] = factor;
    next[word::INVERSE] = (254u32 << 23u32) - factor;
}

/// The scale that counts: no larger than the warm-up allows.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn capped(state: &[u32]) -> f32 {
    let mut capped = f32::from_bits(state[word::SCALE]);
    let warmed = state[word::WARMED];
    if warmed < state[word::WARMUP] {
        let doubled = state[word::LEVELS] * warmed / state[word::WARMUP];
        let power = f32::from_bits((doubled + 127u32) << 23u32);
        capped = capped.min(f32::from_bits(state[word::FIRST]) * power);
    }
    capped
}

#[cfg_attr(feature = "cubecl", cube)]
fn grow(state: &[u32], next: &mut [u32]) {
    let grown = f32::from_bits(state[word::SCALE]) * f32::from_bits(state[word::GROWTH]);
    // An infinite one has no less bits than an infinite bound: it stays then.
    let bits = grown.to_bits().min(state[word::MAX]);
    if bits < INFINITY {
        next[word::SCALE] = bits;
        if bits > state[word::SCALE] {
            count_growth(state, next);
        }
    }
}

/// Counts a growth that has raised the scale: an interval that follows the run is halved by two without an overflow between.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn count_growth(state: &[u32], next: &mut [u32]) {
    if state[word::LONGEST] > 0u32 {
        let growths = state[word::GROWTHS] + 1u32;
        next[word::GROWTHS] = growths % 2u32;
        if growths >= 2u32 {
            let halved = state[word::INTERVAL] / 2u32;
            next[word::INTERVAL] = halved.max(state[word::SHORTEST]);
        }
    }
}

/// Decides the row of an update that begins at `at`: as [`DeviceScale::decide`](crate::DeviceScale::decide) says.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn decide(rows: &mut [f32], at: usize, state: &[u32], time: u32, rule: UpdateRule) {
    let time = time - state[word::SKIPPED].min(time);
    if state[word::FOUND] > 0u32 {
        rows[at + column::TAKEN] = 0.0f32;
    }
    if time != 1u32 {
        rows[at + column::FRESH] = 0.0f32;
    }
    let first = 1.0f32 - power(rows[at + column::BETA_1], time);
    let second = 1.0f32 - power(rows[at + column::BETA_2], time);
    match rule {
        UpdateRule::Sgd { .. } => {}
        UpdateRule::Adam { .. } => {
            let root = second.sqrt();
            rows[at + column::CORRECTION_1] = root / first;
            rows[at + column::EPSILON] *= root;
        }
        UpdateRule::AdamW { .. } => {
            rows[at + column::CORRECTION_1] = first;
            rows[at + column::CORRECTION_2] = second;
        }
    }
}

/// By squares.
#[cfg_attr(feature = "cubecl", cube)]
fn power(base: f32, exponent: u32) -> f32 {
    let mut power = 1.0f32;
    let mut square = base;
    let mut left = exponent;
    while left > 0u32 {
        if left % 2u32 == 1u32 {
            power *= square;
        }
        square *= square;
        left /= 2u32;
    }
    power
}
