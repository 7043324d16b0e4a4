//! The rules of optimizers' steps, rows for them, and Burn's formulas on the host.

use super::*;

pub const ADAM: UpdateRule = UpdateRule::Adam { amsgrad: false };

pub fn sgd(momentum: bool, nesterov: bool) -> UpdateRule {
    UpdateRule::Sgd { momentum, nesterov }
}

pub fn adam_w(amsgrad: bool, cautious: bool) -> UpdateRule {
    UpdateRule::AdamW { amsgrad, cautious }
}

pub fn rules() -> Vec<UpdateRule> {
    let mut rules = vec![sgd(false, false)];
    for flag in [false, true] {
        rules.extend([sgd(true, flag), UpdateRule::Adam { amsgrad: flag }]);
        rules.extend([adam_w(flag, false), adam_w(flag, true)]);
    }
    rules
}

/// A row as an optimizer has it after some steps; others of other seeds.
pub fn row(rule: UpdateRule, seed: u64) -> UpdateRow {
    let mut bits = Bits(seed);
    let mut between = |low: f32, high: f32| low + part(&mut bits) * (high - low);
    let (beta_1, beta_2) = (between(0.5, 0.95), between(0.9, 0.9999));
    let some = between(0.001, 0.1);
    let decay = if seed.is_multiple_of(3) { 0.0 } else { some };
    let (is_factor, most) = match rule {
        UpdateRule::AdamW { cautious, .. } => (!cautious, 1.0),
        _ => (false, 10.0),
    };
    UpdateRow {
        taken: 1.0,
        scale: between(0.001, 2.0),
        lr: between(1e-4, 0.5),
        fresh: f32::from(seed % 4 == 1),
        decay: if is_factor { 1.0 - decay } else { decay },
        beta_1,
        factor_1: 1.0 - beta_1,
        beta_2,
        factor_2: 1.0 - beta_2,
        correction_1: between(0.1, most),
        correction_2: between(0.1, 1.0),
        epsilon: between(1e-8, 1e-3),
    }
}

/// One value's step in f32: the parameter and the states, of which a rule may have fewer.
fn step(rule: UpdateRule, row: UpdateRow, g: f32, old: [f32; 4]) -> [f32; 4] {
    let (g, fresh, [p, first, second, third]) = (g * row.scale, row.fresh == 1.0, old);
    let penalized = select(row.decay == 0.0, g, p * row.decay + g);
    let moments = |g: f32, amsgrad: bool| {
        let (m, v) = (g * row.factor_1, g * g * row.factor_2);
        let m = select(fresh, m, first * row.beta_1 + m);
        let v = select(fresh, v, second * row.beta_2 + v);
        (m, v, select(!amsgrad || fresh || third < v, v, third))
    };
    match rule {
        UpdateRule::Sgd { momentum, nesterov } => {
            let moved = first * row.beta_1 + penalized * row.factor_1;
            let v = select(fresh || !momentum, penalized, moved);
            let delta = select(nesterov, v * row.beta_1 + penalized, v);
            [p + delta * -row.lr, v, 0.0, 0.0]
        }
        UpdateRule::Adam { amsgrad } => {
            let (m, v, u) = moments(penalized, amsgrad);
            let delta = m * row.correction_1 / (u.sqrt() + row.epsilon);
            [p + delta * -row.lr, m, v, u]
        }
        UpdateRule::AdamW { amsgrad, cautious } => {
            let (m, v, u) = moments(g, amsgrad);
            let kept = (p >= 0.0) != (m >= 0.0) || row.decay == 0.0;
            let cautiously = select(kept, p, p + p * -row.decay);
            let decayed = select(cautious, cautiously, p * row.decay);
            let root = (u / row.correction_2).sqrt() + row.epsilon;
            let delta = m / row.correction_1 / root;
            [decayed + delta * -row.lr, m, v, u]
        }
    }
}

fn select(condition: bool, then: f32, otherwise: f32) -> f32 {
    if condition { then } else { otherwise }
}

/// Whether a device may make `new` of the `old` values of a parameter, its master and its states, by what [`step`] makes of them: on Flex bit for bit.
/// Elsewhere operations may be contracted, and WGSL grants some units in the last place to a division and a root: as far away as that is of the
/// magnitudes that are added up.
pub fn may_become(
    rule: UpdateRule,
    row: UpdateRow,
    dtype: DType,
    gradient: f64,
    [old, new]: &[Vec<f64>; 2],
) -> bool {
    if row.taken == 0.0 {
        return old.iter().zip(new).all(|(old, new)| same(*old, *new));
    }
    let real = usize::from(dtype != DType::F32);
    let narrow = |at: usize| old.get(real + at).map_or(0.0, |value| *value as f32);
    let (g, mut from) = (gradient as f32, std::array::from_fn(narrow));
    // A master follows a parameter that is not its image.
    if rounded(dtype, old[real]) != old[0] {
        from[0] = old[0] as f32;
    }
    let expected = step(rule, row, g, from);
    let away = UpdateRow { lr: -row.lr, ..row };
    let magnitudes = step(rule, away, g.abs(), from.map(f32::abs));
    let flushed = select(keeps_subnormals(DType::F32), 0.0, f32::MIN_POSITIVE);
    let fits = |((found, expected), magnitude): ((&f64, f32), f32)| {
        let error = 3e-6 * f64::from(magnitude) + f64::from(flushed);
        let is_near = is_cube() && (found - f64::from(expected)).abs() <= error;
        is_near || same(*found, expected.into())
    };
    let mut all = new[real..].iter().zip(expected).zip(magnitudes);
    let image = rounded(dtype, new[real]);
    let is_flushed = !keeps_subnormals(dtype) && image.abs() < 2f64.powi(-14);
    all.all(fits) && (same(new[0], image) || is_flushed)
}
