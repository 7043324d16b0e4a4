//! The rules of optimizers' steps, rows for them, and Burn's formulas on the host, with how far a device's results may be from them.

use burn::tensor::DType;
use burn_amp_kernels::{UpdateRow, UpdateRule};

use crate::device::{is_cube, keeps_subnormals};
use crate::{create::part, number, random::Bits};

pub const SGD: UpdateRule = UpdateRule::Sgd {
    momentum: false,
    nesterov: false,
};
pub const ADAM: UpdateRule = UpdateRule::Adam { amsgrad: false };

pub fn momentum(nesterov: bool) -> UpdateRule {
    let momentum = true;
    UpdateRule::Sgd { momentum, nesterov }
}

pub fn adam_w(amsgrad: bool, cautious: bool) -> UpdateRule {
    UpdateRule::AdamW { amsgrad, cautious }
}

pub fn rules() -> Vec<UpdateRule> {
    let mut rules = vec![SGD];
    for flag in [false, true] {
        rules.extend([momentum(flag), UpdateRule::Adam { amsgrad: flag }]);
        rules.extend([adam_w(flag, false), adam_w(flag, true)]);
    }
    rules
}

/// A row as an optimizer has it after some steps; others of other seeds.
pub fn row(rule: UpdateRule, seed: u64) -> UpdateRow {
    let mut bits = Bits(seed);
    let mut between = |low: f32, high: f32| low + part(&mut bits) * (high - low);
    let sometimes = |value: f32| if seed.is_multiple_of(3) { 0.0 } else { value };
    let (beta_1, beta_2) = (between(0.5, 0.95), between(0.9, 0.9999));
    let is_factor = rule == adam_w(false, false) || rule == adam_w(true, false);
    let adam_w = matches!(rule, UpdateRule::AdamW { .. });
    UpdateRow {
        taken: 1.0,
        scale: between(0.001, 2.0),
        lr: between(1e-4, 0.5),
        fresh: f32::from(seed % 4 == 1),
        decay: match is_factor {
            true => 1.0 - sometimes(between(0.001, 0.1)),
            false => sometimes(between(0.001, 0.1)),
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

impl Number {
    /// As it is, or after an operation on numbers with errors that come to this one.
    fn new(value: f32, error: f64, units: f64) -> Self {
        let magnitude = value.abs();
        let unit = f64::from(magnitude.next_up()) - f64::from(magnitude);
        let error = error + units * unit;
        Self { value, error }
    }

    fn plus(self, other: Self) -> Self {
        let value = self.value + other.value;
        Self::new(value, self.error + other.error, EXACT)
    }

    fn times(self, factor: f32) -> Self {
        let error = self.error * f64::from(factor.abs());
        Self::new(self.value * factor, error, EXACT)
    }

    fn over(self, other: Self) -> Self {
        let value = self.value / other.value;
        let error = self.error + f64::from(value.abs()) * other.error;
        Self::new(value, error / f64::from(other.value.abs()), DIVISION)
    }

    fn squared(self) -> Self {
        let error = 2.0 * f64::from(self.value.abs()) * self.error;
        Self::new(self.value * self.value, error, EXACT)
    }

    fn root(self) -> Self {
        let value = self.value.sqrt();
        Self::new(value, self.error / f64::from(value), DIVISION)
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
    let exact = |value| Number { value, error: 0.0 };
    let (g, p, fresh) = (exact(g).times(row.scale), exact(p), row.fresh == 1.0);
    let penalized = || match row.decay == 0.0 {
        true => g,
        false => p.times(row.decay).plus(g),
    };
    let moved = |state: usize, beta: f32, added: Number| match fresh {
        true => added,
        false => exact(states[state]).times(beta).plus(added),
    };
    let moments = |g: Number| {
        let second = g.squared().times(row.factor_2);
        let first = moved(0, row.beta_1, g.times(row.factor_1));
        (first, moved(1, row.beta_2, second))
    };
    let largest = |amsgrad: bool, v: Number| match !amsgrad || fresh || states[2] < v.value {
        true => v,
        false => exact(states[2]),
    };
    let kept = |m, v, u, amsgrad: bool| [Some(m), Some(v), amsgrad.then_some(u)];
    let (from, delta, states) = match rule {
        UpdateRule::Sgd { momentum, nesterov } => {
            let g = penalized();
            let v = match fresh || !momentum {
                true => g,
                false => moved(0, row.beta_1, g.times(row.factor_1)),
            };
            let looked_forward = || v.times(row.beta_1).plus(g);
            let delta = if nesterov { looked_forward() } else { v };
            (p, delta, [momentum.then_some(v), None, None])
        }
        UpdateRule::Adam { amsgrad } => {
            let (m, v) = moments(penalized());
            let u = largest(amsgrad, v);
            let root = u.root().plus(exact(row.epsilon));
            let delta = m.times(row.correction_1).over(root);
            (p, delta, kept(m, v, u, amsgrad))
        }
        UpdateRule::AdamW { amsgrad, cautious } => {
            let (m, v) = moments(g);
            let u = largest(amsgrad, v);
            let agree = (p.value >= 0.0) == (m.value >= 0.0);
            let decayed = match cautious {
                true if !agree || row.decay == 0.0 => p,
                true => p.plus(p.times(-row.decay)),
                false => p.times(row.decay),
            };
            let root = u.over(exact(row.correction_2)).root();
            let root = root.plus(exact(row.epsilon));
            let delta = m.over(exact(row.correction_1)).over(root);
            (decayed, delta, kept(m, v, u, amsgrad))
        }
    };
    let stepped = from.plus(delta.times(-row.lr));
    let all = [Some(stepped)].into_iter().chain(states);
    all.flatten().collect()
}
