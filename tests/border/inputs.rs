//! What can go into a scope, and come out of it.

use burn::nn::RnnState;
use burn_amp_tests::prelude::*;

use crate::support::{device, halves, scaled, two, vector};

struct Batch {
    images: Tensor<3>,
    weights: Option<Tensor<1>>,
    targets: Tensor<1, Int>,
    /// Left out of the list below.
    untouched: Tensor<1>,
    name: &'static str,
}

cast_fields!(Batch { images, weights });

impl Batch {
    fn new() -> Self {
        Self {
            images: Tensor::ones([1, 2, 2], &device()),
            weights: Some(vector(&[2.0])),
            targets: Tensor::from_ints([300_000], &device()),
            untouched: vector(&[1.0]),
            name: "batch",
        }
    }

    fn dtypes(&self) -> [DType; 3] {
        let weights = self.weights.as_ref().unwrap().dtype();
        [self.images.dtype(), weights, self.untouched.dtype()]
    }
}

#[test]
fn a_batch_is_cast_by_its_fields() {
    for dtype in halves() {
        let half = DType::from(dtype);
        let output = scaled(dtype, two(10)).autocast(Batch::new(), |batch| {
            assert_eq!(batch.dtypes(), [half, half, DType::F32]);
            // f16 could not hold it.
            assert_eq!(batch.targets.clone().into_scalar::<i64>(), 300_000);
            assert_eq!(batch.name, "batch");
            batch
        });
        assert_eq!(output.dtypes(), [DType::F32; 3]);
    }
}

/// Runs a value through a scope: `dtypes` of it inside must be half precision, and f32 outside.
fn through<T: CastFloat>(value: T, dtypes: impl Fn(&T) -> Vec<DType>) -> T {
    let mut value = value;
    for dtype in halves() {
        value = scaled(dtype, two(10)).autocast(value, |inside| {
            let half = DType::from(dtype);
            assert!(dtypes(&inside).iter().all(|found| *found == half));
            inside
        });
        assert!(!dtypes(&value).is_empty());
        assert!(dtypes(&value).iter().all(|found| *found == DType::F32));
    }
    value
}

#[test]
fn structures_are_cast_as_a_whole() {
    let x = || vector(&[1.0, 2.0]);
    through(x(), |x| vec![x.dtype()]);
    through(Some(x()), |x| vec![x.as_ref().unwrap().dtype()]);
    through((None::<Tensor<2>>, x()), |(none, x)| {
        assert!(none.is_none());
        vec![x.dtype()]
    });
    let both = |list: &[Tensor<1>]| list.iter().map(Tensor::dtype).collect();
    through(vec![x(), x()], |list| both(list));
    through([x(), x()], |list| both(list));
    through((x(), (x().unsqueeze::<3>(), [x()])), |(a, (b, [c]))| {
        vec![a.dtype(), b.dtype(), c.dtype()]
    });
    let eight = (x(), x(), x(), x(), x(), x(), x(), x());
    through(eight, |(a, b, c, d, e, f, g, h)| {
        [a, b, c, d, e, f, g, h].map(Tensor::dtype).to_vec()
    });
    let two_ranks = || x().unsqueeze::<2>();
    through(LstmState::new(two_ranks(), two_ranks()), |state| {
        vec![state.cell.dtype(), state.hidden.dtype()]
    });
    let hidden = two_ranks();
    let state = RnnState { hidden };
    through(state, |state| vec![state.hidden.dtype()]);
}

#[test]
fn integers_booleans_and_numbers_stay() {
    let tokens = Tensor::<2, Int>::from_ints([[70_000, 3]], &device());
    let mask = Tensor::<1, Bool>::from_bool([true, false], &device());
    let others = (7usize, 0.1, "x".to_string());
    let input = (vector(&[1.0]), tokens.clone(), mask.clone(), others);
    let (_, found, found_mask, rest) = through(input, |(x, ..)| vec![x.dtype()]);
    assert_eq!(found.to_data(), tokens.to_data());
    assert_eq!(found_mask.to_data(), mask.to_data());
    assert_eq!(rest, (7, 0.1, "x".to_string()));
}
