//! What a gradient is multiplied by so that a norm is no larger than a threshold: as `clip.rs` finds it on the host, in whole numbers.

use cubecl::prelude::*;

use crate::{
    clip::{EPSILON, OWN, SHIFT, TOP, WORDS},
    status::FIELDS,
};

/// By a table of the gradients and the rows of their status.
#[cube]
pub fn clip_factor(table: &[u32], rows: &[u32], gradient: usize) -> f32 {
    let kind = table[gradient * WORDS];
    let mut factor = 1.0f32;
    if kind > 0u32 {
        let count = table.len() / WORDS;
        let mut largest = 0u32;
        for row in 0..count {
            if belongs(table, row, kind, gradient) {
                largest = max(largest, exponent_of(rows, row));
            }
        }
        let mut high = 0u32;
        let mut low = 0u32;
        for row in 0..count {
            if belongs(table, row, kind, gradient) {
                let shift = min(largest - exponent_of(rows, row), 25u32);
                let rounded = mantissa_of(rows, row) + ((1u32 << shift) >> 1u32);
                let value = rounded >> shift;
                let added = low + square_low(value);
                high += square_high(value) + select(added < low, 1u32, 0u32);
                low = added;
            }
        }
        let root = root_of(high, low);
        let mut excess = 0u32;
        while (root >> excess) >= TOP {
            excess += 1u32;
        }
        let mut mantissa = (root + ((1u32 << excess) >> 1u32)) >> excess;
        if mantissa == TOP {
            mantissa /= 2u32;
            excess += 1u32;
        }
        let mut exponent = largest + excess;
        if kind > OWN && exponent < comptime!(SHIFT + 138) {
            let mut norm = 0.0f32;
            if exponent > SHIFT {
                let bits = ((exponent - SHIFT) << 23u32) | (mantissa % comptime!(TOP / 2));
                norm = f32::reinterpret(bits);
            }
            let bits = u32::reinterpret(norm + EPSILON);
            exponent = (bits >> 23u32) + SHIFT;
            mantissa = bits % comptime!(TOP / 2) + comptime!(TOP / 2);
        }
        factor = quotient(table[gradient * WORDS + 1], exponent, mantissa);
    }
    factor
}

/// Whether a gradient's norm is a part of the one that counts.
#[cube]
fn belongs(table: &[u32], row: usize, kind: u32, gradient: usize) -> bool {
    table[row * WORDS] == kind && (kind > OWN || row == gradient)
}

/// Of a norm, which is the product of a power of two and a float; 0 if the norm is.
#[cube]
fn exponent_of(rows: &[u32], row: usize) -> u32 {
    let unit = rows[row * FIELDS + 9] >> 23u32;
    let norm = rows[row * FIELDS + 10] >> 23u32;
    select(norm > 0u32, unit + norm, 0u32)
}

#[cube]
fn mantissa_of(rows: &[u32], row: usize) -> u32 {
    let norm = rows[row * FIELDS + 10];
    let mantissa = norm % comptime!(TOP / 2) + comptime!(TOP / 2);
    select(norm >> 23u32 > 0u32, mantissa, 0u32)
}

/// The words of a square, by halves.
#[cube]
fn square_high(value: u32) -> u32 {
    let high = value >> 16u32;
    let cross = high * (value & 0xFFFFu32);
    let low = (value & 0xFFFFu32) * (value & 0xFFFFu32);
    let sum = low + (cross << 17u32);
    let carry = select(sum < low, 1u32, 0u32);
    high * high + (cross >> 15u32) + carry
}

#[cube]
fn square_low(value: u32) -> u32 {
    value * value
}

/// The root of a sum in two words, to the nearest: it has a remainder of at most twice the root.
#[cube]
fn root_of(high: u32, low: u32) -> u32 {
    let mut root = 0u32;
    let mut bit = 0x8000_0000u32;
    while bit > 0u32 {
        let next = root | bit;
        let next_high = square_high(next);
        if next_high < high || (next_high == high && square_low(next) <= low) {
            root = next;
        }
        bit /= 2u32;
    }
    let square = square_low(root);
    let rest = low - square;
    let rest_high = high - square_high(root) - select(low < square, 1u32, 0u32);
    root + select(rest_high > 0u32 || rest > root, 1u32, 0u32)
}

/// A threshold over a norm, as the nearest f32, if that is below 1.
#[cube]
fn quotient(threshold: u32, exponent: u32, divisor: u32) -> f32 {
    let own = (threshold >> 23u32) + SHIFT;
    let mantissa = threshold % comptime!(TOP / 2) + comptime!(TOP / 2);
    let mut factor = 1.0f32;
    if own < exponent || (own == exponent && mantissa < divisor) {
        let below = select(mantissa < divisor, 1u32, 0u32);
        let mut rest = (mantissa << below) - divisor;
        let mut quotient = 1u32;
        for _ in 0..23u32 {
            rest *= 2u32;
            quotient *= 2u32;
            if rest >= divisor {
                rest -= divisor;
                quotient += 1u32;
            }
        }
        if 2u32 * rest + quotient % 2u32 > divisor {
            quotient += 1u32;
        }
        factor = 0.0f32;
        if own + 127u32 > exponent + below {
            let exponent = own + 127u32 - exponent - below;
            factor = f32::reinterpret(((exponent - 1u32) << 23u32) + quotient);
        }
    }
    factor
}
