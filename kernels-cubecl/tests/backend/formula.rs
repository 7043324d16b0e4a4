//! The rules of optimizers' steps, rows for them, and Burn's formulas on the host.

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

/// One value's step in f32: the parameter and the states.
fn step(rule: UpdateRule, row: UpdateRow, g: f32, p: f32, states: &[f32]) -> Vec<f32> {
    let (g, fresh) = (g * row.scale, row.fresh == 1.0);
    let penalized = || match row.decay == 0.0 {
        true => g,
        false => p * row.decay + g,
    };
    let moved = |state: usize, beta: f32, added: f32| match fresh {
        true => added,
        false => states[state] * beta + added,
    };
    let moments = |g: f32| {
        let first = moved(0, row.beta_1, g * row.factor_1);
        (first, moved(1, row.beta_2, g * g * row.factor_2))
    };
    let largest = |amsgrad: bool, v: f32| match !amsgrad || fresh || states[2] < v {
        true => v,
        false => states[2],
    };
    let kept = |m, v, u, amsgrad: bool| [Some(m), Some(v), amsgrad.then_some(u)];
    let (from, delta, states) = match rule {
        UpdateRule::Sgd { momentum, nesterov } => {
            let g = penalized();
            let v = match fresh || !momentum {
                true => g,
                false => moved(0, row.beta_1, g * row.factor_1),
            };
            let delta = if nesterov { v * row.beta_1 + g } else { v };
            (p, delta, [momentum.then_some(v), None, None])
        }
        UpdateRule::Adam { amsgrad } => {
            let (m, v) = moments(penalized());
            let u = largest(amsgrad, v);
            let delta = m * row.correction_1 / (u.sqrt() + row.epsilon);
            (p, delta, kept(m, v, u, amsgrad))
        }
        UpdateRule::AdamW { amsgrad, cautious } => {
            let (m, v) = moments(g);
            let u = largest(amsgrad, v);
            let agree = (p >= 0.0) == (m >= 0.0);
            let decayed = match cautious {
                true if !agree || row.decay == 0.0 => p,
                true => p + p * -row.decay,
                false => p * row.decay,
            };
            let root = (u / row.correction_2).sqrt() + row.epsilon;
            let delta = m / row.correction_1 / root;
            (decayed, delta, kept(m, v, u, amsgrad))
        }
    };
    let stepped = from + delta * -row.lr;
    let all = [Some(stepped)].into_iter().chain(states);
    all.flatten().collect()
}

/// Whether a device may find these values, the parameter first, for what [`step`] makes of others: on Flex bit for bit. Elsewhere operations may
/// be contracted, and WGSL grants some units in the last place to a division and a root: as far away as that is of the magnitudes that are added up.
pub fn may_find(
    found: &[f64],
    rule: UpdateRule,
    row: UpdateRow,
    [g, p]: [f32; 2],
    states: &[f32],
) -> bool {
    let expected = step(rule, row, g, p, states);
    let away = UpdateRow { lr: -row.lr, ..row };
    let magnitudes: Vec<f32> = states.iter().map(|state| state.abs()).collect();
    let magnitudes = step(rule, away, g.abs(), p.abs(), &magnitudes);
    let flushed = match keeps_subnormals(DType::F32) {
        true => 0.0,
        false => f64::from(f32::MIN_POSITIVE),
    };
    let fits = |(at, found): (usize, &f64)| match is_cube() {
        false => number::same(*found, expected[at].into()),
        true => {
            let error = 3e-6 * f64::from(magnitudes[at]) + flushed;
            (found - f64::from(expected[at])).abs() <= error
        }
    };
    found.len() == expected.len() && found.iter().enumerate().all(fits)
}
