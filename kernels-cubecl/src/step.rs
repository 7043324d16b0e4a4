//! The step of an optimizer, for one value: one formula for the host and for CubeCL's kernels.
//!
//! Each operation is Burn's own, in f32. On the host each is rounded: nothing here may be contracted to an FMA. Kernels' compilers may
//! contract a product and a sum (CUDA's do), and WGSL and SPIR-V allow division and square root some ulps: the last bits may differ from
//! those that Burn's kernels give.

#[cfg(feature = "cubecl")]
use cubecl::prelude::*;

use crate::update_row::*;

/// Of `values`, the first is the parameter, and the others are its states: before, and then after.
#[inline(always)]
#[cfg_attr(feature = "cubecl", cube)]
pub(crate) fn step(rule: UpdateRule, row: &[f32], gradient: f32, values: &mut [f32]) {
    let parameter = values[0];
    let scaled = gradient * row[column::SCALE];
    match rule {
        UpdateRule::Sgd { momentum, nesterov } => {
            let mut gradient = penalized(row, scaled, parameter);
            if momentum {
                let added = gradient * row[column::FACTOR_1];
                let velocity = added + values[1] * row[column::BETA_1];
                let velocity = select(row[column::FRESH] != 0.0f32, gradient, velocity);
                values[1] = velocity;
                if nesterov {
                    gradient += velocity * row[column::BETA_1];
                } else {
                    gradient = velocity;
                }
            }
            values[0] = parameter - gradient * row[column::LR];
        }
        UpdateRule::Adam { amsgrad } => {
            let gradient = penalized(row, scaled, parameter);
            let second = moments(row, gradient, values, amsgrad);
            let root = second.sqrt() + row[column::EPSILON];
            let delta = values[1] * row[column::CORRECTION_1] / root;
            values[0] = parameter - delta * row[column::LR];
        }
        UpdateRule::AdamW { amsgrad, cautious } => {
            let second = moments(row, scaled, values, amsgrad);
            let root = (second / row[column::CORRECTION_2]).sqrt() + row[column::EPSILON];
            let delta = values[1] / row[column::CORRECTION_1] / root;
            let mut decayed = parameter * row[column::DECAY];
            if cautious {
                let first = values[1];
                let grows = select(parameter >= 0.0f32, first < 0.0f32, first >= 0.0f32);
                let kept = grows || row[column::DECAY] == 0.0f32;
                decayed = select(kept, parameter, parameter - decayed);
            }
            values[0] = decayed - delta * row[column::LR];
        }
    }
}

/// The gradient with the penalty of the parameter.
#[inline(always)]
#[cfg_attr(feature = "cubecl", cube)]
fn penalized(row: &[f32], gradient: f32, parameter: f32) -> f32 {
    let decay = row[column::DECAY];
    select(decay != 0.0f32, parameter * decay + gradient, gradient)
}

/// Moves both moments, and gives the second one that counts.
#[inline(always)]
#[cfg_attr(feature = "cubecl", cube)]
fn moments(row: &[f32], gradient: f32, values: &mut [f32], amsgrad: bool) -> f32 {
    let fresh = row[column::FRESH] != 0.0f32;
    let added = gradient * row[column::FACTOR_1];
    values[1] = select(fresh, added, values[1] * row[column::BETA_1] + added);
    let added = gradient * gradient * row[column::FACTOR_2];
    let mut second = select(fresh, added, values[2] * row[column::BETA_2] + added);
    values[2] = second;
    if amsgrad {
        let largest = values[3];
        second = select(fresh || largest < second, second, largest);
        values[3] = second;
    }
    second
}

/// As CubeCL's.
#[cfg(not(feature = "cubecl"))]
fn select<T>(condition: bool, then: T, or_else: T) -> T {
    if condition { then } else { or_else }
}
