//! The next loss scale: one unit.

use cubecl::prelude::*;

use crate::{
    schedule::{LEAST, MOST, word},
    status::FIELDS,
    update::{ROW, UpdateRule},
};

/// Counts a step with gradients of these rows, and moves the scale: as `ScaleState::advance`.
#[cube(launch_unchecked)]
#[allow(clippy::manual_memcpy, clippy::len_zero)] // what CubeCL has
pub fn advance(state: &[u32], rows: &[f32], crossing: &Sequence<Box<[f32]>>, next: &mut [u32]) {
    let mut bad = 0.0f32;
    let mut row = 0usize;
    while row < rows.len() {
        bad += not_finite(rows, row);
        row += FIELDS;
    }
    let skipped = bad > 0.0f32;
    let mut before = 0.0f32;
    if comptime!(crossing.len() > 0) {
        before = not_finite(&crossing[0], 0usize);
    }
    for at in 0..state.len() {
        next[at] = state[at];
    }
    next[word::STEPS] = state[word::STEPS] + 1u32;
    next[word::SKIPPED] = state[word::SKIPPED] + select(skipped, 1u32, 0u32);
    next[word::FOUND] = select(skipped, 1u32, 0u32);
    if state[word::DYNAMIC] > 0u32 && !(skipped && before > 0.0f32) {
        let before = state[word::SCALE];
        if skipped {
            overflow(state, next);
        } else {
            clean(state, next);
        }
        let warmed = min(state[word::WARMED] + 1u32, state[word::WARMUP]);
        next[word::WARMED] = warmed;
        // Magnitudes of positive floats are in the order of their bits.
        if u32::reinterpret(capped(&*next, warmed)) < comptime!(LEAST.to_bits()) {
            next[word::SCALE] = before;
        }
        let factor = u32::reinterpret(capped(&*next, warmed));
        let factor = min(factor, comptime!(MOST.to_bits()));
        next[word::FACTOR] = factor;
        // Of a power of two, by its exponent.
        next[word::INVERSE] = comptime!(254u32 << 23) - factor;
    }
}

/// Values of a row's tensor that are not finite, before or after scaling.
#[cube]
fn not_finite(rows: &[f32], row: usize) -> f32 {
    rows[row + 2] + rows[row + 3] + rows[row + 4] + rows[row + 5]
}

/// The scale of a state in this step of the warm-up.
#[cube]
fn capped(state: &[u32], warmed: u32) -> f32 {
    let scale = f32::reinterpret(state[word::SCALE]);
    let mut capped = scale;
    if warmed < state[word::WARMUP] {
        let doubled = state[word::LEVELS] * warmed / state[word::WARMUP];
        let cap =
            f32::reinterpret(state[word::FIRST]) * f32::reinterpret((doubled + 127u32) << 23u32);
        capped = min(scale, cap);
    }
    capped
}

#[cube]
fn overflow(state: &[u32], next: &mut [u32]) {
    next[word::TRACKER] = 0u32;
    next[word::GROWTHS] = 0u32;
    let longest = state[word::LONGEST];
    if longest > 0u32 {
        let interval = state[word::INTERVAL];
        next[word::INTERVAL] = select(interval > longest / 2u32, longest, 2u32 * interval);
    }
    if state[word::TOLERATED] > 1u32 {
        next[word::TOLERATED] = state[word::TOLERATED] - 1u32;
    } else {
        let lowered = capped(state, state[word::WARMED]) * f32::reinterpret(state[word::BACKOFF]);
        let scale = max(lowered, f32::reinterpret(state[word::MIN]));
        next[word::SCALE] = u32::reinterpret(scale);
    }
}

#[cube]
fn clean(state: &[u32], next: &mut [u32]) {
    // Below the interval, or the step is due.
    let tracker = min(state[word::TRACKER], 0xFFFF_FFFEu32) + 1u32;
    let is_due = tracker >= state[word::INTERVAL];
    next[word::TRACKER] = select(is_due, 0u32, tracker);
    if is_due || state[word::CONSECUTIVE] > 0u32 {
        next[word::TOLERATED] = state[word::HYSTERESIS];
    }
    if is_due {
        let before = state[word::SCALE];
        let grown = f32::reinterpret(before) * f32::reinterpret(state[word::GROWTH]);
        // An infinite one has no less bits than an infinite bound: it stays then.
        let bits = min(u32::reinterpret(grown), state[word::MAX]);
        let scale = select(bits >= 0x7F80_0000u32, before, bits);
        next[word::SCALE] = scale;
        if state[word::LONGEST] > 0u32 && scale > before {
            let growths = state[word::GROWTHS] + 1u32;
            next[word::GROWTHS] = growths % 2u32;
            if growths >= 2u32 {
                next[word::INTERVAL] = max(state[word::INTERVAL] / 2u32, state[word::SHORTEST]);
            }
        }
    }
}

/// Decides rows of an update, a unit for each: as `ScaleState::decide`.
#[cube(launch_unchecked)]
#[allow(clippy::manual_memcpy)]
pub fn decide(undecided: &[u32], state: &[u32], rows: &mut [f32], #[comptime] rule: UpdateRule) {
    let (from, to) = (ABSOLUTE_POS * comptime!(ROW + 1), ABSOLUTE_POS * ROW);
    if to < rows.len() {
        for at in 0..ROW {
            rows[to + at] = f32::reinterpret(undecided[from + at]);
        }
        let time = undecided[from + ROW] - state[word::SKIPPED];
        if state[word::FOUND] > 0u32 {
            rows[to] = 0.0f32;
        }
        if time != 1u32 {
            rows[to + 3] = 0.0f32;
        }
        if comptime!(!matches!(rule, UpdateRule::Sgd { .. })) {
            let first = 1.0f32 - power_of(rows[to + 5], time);
            let second = 1.0f32 - power_of(rows[to + 7], time);
            if comptime!(matches!(rule, UpdateRule::Adam { .. })) {
                let root = second.sqrt();
                rows[to + 9] = root / first;
                rows[to + 11] *= root;
            } else {
                rows[to + 9] = first;
                rows[to + 10] = second;
            }
        }
    }
}

/// By squares, in the order in which the host multiplies.
#[cube]
fn power_of(base: f32, exponent: u32) -> f32 {
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
