//! The step of an optimizer against Burn's formulas on the host, value by value: bit for bit on Flex, and elsewhere
//! within a unit in the last place for each operation, three for each division and root.

use std::ops::{Add, Div, Mul, Sub};

use burn::tensor::{DType, Tensor, TensorData, s};
use burn_amp_kernels::{TensorList, UpdateRow, UpdateRule, can_update, update};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use crate::{
    create::{Bits, from_bits, random},
    device::{device, dtypes, is_cube, keeps_subnormals},
    host,
};

/// A number on the host, and how far a device's may be from it: each operation rounds once on either side, if it is not
/// contracted with the next one, and WGSL grants 2.5 units in the last place to a division, and to a root what that makes of it.
#[derive(Clone, Copy, Debug)]
struct Number {
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
    fn is(self, found: f64) -> bool {
        if !is_cube() {
            let same = found.to_bits() == f64::from(self.value).to_bits();
            return same || found.is_nan() && self.value.is_nan();
        }
        let flushed = match keeps_subnormals(DType::F32) {
            true => 0.0,
            false => f64::from(f32::MIN_POSITIVE),
        };
        (found - f64::from(self.value)).abs() <= self.error + flushed
    }
}

/// One value's step: the parameter in f32 and the states.
fn step(rule: UpdateRule, row: UpdateRow, g: f32, p: f32, states: &[f32]) -> Vec<Number> {
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
    let largest = |v: Number| match fresh || states[2] < v.value {
        true => v,
        false => states[2].into(),
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
        UpdateRule::Adam { amsgrad } => {
            let (m, v) = moments(penalized(g));
            let of = |u: Number| p - m * row.correction_1 / (u.sqrt() + epsilon) * row.lr;
            match amsgrad {
                true => vec![of(largest(v)), m, v, largest(v)],
                false => vec![of(v), m, v],
            }
        }
        UpdateRule::AdamW { amsgrad, cautious } => {
            let (m, v) = moments(g);
            let of = |u: Number| {
                let root = (u / row.correction_2.into()).sqrt();
                let delta = m / row.correction_1.into() / (root + epsilon);
                let decayed = match cautious {
                    true if row.decay == 0.0 => p,
                    true if (p.value >= 0.0) != (m.value >= 0.0) => p,
                    true => p - p * row.decay,
                    false => p * row.decay,
                };
                decayed - delta * row.lr
            };
            match amsgrad {
                true => vec![of(largest(v)), m, v, largest(v)],
                false => vec![of(v), m, v],
            }
        }
    }
}

fn rules() -> Vec<UpdateRule> {
    let mut rules = vec![UpdateRule::Sgd {
        momentum: false,
        nesterov: false,
    }];
    for flag in [false, true] {
        rules.push(UpdateRule::Sgd {
            momentum: true,
            nesterov: flag,
        });
        rules.push(UpdateRule::Adam { amsgrad: flag });
        for cautious in [false, true] {
            rules.push(UpdateRule::AdamW {
                amsgrad: flag,
                cautious,
            });
        }
    }
    rules
}

/// A row as an optimizer has it after some steps; others of other seeds.
fn row(rule: UpdateRule, seed: u64) -> UpdateRow {
    let mut bits = Bits(seed);
    let mut between = |low: f32, high: f32| {
        let part = (bits.draw() >> 40) as f32 / (1u64 << 24) as f32;
        low + part * (high - low)
    };
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
        correction_1: match adam_w {
            true => between(0.1, 1.0),
            false => between(0.1, 10.0),
        },
        correction_2: between(0.1, 1.0),
        epsilon: between(1e-8, 1e-3),
    }
}

/// What a list has for one parameter.
type Own = (UpdateRow, Vec<Tensor<2>>);

/// Ordinary values of either sign, or of none.
fn values(dtype: DType, seed: u64, signed: bool, shape: [usize; 2]) -> Tensor<2> {
    let mut bits = Bits(seed);
    let mut value = || {
        let draw = bits.draw();
        let magnitude = (1.0 + (draw >> 32) as f64 / 2f64.powi(32)) * 2f64.powi(draw as i32 & 7);
        let sign = if signed && draw & 8 != 0 { -1.0 } else { 1.0 };
        sign * magnitude / 64.0
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| value()).collect();
    Tensor::from_data(TensorData::new(values, shape), (&device(), dtype))
}

/// Gradient, parameter, master and states; a master of which some values are no longer those of the parameter.
fn own(
    rule: UpdateRule,
    (gradient, parameter): (DType, DType),
    shape: [usize; 2],
    seed: u64,
) -> Vec<Tensor<2>> {
    let mut tensors = vec![values(gradient, 10 * seed, true, shape)];
    let master = values(DType::F32, 10 * seed + 1, true, shape);
    if parameter != DType::F32 {
        let edited = values(DType::F32, 10 * seed + 2, true, shape);
        let length = shape.iter().product::<usize>();
        let flags: Vec<bool> = (0..length).map(|at| at % 5 == 3).collect();
        let mask = Tensor::from_data(TensorData::new(flags, shape), &device());
        let image = master.clone().mask_where(mask, edited);
        tensors.push(image.cast(parameter));
    }
    tensors.push(master);
    for state in 0..rule.states() as u64 {
        let second = state > 0;
        tensors.push(values(DType::F32, 10 * seed + 3 + state, !second, shape));
    }
    tensors
}

fn read(tensor: &Tensor<2>) -> Vec<f64> {
    match tensor.shape().num_elements() {
        // Burn 0.22.1's CPU runtime cannot read every tensor that is empty.
        0 => Vec::new(),
        _ => host::widen(&tensor.to_data()),
    }
}

fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Steps the parameters, and compares all that is given back with the reference.
fn check(rule: UpdateRule, parameters: Vec<Own>) -> TensorList {
    let before: Vec<Vec<Vec<f64>>> = (parameters.iter())
        .map(|(_, tensors)| tensors.iter().map(read).collect())
        .collect();
    let dtypes: Vec<DType> = (parameters.iter().map(|(_, own)| own[1].dtype())).collect();
    let shapes: Vec<_> = (parameters.iter().map(|(_, own)| own[1].dims())).collect();
    let rows: Vec<UpdateRow> = parameters.iter().map(|(row, _)| *row).collect();
    let mut list = TensorList::new();
    for (_, tensors) in parameters {
        tensors.into_iter().for_each(|tensor| list.push(tensor));
    }

    let updated = update(rule, list, UpdateRow::upload(&rows, &device())).expect("kernels");

    let mut index = 0;
    for (at, before) in before.iter().enumerate() {
        let (row, dtype, shape) = (rows[at], dtypes[at], shapes[at]);
        let what = format!("{rule:?}, parameter {at} in {dtype:?}, {shape:?}, {row:?}");
        let after: Vec<Vec<f64>> = (1..before.len())
            .map(|own| {
                let tensor = updated.get::<2>(index + own - 1);
                let wanted = if own == 1 { dtype } else { DType::F32 };
                assert_eq!((tensor.dtype(), tensor.dims()), (wanted, shape), "{what}");
                read(&tensor)
            })
            .collect();
        index += after.len();
        check_parameter(rule, row, dtype, before, &after, &what);
    }
    assert_eq!(updated.len(), index);
    updated
}

/// `before` has the gradient first.
fn check_parameter(
    rule: UpdateRule,
    row: UpdateRow,
    dtype: DType,
    before: &[Vec<f64>],
    after: &[Vec<f64>],
    what: &str,
) {
    let half = dtype != DType::F32;
    let real = usize::from(half);
    for (at, gradient) in before[0].iter().enumerate() {
        let old: Vec<f64> = before[1..].iter().map(|values| values[at]).collect();
        let new: Vec<f64> = after.iter().map(|values| values[at]).collect();
        if row.taken == 0.0 {
            let kept = old.iter().zip(&new).all(|(old, new)| same(*old, *new));
            assert!(kept, "{what}, value {at}: {old:?} became {new:?}");
            continue;
        }
        // A master follows a parameter that is not its image.
        let p = match half && host::rounded(dtype, old[1]) != old[0] {
            true => old[0],
            false => old[real],
        };
        let states: Vec<f32> = old[1 + real..].iter().map(|state| *state as f32).collect();
        let expected = step(rule, row, *gradient as f32, p as f32, &states);
        let fits = (expected.iter().zip(&new[real..])).all(|(expected, new)| expected.is(*new));
        assert!(
            fits,
            "{what}, value {at}: {old:?} became {new:?} and not {expected:?}"
        );
        let image = host::rounded(dtype, new[real]);
        let flushed = !keeps_subnormals(dtype) && image.abs() < 2f64.powi(-14);
        assert!(
            same(new[0], image) || flushed,
            "{what}, value {at}: {} is not the image of {}",
            new[0],
            new[real]
        );
    }
}

/// Dtypes of gradient and parameter.
fn pairs() -> Vec<(DType, DType)> {
    let mut dtypes = dtypes();
    dtypes.retain(|dtype| *dtype != DType::F64);
    let pair = |gradient: &DType| {
        let gradient = *gradient;
        dtypes.iter().map(move |parameter| (gradient, *parameter))
    };
    dtypes.iter().flat_map(pair).collect()
}

#[test]
fn every_rule_dtype_and_length() {
    for rule in rules() {
        for dtypes in pairs() {
            let lengths = [1000, 0, 1, 15, 16, 17, 513].into_iter().zip(0..);
            let parameter =
                |(length, seed)| (row(rule, seed), own(rule, dtypes, [1, length], seed));
            check(rule, lengths.map(parameter).collect());
        }
    }
}

/// More than one thread or cube takes at a time.
#[test]
fn large() {
    for rule in rules() {
        let dtypes = (DType::F32, DType::F32);
        let parameter = |seed| (row(rule, seed), own(rule, dtypes, [7, 10_000], seed));
        check(rule, vec![parameter(20), parameter(21)]);
    }
    for dtypes in pairs() {
        let rule = UpdateRule::Adam { amsgrad: false };
        check(
            rule,
            vec![(row(rule, 22), own(rule, dtypes, [7, 10_000], 22))],
        );
    }
}

/// Dtypes, lengths and rows of their own, more than a launch takes.
#[test]
fn many_parameters() {
    let pairs = pairs();
    let pairs = [pairs[0], pairs[pairs.len() - 1]];
    for rule in rules() {
        let parameter = |seed: u64| {
            let index = seed as usize;
            let mut row = row(rule, seed);
            row.taken = f32::from(seed % 7 != 2);
            let shape = [1 + index % 3, index * 11 % 97 * 4];
            (row, own(rule, pairs[index % pairs.len()], shape, seed))
        };
        check(rule, (0..70).map(parameter).collect());
    }
}

/// Where no row is taken, and where a gradient is not finite.
#[test]
fn what_is_not_taken_is_left() {
    for rule in rules() {
        for (gradient, dtype) in pairs() {
            let mut row = row(rule, 31);
            (row.taken, row.scale) = (0.0, f32::NAN);
            let mut tensors = own(rule, (gradient, dtype), [3, 100], 31);
            tensors[0] = tensors[0].clone().mul_scalar(f32::INFINITY);
            check(rule, vec![(row, tensors)]);
        }
    }
}

/// Who holds a tensor keeps its values, whichever it is, and whether or not the row is taken.
#[test]
fn other_handles_are_kept() {
    for dtypes in pairs() {
        for rule in [
            UpdateRule::Sgd {
                momentum: true,
                nesterov: false,
            },
            UpdateRule::Adam { amsgrad: true },
        ] {
            let count = own(rule, dtypes, [1, 1], 0).len();
            for (taken, held) in (0..count).flat_map(|held| [(0.0, held), (1.0, held)]) {
                let row = UpdateRow {
                    taken,
                    ..row(rule, 42)
                };
                let tensors = own(rule, dtypes, [5, 77], 40);
                let handle = tensors[held].clone();
                let before = read(&handle);
                let updated = check(rule, vec![(row, tensors)]);
                assert_eq!(read(&handle), before, "tensor {held}");
                // And stays so when what was given back is used and dropped.
                let first = updated.get::<2>(0);
                drop(updated);
                drop(first.add_scalar(1.0).into_data());
                assert_eq!(read(&handle), before, "tensor {held}, later");
            }
        }
    }
}

/// One tensor in several places of a list.
#[test]
fn one_memory_twice() {
    let rule = UpdateRule::Adam { amsgrad: true };
    let tensor = values(DType::F32, 50, false, [3, 41]);
    let all = || vec![tensor.clone(); 5];
    check(rule, vec![(row(rule, 50), all()), (row(rule, 51), all())]);
}

fn views() -> [fn(Tensor<2>) -> Tensor<2>; 6] {
    [
        |plane| plane.transpose(),
        |plane| plane.flip([1]).transpose(),
        |plane| plane.slice(s![0.., 2..]).transpose(),
        |plane| plane.slice(s![1.., 0..]).transpose(),
        |plane| plane.slice(s![0..1, 0..]).expand([9, 41]).transpose(),
        |plane| plane.narrow(0, 0, 3).transpose(),
    ]
}

/// Each tensor of a parameter in turn, and all of them, do not lie in order.
#[test]
fn other_layouts() {
    let dtypes = pairs();
    for rule in [
        UpdateRule::Sgd {
            momentum: true,
            nesterov: true,
        },
        UpdateRule::AdamW {
            amsgrad: true,
            cautious: true,
        },
    ] {
        for (index, view) in views().into_iter().enumerate() {
            let dtypes = dtypes[index % dtypes.len()];
            let viewed: Vec<Tensor<2>> = (own(rule, dtypes, [9, 41], 60).into_iter())
                .map(view)
                .collect();
            let ordered = || own(rule, dtypes, viewed[0].dims(), 61);
            let mut parameters = vec![(row(rule, 60), viewed.clone())];
            for (at, view) in viewed.iter().enumerate() {
                let mut tensors = ordered();
                tensors[at] = view.clone();
                parameters.push((row(rule, 62 + at as u64), tensors));
            }
            drop(viewed);
            check(rule, parameters);
        }
    }
}

/// As a step leaves them, so the next one takes them.
#[test]
fn several_steps() {
    for rule in rules() {
        for dtypes in pairs() {
            let mut tensors = own(rule, dtypes, [3, 52], 70);
            for seed in 71..75 {
                tensors[0] = values(dtypes.0, seed, true, [3, 52]);
                let updated = check(rule, vec![(row(rule, seed), tensors.clone())]);
                let next = (0..updated.len()).map(|index| updated.get(index));
                tensors.splice(1.., next);
            }
        }
    }
}

/// Any bits of f32 and of halves: infinities, NaN, subnormals, zeros of either sign.
#[test]
fn special_values() {
    // Devices may take some for others.
    if is_cube() {
        return;
    }
    let special = [
        0.0,
        f32::INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-40,
        1.0,
    ];
    let mut bits: Vec<u64> = Vec::new();
    for value in special {
        bits.extend([value, -value].map(|value| u64::from(value.to_bits())));
    }
    let all = bits.len();
    let shape = [all, all];
    let each = bits
        .iter()
        .flat_map(|bits| vec![*bits; all])
        .collect::<Vec<_>>();
    let cycle = bits
        .iter()
        .copied()
        .cycle()
        .take(all * all)
        .collect::<Vec<_>>();
    let rows: [Tensor<2>; 2] = [
        from_bits(DType::F32, &each, shape),
        from_bits(DType::F32, &cycle, shape),
    ];
    for rule in rules() {
        for (gradient, dtype) in pairs() {
            let mut parameters = Vec::new();
            for seed in 0..6 {
                let mut tensors = own(rule, (gradient, dtype), shape, seed);
                for (at, tensor) in tensors.iter_mut().enumerate() {
                    *tensor = match (at + seed as usize) % 4 {
                        0 => rows[0].clone().cast(tensor.dtype()),
                        1 => rows[1].clone().cast(tensor.dtype()),
                        2 => random(tensor.dtype(), seed + 80, shape),
                        _ => continue,
                    };
                }
                parameters.push((row(rule, seed), tensors));
            }
            check(rule, parameters);
        }
    }
}

/// What stands in the tensors of a state that is not there yet may be anything.
#[test]
fn fresh_states_are_not_read() {
    for rule in rules() {
        for dtypes in pairs() {
            let mut row = row(rule, 90);
            row.fresh = 1.0;
            let mut tensors = own(rule, dtypes, [3, 36], 90);
            let states = tensors.len() - rule.states();
            for state in &mut tensors[states..] {
                *state = Tensor::full([3, 36], f32::INFINITY, (&device(), DType::F32));
            }
            check(rule, vec![(row, tensors)]);
        }
    }
}

#[test]
fn random_lists() {
    let rules = rules();
    let pairs = pairs();
    let recipe = (
        (0..pairs.len(), any::<u64>()),
        (0..9usize, 0..40usize),
        (0..4usize, 0..5),
    );
    let lists = prop::collection::vec(recipe, 0..9);
    let config = Config {
        // A device compiles kernels for many of them.
        cases: if is_cube() { 12 } else { 48 },
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&(0..rules.len(), lists), |(rule, recipes)| {
            let rule = rules[rule];
            let parameters =
                recipes
                    .into_iter()
                    .map(|((pair, seed), (height, width), (view, taken))| {
                        let row = UpdateRow {
                            taken: f32::from(taken != 0),
                            ..row(rule, seed)
                        };
                        let tensors = own(rule, pairs[pair], [height, width], seed >> 8);
                        let viewed = |(at, tensor): (usize, Tensor<2>)| match view {
                            1 => tensor.transpose(),
                            2 if at == seed as usize % 4 => tensor.flip([1]),
                            _ => tensor,
                        };
                        (row, tensors.into_iter().enumerate().map(viewed).collect())
                    });
            check(rule, parameters.collect());
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Where the values of a tensor on Flex lie.
#[cfg(not(feature = "cubecl"))]
fn address(tensor: &Tensor<2>) -> Option<*const u8> {
    use burn::backend::{BackendTensor, DispatchTensorKind};
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => Some(tensor.bytes().as_ptr()),
        _ => None,
    }
}

/// On Flex, all that nobody else holds is overwritten where it is.
#[cfg(not(feature = "cubecl"))]
#[test]
fn flex_writes_in_place() {
    if address(&values(DType::F32, 0, true, [1, 1])).is_none() {
        return;
    }
    for rule in rules() {
        for dtypes in pairs() {
            for view in [
                |plane: Tensor<2>| plane,
                |plane: Tensor<2>| plane.transpose(),
            ] {
                let tensors = own(rule, dtypes, [30, 40], 95);
                let tensors: Vec<_> = tensors.into_iter().map(view).collect();
                let places: Vec<_> = tensors[1..].iter().map(address).collect();
                let mut list = TensorList::new();
                tensors.into_iter().for_each(|tensor| list.push(tensor));
                let rows = UpdateRow::upload(&[row(rule, 95)], &device());
                let updated = update(rule, list, rows).expect("kernels");
                let now: Vec<_> = (0..updated.len())
                    .map(|index| address(&updated.get(index)))
                    .collect();
                assert_eq!(now, places, "{rule:?}, {dtypes:?}");
            }
        }
    }
}

#[test]
fn an_empty_list() {
    let rows = UpdateRow::upload(&[], &device());
    let rule = UpdateRule::Adam { amsgrad: false };
    assert!(
        update(rule, TensorList::new(), rows)
            .expect("nothing to do")
            .is_empty()
    );
}

/// With `count` rows.
fn update_list(rule: UpdateRule, tensors: Vec<Tensor<2>>, count: usize) {
    let mut list = TensorList::new();
    tensors.into_iter().for_each(|tensor| list.push(tensor));
    let rows = vec![row(rule, 0); count];
    let _ = update(rule, list, UpdateRow::upload(&rows, &device()));
}

const ADAM: UpdateRule = UpdateRule::Adam { amsgrad: false };
const F32: (DType, DType) = (DType::F32, DType::F32);

#[test]
#[should_panic(expected = "each parameter has its gradient, its master and its states")]
fn a_state_is_missing() {
    let mut tensors = own(ADAM, F32, [2, 3], 0);
    tensors.pop();
    update_list(ADAM, tensors, 1);
}

#[test]
#[should_panic(expected = "gradient, master and states have the parameter's shape")]
fn another_shape() {
    let mut tensors = own(ADAM, F32, [2, 3], 0);
    tensors[0] = tensors[0].clone().transpose();
    update_list(ADAM, tensors, 1);
}

#[test]
#[should_panic(expected = "masters and states are in f32")]
fn a_state_in_half_precision() {
    let half = dtypes()[0];
    let mut tensors = own(ADAM, F32, [2, 3], 0);
    tensors[2] = tensors[2].clone().cast(half);
    update_list(ADAM, tensors, 1);
}

#[test]
#[should_panic(expected = "a gradient without its parameter")]
fn a_gradient_alone() {
    let mut tensors = own(ADAM, F32, [2, 3], 0);
    tensors.push(values(DType::F32, 1, true, [2, 3]));
    update_list(ADAM, tensors, 1);
}

#[test]
#[should_panic(expected = "a row for each parameter")]
fn a_row_is_missing() {
    let tensors = [own(ADAM, F32, [2, 3], 0), own(ADAM, F32, [2, 3], 1)];
    update_list(ADAM, tensors.concat(), 1);
}

/// f64 everywhere, and f32 on the backends for which there is nothing here.
mod without_kernels {
    use super::*;

    #[test]
    fn update_says_so() {
        for dtype in dtypes() {
            let parameter = Tensor::<2>::ones([2, 3], (&device(), dtype));
            let has = can_update(&parameter);
            assert!(!(has && dtype == DType::F64));
            let rule = UpdateRule::Sgd {
                momentum: false,
                nesterov: false,
            };
            let mut list = TensorList::new();
            list.push(parameter.clone());
            list.push(parameter.clone());
            if matches!(dtype, DType::F16 | DType::BF16) {
                list.push(Tensor::<2>::ones([2, 3], (&device(), DType::F32)));
            }
            let row = row(rule, 1);
            let updated = update(rule, list, UpdateRow::upload(&[row], &device()));
            match updated {
                Ok(_) => assert!(has, "{dtype:?}"),
                Err(error) => {
                    assert!(!has);
                    assert_eq!(error.dtype, dtype);
                }
            }
        }
    }
}
