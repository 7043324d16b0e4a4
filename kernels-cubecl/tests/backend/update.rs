//! The step of an optimizer against Burn's formulas on the host, value by value.

use burn::tensor::{DType, Tensor, TensorData};
use burn_amp_kernels::{TensorList, UnsupportedDType, UpdateRow, UpdateRule, can_update, update};

use crate::create::{from_bits, random};
use crate::device::{device, dtypes, is_cube, keeps_subnormals, pairs};
use crate::formula::{ADAM, SGD, adam_w, may_find, momentum, row, rules};
#[cfg(not(feature = "cubecl"))]
use crate::list::address;
use crate::skipped::skipped;
use crate::system::{list_of, panics};
use crate::{number, random::Bits, views::planes};

const F32: (DType, DType) = (DType::F32, DType::F32);

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
fn own(rule: UpdateRule, dtypes: (DType, DType), shape: [usize; 2], seed: u64) -> Vec<Tensor<2>> {
    let (gradient, parameter) = dtypes;
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
    number::widen(&number::read(tensor.clone()))
}

/// Steps the parameters, and compares all that is given back with the reference. Who holds a tensor keeps its values.
fn check(rule: UpdateRule, parameters: Vec<Own>) {
    let (mut list, mut rows, mut before) = (TensorList::new(), Vec::new(), Vec::new());
    let mut held = Vec::new();
    for (at, (row, tensors)) in parameters.into_iter().enumerate() {
        let (dtype, shape) = (tensors[1].dtype(), tensors[1].dims());
        let values: Vec<Vec<f64>> = tensors.iter().map(read).collect();
        if at.is_multiple_of(3) {
            let at = at / 3 % tensors.len();
            held.push((values[at].clone(), tensors[at].clone()));
        }
        before.push((dtype, shape, values));
        rows.push(row);
        tensors.into_iter().for_each(|tensor| list.push(tensor));
    }

    let mut updated = update(rule, list, UpdateRow::upload(&rows, &device())).expect("kernels");

    let mut next = 0..updated.len();
    for (at, (row, (dtype, shape, before))) in rows.iter().zip(before).enumerate() {
        let what = format!("{rule:?}, parameter {at} in {dtype:?}, {shape:?}, {row:?}");
        let after = |own| {
            let tensor = updated.get::<2>(next.next().expect("all that was stepped"));
            let wanted = if own == 1 { dtype } else { DType::F32 };
            assert_eq!((tensor.dtype(), tensor.dims()), (wanted, shape), "{what}");
            read(&tensor)
        };
        let after: Vec<Vec<f64>> = (1..before.len()).map(after).collect();
        for (at, gradient) in before[0].iter().enumerate() {
            let of = |all: &[Vec<f64>]| all.iter().map(|values| values[at]).collect::<Vec<_>>();
            let (old, new) = (of(&before[1..]), of(&after));
            let values = (&old[..], &new[..]);
            let wrong = wrong_value(rule, *row, dtype, *gradient, values);
            assert_eq!(wrong, None, "{what}, value {at}");
        }
    }
    assert!(next.is_empty());
    let kept = |(before, tensor): &(Vec<f64>, _)| {
        let mut both = read(tensor).into_iter().zip(before);
        both.all(|(now, before)| number::same(now, *before))
    };
    assert!(held.iter().all(kept), "{rule:?}");
    // And when what was given back is used and dropped.
    while let Some(last) = updated.pop() {
        drop(read(&last.add_scalar(1.0)));
    }
    assert!(held.iter().all(kept), "{rule:?}, later");
}

/// What is wrong with a value that has become `new`.
fn wrong_value(
    rule: UpdateRule,
    row: UpdateRow,
    dtype: DType,
    gradient: f64,
    (old, new): (&[f64], &[f64]),
) -> Option<String> {
    if row.taken == 0.0 {
        let mut both = old.iter().zip(new);
        let kept = both.all(|(old, new)| number::same(*old, *new));
        return (!kept).then(|| format!("{old:?} became {new:?}"));
    }
    let half = dtype != DType::F32;
    let real = usize::from(half);
    // A master follows a parameter that is not its image.
    let p = match half && number::rounded(dtype, old[1]) != old[0] {
        true => old[0],
        false => old[real],
    };
    let states: Vec<f32> = old[1 + real..].iter().map(|state| *state as f32).collect();
    let from = [gradient as f32, p as f32];
    let fits = may_find(&new[real..], rule, row, from, &states);
    let image = number::rounded(dtype, new[real]);
    let flushed = !keeps_subnormals(dtype) && image.abs() < 2f64.powi(-14);
    let is_image = number::same(new[0], image) || flushed;
    (!fits || !is_image).then(|| format!("{old:?} with {from:?} became {new:?}"))
}

/// Every rule with every pair of dtypes.
fn cases() -> impl Iterator<Item = (UpdateRule, (DType, DType))> {
    let of = |rule| pairs().into_iter().map(move |dtypes| (rule, dtypes));
    rules().into_iter().flat_map(of)
}

/// Each with rows of its own, and more of a kind than a launch takes. Of a row that is not taken nothing is read, nor of a state that is not there yet.
#[test]
fn every_rule_dtype_and_length() {
    const LENGTHS: [usize; 9] = [1000, 0, 1, 15, 16, 17, 513, 44, 4];
    let pairs = pairs();
    let infinite = |tensor: &mut Tensor<2>| *tensor = tensor.full_like(f32::INFINITY);
    for rule in rules() {
        let parameter = |seed: usize| {
            let mut row = row(rule, seed as u64);
            let shape = [1 + seed % 3, LENGTHS[seed / pairs.len() % LENGTHS.len()]];
            let mut own = own(rule, pairs[seed % pairs.len()], shape, seed as u64);
            if row.fresh == 1.0 {
                let states = own.len() - rule.states();
                own[states..].iter_mut().for_each(infinite);
            }
            if seed % 5 == 2 {
                (row.taken, row.scale) = (0.0, f32::NAN);
                infinite(&mut own[0]);
            }
            (row, own)
        };
        check(rule, (0..30 * pairs.len()).map(parameter).collect());
    }
}

/// More than one thread or cube takes at a time.
#[test]
fn large() {
    let of_rules = rules().into_iter().map(|rule| (rule, F32, 20..22));
    let of_dtypes = pairs().into_iter().map(|dtypes| (ADAM, dtypes, 22..23));
    for (rule, dtypes, seeds) in of_rules.chain(of_dtypes) {
        let parameter = |seed| (row(rule, seed), own(rule, dtypes, [7, 10_000], seed));
        check(rule, seeds.map(parameter).collect());
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

/// Each tensor of a parameter in turn, and all of them, do not lie in order.
#[test]
fn other_layouts() {
    let dtypes = pairs();
    for rule in [momentum(true), adam_w(true, true)] {
        for (index, view) in planes().into_iter().enumerate() {
            let dtypes = dtypes[index % dtypes.len()];
            let viewed = own(rule, dtypes, [9, 41], 60).into_iter().map(view);
            let viewed: Vec<Tensor<2>> = viewed.collect();
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

/// Any bits of f32 and of halves: infinities, NaN, subnormals, zeros of either sign.
#[test]
fn special_values() {
    if is_cube() {
        return skipped("devices may take some for others");
    }
    let (infinity, smallest) = (f32::INFINITY, f32::MIN_POSITIVE);
    let special = [0.0, infinity, f32::NAN, f32::MAX, smallest, 1e-40, 1.0];
    let signed = special.map(|value| [value, -value]).concat();
    let bits: Vec<u64> = signed.iter().map(|value| value.to_bits().into()).collect();
    let all = bits.len();
    let shape = [all, all];
    // Each beside each.
    let each: Vec<u64> = bits.iter().flat_map(|bits| vec![*bits; all]).collect();
    let rows: [Tensor<2>; 2] =
        [each, bits.repeat(all)].map(|bits| from_bits(DType::F32, &bits, shape));
    for (rule, dtypes) in cases() {
        let mut parameters = Vec::new();
        for seed in 0..6 {
            let mut tensors = own(rule, dtypes, shape, seed);
            for (at, tensor) in tensors.iter_mut().enumerate() {
                *tensor = match (at + seed as usize) % 4 {
                    2 => random(tensor.dtype(), seed + 80, shape),
                    3 => continue,
                    row => rows[row].clone().cast(tensor.dtype()),
                };
            }
            parameters.push((row(rule, seed), tensors));
        }
        check(rule, parameters);
    }
}

/// On Flex, all that nobody else holds is overwritten where it is.
#[cfg(not(feature = "cubecl"))]
#[test]
fn flex_writes_in_place() {
    if address(&values(DType::F32, 0, true, [1, 1])).is_none() {
        return skipped("not Flex");
    }
    for (rule, dtypes) in cases() {
        for transposed in [false, true] {
            let view = |plane: Tensor<2>| if transposed { plane.transpose() } else { plane };
            let tensors = own(rule, dtypes, [30, 40], 95).into_iter().map(view);
            let tensors: Vec<_> = tensors.collect();
            let places: Vec<_> = tensors[1..].iter().map(address).collect();
            let updated = update_list(rule, tensors).expect("kernels");
            let now = (0..updated.len()).map(|index| address(&updated.get::<2>(index)));
            assert_eq!(now.collect::<Vec<_>>(), places, "{rule:?}, {dtypes:?}");
        }
    }
}

/// With one row.
fn update_list(rule: UpdateRule, tensors: Vec<Tensor<2>>) -> Result<TensorList, UnsupportedDType> {
    let rows = UpdateRow::upload(&[row(rule, 1)], &device());
    update(rule, list_of(tensors), rows)
}

#[test]
fn each_mistake_panics_with_its_message() {
    let two = || own(ADAM, F32, [2, 3], 0);
    let [mut without, mut turned, mut narrow, mut more] = [(); 4].map(|()| two());
    without.pop();
    turned[0] = turned[0].clone().transpose();
    narrow[2] = narrow[2].clone().cast(dtypes()[0]);
    more.push(more[0].clone());
    for (message, tensors) in [
        ("its gradient, its master and its states", without),
        ("have the parameter's shape", turned),
        ("masters and states are in f32", narrow),
        ("a gradient without its parameter", more),
        ("a row for each parameter", [two(), two()].concat()),
    ] {
        panics(message, || update_list(ADAM, tensors));
    }
}

/// f64 everywhere, and f32 on the backends for which there is nothing here.
#[test]
fn without_kernels_update_says_so() {
    for dtype in dtypes() {
        let ones = |dtype| Tensor::<2>::ones([2, 3], (&device(), dtype));
        let has = can_update(&ones(dtype));
        assert!(!(has && dtype == DType::F64));
        let mut tensors = vec![ones(dtype); 2];
        if matches!(dtype, DType::F16 | DType::BF16) {
            tensors.push(ones(DType::F32));
        }
        let error = update_list(SGD, tensors).err().map(|error| error.dtype);
        assert_eq!(error, (!has).then_some(dtype));
    }
}
