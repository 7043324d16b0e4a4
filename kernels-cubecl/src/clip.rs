//! Clipping by norms that only the device knows.
//!
//! The factors are found in whole numbers, and by one addition: devices divide and take roots with errors of their own, and a host
//! that looks at the norms must find the very factor that the device has taken. They are within 2^-21 of what f64 gives.
//!
//! ```
//! use burn_amp_kernels::{NormClip, clip_factors};
//!
//! // Norms of 3 and 4 are one of 5 together.
//! let all = NormClip::Joint { group: 0, threshold: 1.0 };
//! let factors = clip_factors(&[all, all, NormClip::Own(8.0)], &[3.0, 4.0, 16.0]);
//! assert!((factors[0] - 0.2).abs() < 1e-6 && factors[0] == factors[1]);
//! assert_eq!(factors[2], 0.5);
//! ```

use burn::backend::Dispatch;
use burn::tensor::{Device, Tensor};
#[cfg(feature = "cubecl")]
use cubecl::prelude::*;
use std::collections::HashMap;

use crate::ops::{BufferAddress, first};
use crate::{Job, Status, status::FIELDS, words::upload};

/// How one gradient is clipped by a norm. Thresholds are above 0; an infinite one never clips, and one below 2^-126 is taken as that.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum NormClip {
    /// Not at all.
    #[default]
    Not,
    /// By its own L2 norm: multiplied by `threshold / norm` where that is below 1.
    Own(f32),
    /// By the norm of all gradients of the group, as one vector: multiplied by `threshold / (norm + 1e-6)` where that is below 1, as by
    /// `torch.nn.utils.clip_grad_norm_`.
    Joint {
        /// The number of the group, up to 65,535. All of it have one threshold.
        group: u16,
        /// The largest norm.
        threshold: f32,
    },
}

/// Words of a gradient in a table: whose norm counts, and the bits of the threshold.
///
/// Behind those of all gradients stand the members of the groups, one group after another, in as many words as there are gradients; and then
/// where each group ends among them.
const WORDS: usize = 2;

/// The gradient's own norm; 0 is nobody's.
const OWN: u32 = 1;
/// That of a group.
const JOINT: u32 = 2;

/// What `torch.nn.utils.clip_grad_norm_` adds to the norm.
const EPSILON: f32 = 1e-6;

/// 2^24: mantissas are below, and not below half of it.
const TOP: u32 = 1 << 24;
const HALF: u32 = TOP / 2;

/// What the exponent of a norm, a product of two floats, is above that of the same number as a float.
const SHIFT: u32 = 127;

/// The words of a table.
fn words(clips: &[NormClip]) -> Vec<u32> {
    let (mut table, mut numbers) = (Vec::new(), HashMap::new());
    let mut members: Vec<Vec<u32>> = Vec::new();
    for (gradient, clip) in (0..).zip(clips) {
        let (kind, threshold) = match *clip {
            NormClip::Own(threshold) if threshold.is_finite() => (OWN, threshold),
            NormClip::Joint { group, threshold } if threshold.is_finite() => {
                let number = *numbers.entry(group).or_insert(members.len());
                members.resize(members.len().max(number + 1), Vec::new());
                members[number].push(gradient);
                (JOINT, threshold)
            }
            _ => (0, 0.0),
        };
        table.extend([kind, threshold.max(f32::MIN_POSITIVE).to_bits()]);
    }
    let mut end = 0;
    let ends = members.iter().map(|own| {
        end += own.len() as u32;
        end
    });
    let ends: Vec<u32> = ends.collect();
    table.extend(members.into_iter().flatten());
    table.resize((WORDS + 1) * clips.len(), 0);
    table.extend(ends);
    table
}

/// How the gradients of a list are clipped, on the device: uploaded once for many steps.
#[derive(Clone, Debug)]
pub struct ClipTable(pub(crate) Tensor<1>);

impl ClipTable {
    /// Of each gradient, in the order of the list that is measured: at most 65,536, so that the sum of the squares is in 64 bits. Does not
    /// wait for the device.
    pub fn upload(clips: &[NormClip], device: &Device) -> Self {
        let words = words(clips);
        let length = [words.len()];
        Self(upload(words, length, device))
    }

    /// What the gradients of a status are multiplied by: of each of the table, in f32. None of an empty list. Does not wait for the device.
    pub fn factors(&self, status: &Status) -> Option<Tensor<1>> {
        let tensors = [self.0.clone(), status.rows.clone()?].map(Tensor::into_dispatch);
        Some(Tensor::from_dispatch(first::<Dispatch>(tensors, Job::Clip)))
    }

    /// Where its words are: see [`BufferAddress`].
    pub fn address(&self) -> Option<BufferAddress> {
        BufferAddress::of(self.0.clone().into_dispatch())
    }
}

/// What gradients with these norms are multiplied by: the very [factors](ClipTable::factors) that a device finds.
pub fn clip_factors(clips: &[NormClip], norms: &[f64]) -> Vec<f32> {
    factors(&words(clips), norms)
}

/// As [`clip_factors`], by the words of a table.
pub(crate) fn factors(table: &[u32], norms: &[f64]) -> Vec<f32> {
    let rows: Vec<u32> = norms.iter().flat_map(|norm| row_of(*norm)).collect();
    let own = |gradient| own_factor(table, &rows, gradient);
    let mut factors: Vec<f32> = (0..norms.len()).map(own).collect();
    for group in 0..groups(table.len(), norms.len()) {
        let (begin, end) = members(table, norms.len(), group);
        let members = table[begin..end].iter().map(|member| *member as usize);
        let norms = || members.clone().map(|member| norm_of(&rows, member));
        let largest = norms().map(|(exponent, _)| exponent).max().unwrap_or(0);
        let mut sum = [0; 3];
        norms().for_each(|norm| add_square(&mut sum, 0, norm, largest));
        let joint = joint_factor(table, begin, largest, &sum);
        members.for_each(|member| factors[member] = joint);
    }
    factors
}

/// The groups of a table of so many words.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn groups(words: usize, gradients: usize) -> usize {
    words - (WORDS + 1) * gradients
}

/// The words of a norm's row, to the nearest: what a kernel has found in f32 is exact. Norms below 2^-252 are 0.
fn row_of(norm: f64) -> [u32; FIELDS] {
    let bits = norm.to_bits() + (1 << 28);
    let exponent = ((bits >> 52) as u32 + 2 * SHIFT).saturating_sub(1023);
    // A norm beyond what two floats can tell has a factor of 0 in any case.
    let unit = exponent.saturating_sub(127).clamp(1, 254);
    let exponent = exponent.saturating_sub(unit).min(254);
    let mut row = [0; FIELDS];
    row[9] = unit << 23;
    row[10] = (exponent << 23) | ((bits >> 29) as u32 % HALF);
    row
}

/// Whether a gradient is clipped by the norm of a group. As what follows, one for the host and for CubeCL's kernels.
#[cfg(feature = "cubecl")]
#[cube]
pub(crate) fn is_joint(table: &[u32], gradient: usize) -> bool {
    table[gradient * WORDS] == JOINT
}

/// What a gradient of no group is multiplied by: of the table, and of the words of all gradients' rows.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn own_factor(table: &[u32], rows: &[u32], gradient: usize) -> f32 {
    let mut factor = 1.0f32;
    if table[gradient * WORDS] == OWN {
        let (exponent, mantissa) = norm_of(rows, gradient);
        factor = quotient(table[gradient * WORDS + 1], exponent, mantissa);
    }
    factor
}

/// Where the members of a group begin and end in the table.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn members(table: &[u32], gradients: usize, group: usize) -> (usize, usize) {
    let first = gradients * WORDS;
    let ends = gradients * (WORDS + 1);
    let mut begin = first;
    if group > 0 {
        begin = first + table[ends + group - 1] as usize;
    }
    (begin, first + table[ends + group] as usize)
}

/// Adds the square of a norm, in units of the largest exponent, to the three words of 24 bits from `at` on.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn add_square(sums: &mut [u32], at: usize, norm: (u32, u32), largest: u32) {
    let (exponent, mantissa) = norm;
    let shift = (largest - exponent).min(25u32);
    let value = (mantissa + ((1u32 << shift) >> 1u32)) >> shift;
    let upper = value >> 12u32;
    let lower = value % 4096u32;
    let cross = 2u32 * upper * lower;
    let middle = upper * upper + (cross >> 12u32);
    let low = lower * lower + ((cross % 4096u32) << 12u32);
    add_words(sums, at, (0u32, middle, low));
}

/// Adds the words of a sum, the highest first.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn add_words(sums: &mut [u32], at: usize, words: (u32, u32, u32)) {
    let low = sums[at + 2] + words.2;
    let middle = sums[at + 1] + words.1 + (low >> 24u32);
    sums[at] += words.0 + (middle >> 24u32);
    sums[at + 1] = middle % TOP;
    sums[at + 2] = low % TOP;
}

/// The factor of a group whose members begin here in the table: of the first three words, the sum of the squares.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn joint_factor(table: &[u32], begin: usize, largest: u32, sum: &[u32]) -> f32 {
    let (pairs, mut root) = root_of(sum[0], sum[1], sum[2]);
    let mut exponent = largest + pairs;
    if exponent < SHIFT + 138u32 {
        let mut norm = 0.0f32;
        if exponent > SHIFT {
            norm = f32::from_bits(((exponent - SHIFT) << 23u32) | (root % HALF));
        }
        let bits = (norm + EPSILON).to_bits();
        exponent = (bits >> 23u32) + SHIFT;
        root = bits % HALF + HALF;
    }
    quotient(table[table[begin] as usize * WORDS + 1], exponent, root)
}

/// The first 24 bits of the root of a number of three words, found bit by bit, and how many bits follow them.
#[cfg_attr(feature = "cubecl", cube)]
fn root_of(high: u32, middle: u32, low: u32) -> (u32, u32) {
    let mut root = 0u32;
    let mut rest = 0u32;
    let mut pairs = 36u32;
    while pairs > 0u32 && root < HALF {
        pairs -= 1u32;
        let mut word = low;
        if pairs >= 24u32 {
            word = high;
        } else if pairs >= 12u32 {
            word = middle;
        }
        rest = rest * 4u32 + (word >> (2u32 * (pairs % 12u32))) % 4u32;
        root *= 2u32;
        if rest > 2u32 * root {
            rest -= 2u32 * root + 1u32;
            root += 1u32;
        }
    }
    (pairs, root)
}

/// Exponent and mantissa of a norm, which is the product of a power of two and a float; zeros if the norm is.
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn norm_of(rows: &[u32], row: usize) -> (u32, u32) {
    let bits = rows[row * FIELDS + 10];
    let mut exponent = bits >> 23u32;
    let mut mantissa = 0u32;
    if exponent > 0u32 {
        exponent += rows[row * FIELDS + 9] >> 23u32;
        mantissa = bits % HALF + HALF;
    }
    (exponent, mantissa)
}

/// A threshold over a norm, as the nearest f32, if that is below 1.
#[cfg_attr(feature = "cubecl", cube)]
fn quotient(threshold: u32, exponent: u32, divisor: u32) -> f32 {
    let own = (threshold >> 23u32) + SHIFT;
    let mantissa = threshold % HALF + HALF;
    let mut factor = 1.0f32;
    if own < exponent || (own == exponent && mantissa < divisor) {
        let mut below = 0u32;
        if mantissa < divisor {
            below = 1u32;
        }
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
            // A quotient of 2^24 carries into the exponent.
            let bits = ((own + 126u32 - exponent - below) << 23u32) + quotient;
            factor = f32::from_bits(bits);
        }
    }
    factor
}
