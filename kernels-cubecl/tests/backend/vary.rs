//! Random lists.

use proptest::prelude::*;

use crate::{case::Case, create::random, device::dtypes, random::check_random, system::System};

/// One tensor: which dtype, its shape, what view of it, and the seed of its values.
type Recipe = (usize, Vec<usize>, usize, u64);

fn recipe() -> impl Strategy<Value = Recipe> {
    let shape = prop_oneof![
        4 => prop::collection::vec(0usize..7, 1..=4),
        1 => prop::collection::vec(1usize..3000, 1..=1),
    ];
    (0..4usize, shape, 0..5usize, any::<u64>())
}

fn add(case: &mut Case, (dtype, shape, view, seed): Recipe) {
    let dtypes = dtypes();
    let dtype = dtypes[dtype % dtypes.len()];
    macro_rules! add {
        ($rank:literal) => {{
            let shape: [usize; $rank] = shape.try_into().expect("rank");
            let tensor = random::<$rank>(dtype, seed, shape);
            let last = $rank - 1;
            case.add(match view {
                1 => tensor.swap_dims(0, last),
                2 => tensor.flip([last]),
                3 if shape[0] > 0 => tensor.narrow(0, shape[0] / 3, shape[0] - shape[0] / 3),
                4 if !shape.contains(&0) => tensor
                    .unsqueeze::<{ $rank + 1 }>()
                    .repeat_dim(0, 2)
                    .narrow(0, 1, 1)
                    .squeeze_dim(0),
                _ => tensor,
            })
        }};
    }
    match shape.len() {
        1 => add!(1),
        2 => add!(2),
        3 => add!(3),
        _ => add!(4),
    }
}

pub fn random_lists(system: &System) {
    let lists = prop::collection::vec(recipe(), 0..12);
    let inverse = prop_oneof![
        (-24..=8i32).prop_map(|exponent| 2f32.powi(exponent)),
        1e-6f32..2.0,
    ];
    check_random(48, (lists, inverse), |(recipes, inverse)| {
        let mut case = Case::new();
        for recipe in recipes {
            add(&mut case, recipe);
        }
        case.check(system, inverse);
    });
}
