//! The rules of optimizers' steps, rows for them, and Burn's formulas on the host, with how far a device's results may be from them.

use std::{
    iter,
    ops::{Add, Div, Mul, Sub},
};

use burn::tensor::DType;
use burn_amp_kernels::{UpdateRow, UpdateRule};

use crate::{
    create::part,
    device::{is_cube, keeps_subnormals},
    number,
    random::Bits,
};

pub const SGD: UpdateRule = UpdateRule::Sgd {
    momentum: false,
    nesterov: false,
};
pub const ADAM: UpdateRule = UpdateRule::Adam { amsgrad: false };

pub fn momentum(nesterov: bool) -> UpdateRule {
    let momentum = true;
    UpdateRule::Sgd { momentum, nesterov }
}

pub fn rules() -> Vec<UpdateRule> {
    let of = |flag| {
        let adam_w = [false, true].map(|cautious| UpdateRule::AdamW {
            amsgrad: flag,
            cautious,
        });
        let others = [momentum(flag), UpdateRule::Adam { amsgrad: flag }];
        others.into_iter().chain(adam_w)
    };
    let flagged = [false, true].into_iter().flat_map(of);
    iter::once(SGD).chain(flagged).collect()
}

/// A row as an optimizer has it after some steps; others of other seeds.
pub fn row(rule: UpdateRule, seed: u64) -> UpdateRow {
    let mut bits = Bits(seed);
    let mut between = |low: f32, high: f32| low + part(&mut bits) * (high - low);
    let sometimes = |value: f32| if seed.is_multiple_of(3) { 0.0 } else { value };
    let (beta_1, beta_2) = (between(0.5, 0.95), between(0.9, 0.9999));
    let adam_w = matches!(rule, UpdateRule::AdamW { .. });
    UpdateRow {
        taken: 1.0,
        scale: between(0.001, 2.0),
        lr: between(1e-4, 0.5),
        fresh: f32::from(seed % 4 == 1),
        decay: match rule {
            UpdateRule::AdamW {
                cautious: false, ..
            } => 1.0 - sometimes(between(0.001, 0.1)),
            _ => sometimes(between(0.001, 0.1)),
        },
        beta_1,
        factor_1: 1.0 - beta_1,
        beta_2,
        factor_2: 1.0 - beta_2,
        correction_1: between(0.1, if adam_w { 1.0 } else { 10.0 }),
        correction_2: between(0.1, 1.0),
        epsilon: between(1e-8, 1e-3),
    }
}

/// A number on the host, and how far a device's may be from it: each operation rounds once on either side, if it is not
/// contracted with the next one, and WGSL grants 2.5 units in the last place to a division, and to a root what that makes of it.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    value: f32,
    error: f64,
}

/// Units in the last place by which an operation may differ.
const EXACT: f64 = 1.0;
const DIVISION: f64 = 3.0;

impl From<f32> for Number {
    fn from(value: f32) -> Self {
        Self { value, error: 0.0 }
    }
}

impl Add for Number {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let value = self.value + other.value;
        Self::rounded(value, self.error + other.error, EXACT)
    }
}

impl Sub for Number {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        let value = -other.value;
        self + Self { value, ..other }
    }
}

impl Mul<f32> for Number {
    type Output = Self;

    fn mul(self, factor: f32) -> Self {
        let error = self.error * f64::from(factor.abs());
        Self::rounded(self.value * factor, error, EXACT)
    }
}

impl Div for Number {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        let error = self.error + f64::from(value.abs()) * other.error;
        Self::rounded(value, error / f64::from(other.value.abs()), DIVISION)
    }
}

impl Number {
    fn rounded(value: f32, error: f64, units: f64) -> Self {
        let magnitude = value.abs();
        let unit = f64::from(magnitude.next_up()) - f64::from(magnitude);
        let error = error + units * unit;
        Self { value, error }
    }

    fn squared(self) -> Self {
        let error = 2.0 * f64::from(self.value.abs()) * self.error;
        Self::rounded(self.value * self.value, error, EXACT)
    }

    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        Self::rounded(value, self.error / f64::from(value), DIVISION)
    }

    /// Whether a device may have this for it.
    pub fn is(self, found: f64) -> bool {
        if !is_cube() {
            return number::same(found, self.value.into());
        }
        let flushed = match keeps_subnormals(DType::F32) {
            true => 0.0,
            false => f64::from(f32::MIN_POSITIVE),
        };
        (found - f64::from(self.value)).abs() <= self.error + flushed
    }
}

/// One value's step: the parameter in f32 and the states.
pub fn step(rule: UpdateRule, row: UpdateRow, g: f32, p: f32, states: &[f32]) -> Vec<Number> {
    let (g, p) = (Number::from(g) * row.scale, Number::from(p));
    let fresh = row.fresh == 1.0;
    let penalized = |g| match row.decay == 0.0 {
        true => g,
        false => p * row.decay + g,
    };
    let moments = |g: Number| {
        let (first, second) = (g * row.factor_1, g.squared() * row.factor_2);
        match fresh {
            true => (first, second),
            false => (
                Number::from(states[0]) * row.beta_1 + first,
                Number::from(states[1]) * row.beta_2 + second,
            ),
        }
    };
    let epsilon = Number::from(row.epsilon);
    match rule {
        UpdateRule::Sgd { momentum, nesterov } => {
            let g = penalized(g);
            if !momentum {
                return vec![p - g * row.lr];
            }
            let v = match fresh {
                true => g,
                false => g * row.factor_1 + Number::from(states[0]) * row.beta_1,
            };
            let g = if nesterov { v * row.beta_1 + g } else { v };
            vec![p - g * row.lr, v]
        }
        UpdateRule::Adam { amsgrad } | UpdateRule::AdamW { amsgrad, .. } => {
            let is_adam_w = matches!(rule, UpdateRule::AdamW { .. });
            let (m, v) = moments(if is_adam_w { g } else { penalized(g) });
            let u = match !amsgrad || fresh || states[2] < v.value {
                true => v,
                false => states[2].into(),
            };
            let decayed = match rule {
                UpdateRule::AdamW { cautious: true, .. } => {
                    let agree = (p.value >= 0.0) == (m.value >= 0.0);
                    let decays = agree && row.decay != 0.0;
                    if decays { p - p * row.decay } else { p }
                }
                UpdateRule::AdamW { .. } => p * row.decay,
                _ => p,
            };
            let delta = match is_adam_w {
                true => {
                    let root = (u / row.correction_2.into()).sqrt();
                    m / row.correction_1.into() / (root + epsilon)
                }
                false => m * row.correction_1 / (u.sqrt() + epsilon),
            };
            let last = amsgrad.then_some(u);
            [decayed - delta * row.lr, m, v]
                .into_iter()
                .chain(last)
                .collect()
        }
    }
}
