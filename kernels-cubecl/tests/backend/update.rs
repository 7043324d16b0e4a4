//! The step of an optimizer against Burn's formulas on the host, value by value.

use std::iter::repeat_with;

use super::*;
use formula::*;
#[cfg(not(feature = "cubecl"))]
use list::address;

const F32: (DType, DType) = (DType::F32, DType::F32);

/// What a list has for one parameter.
type Own = (UpdateRow, Vec<Tensor<2>>);

fn ordinary(dtype: DType, seed: u64, shape: [usize; 2]) -> Tensor<2> {
    let mut bits = Bits(seed);
    from_bits(
        dtype,
        repeat_with(|| create::ordinary(&mut bits, dtype)),
        shape,
    )
}

/// Gradient, parameter, master and states; a master of which some values are no longer those of the parameter.
fn own(rule: UpdateRule, dtypes: (DType, DType), shape: [usize; 2], seed: u64) -> Vec<Tensor<2>> {
    let (gradient, parameter) = dtypes;
    let drawn = |dtype, number| ordinary(dtype, 10 * seed + number, shape);
    let (master, edited) = (drawn(DType::F32, 1), drawn(DType::F32, 2));
    let mut tensors = vec![drawn(gradient, 0)];
    if parameter != DType::F32 {
        let large = edited.clone().greater_elem(2.0);
        tensors.push(master.clone().mask_where(large, edited).cast(parameter));
    }
    tensors.push(master);
    let state = |state| drawn(DType::F32, 3 + state as u64);
    let second = |at| if at == 0 { state(at) } else { state(at).abs() };
    tensors.extend((0..rule.states()).map(second));
    tensors
}

/// Steps the parameters, and compares all that is given back with the reference. Who holds a tensor keeps its values.
fn check(rule: UpdateRule, parameters: Vec<Own>) {
    let (rows, lists): (Vec<UpdateRow>, Vec<Vec<Tensor<2>>>) = parameters.into_iter().unzip();
    let read = |own: &Vec<Tensor<2>>| Vec::from_iter(own.iter().map(values));
    let before: Vec<Vec<Vec<f64>>> = lists.iter().map(read).collect();
    let kinds = lists.iter().map(|own| (own[1].dtype(), own[1].dims()));
    let kinds = Vec::from_iter(kinds);
    let some = lists.iter().step_by(3).enumerate();
    let held: Vec<_> = some.map(|(at, own)| own[at % own.len()].clone()).collect();
    let held_before = read(&held);

    let there = UpdateRow::upload(&rows, &device());
    let list = list_of(lists.into_iter().flatten());
    let mut updated = update(rule, list, there).expect("kernels");

    let mut next = 0..updated.len();
    for (at, ((row, (dtype, shape)), before)) in rows.iter().zip(kinds).zip(before).enumerate() {
        let what = format!("{rule:?}, parameter {at} in {dtype:?}, {shape:?}, {row:?}");
        let after = |own| {
            let tensor = updated.get::<2>(next.next().expect("all that was stepped"));
            let wanted = if own == 1 { dtype } else { DType::F32 };
            assert_eq!((tensor.dtype(), tensor.dims()), (wanted, shape), "{what}");
            values(&tensor)
        };
        let after: Vec<Vec<f64>> = (1..before.len()).map(after).collect();
        for (at, gradient) in before[0].iter().enumerate() {
            let both = [&before[1..], &after].map(|all| all.iter().map(|own| own[at]).collect());
            let fits = may_become(rule, *row, dtype, *gradient, &both);
            assert!(fits, "{what}, value {at}: {gradient} and {both:?}");
        }
    }
    assert!(next.is_empty());
    assert_same(&read(&held).concat(), &held_before.concat(), "what is held");
    // And when what was given back is used and dropped.
    while let Some(last) = updated.pop::<2>() {
        drop(values(&last.add_scalar(1.0)));
    }
    assert_same(&read(&held).concat(), &held_before.concat(), "what is held");
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

/// Each tensor of a parameter in turn, and all of them, do not lie in order; or one tensor is in several places of a list.
#[test]
fn other_layouts() {
    let dtypes = pairs();
    for rule in [sgd(true, true), adam_w(true, true)] {
        for (index, view) in planes().into_iter().enumerate() {
            let dtypes = dtypes[index % dtypes.len()];
            let viewed = own(rule, dtypes, [9, 41], 60).into_iter().map(view);
            let viewed: Vec<Tensor<2>> = viewed.collect();
            let mut parameters = vec![(row(rule, 60), viewed.clone())];
            for (at, view) in viewed.iter().enumerate() {
                let mut tensors = own(rule, dtypes, view.dims(), 61);
                tensors[at] = view.clone();
                parameters.push((row(rule, 62 + at as u64), tensors));
            }
            drop(viewed);
            check(rule, parameters);
        }
        let same = vec![ordinary(DType::F32, 50, [3, 41]).abs(); 2 + rule.states()];
        let two = [50, 51].map(|seed| (row(rule, seed), same.clone()));
        check(rule, two.to_vec());
    }
}

/// Any bits of f32 and of halves: infinities, NaN, subnormals, zeros of either sign.
#[test]
fn special_values() {
    if is_cube() {
        return skipped("devices may take some for others");
    }
    for (rule, dtypes) in cases() {
        let parameter = |seed| {
            let mut own = own(rule, dtypes, [60, 40], seed);
            for (at, tensor) in (seed..).zip(&mut own) {
                let (dtype, mut bits) = (tensor.dtype(), Bits(at));
                let special = values::specials(dtype);
                let value = || special[bits.draw() as usize % special.len()];
                *tensor = match at % 4 {
                    0 => continue,
                    1 => random(dtype, at, [60, 40]),
                    _ => from_bits(dtype, repeat_with(value), [60, 40]),
                };
            }
            (row(rule, seed), own)
        };
        check(rule, (0..6).map(parameter).collect());
    }
}

/// On Flex, all that nobody else holds is overwritten where it is.
#[cfg(not(feature = "cubecl"))]
#[test]
fn flex_writes_in_place() {
    if address(&floats(vec![0.0], [1])).is_none() {
        return skipped("not Flex");
    }
    for (rule, dtypes) in cases() {
        let views: [fn(Tensor<2>) -> Tensor<2>; 2] = [|plane| plane, Tensor::transpose];
        for view in views {
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
        if dtype.size() == 2 {
            tensors.push(ones(DType::F32));
        }
        let updated = update_list(sgd(false, false), tensors);
        let refused = updated.err().map(|error| error.dtype);
        assert_eq!(refused, (!has).then_some(dtype));
    }
}
