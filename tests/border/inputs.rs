//! What can go into a scope or a region in f32, and come out of it.

use burn::nn::RnnState;

use crate::support::*;

struct Batch {
    images: Tensor<3>,
    weights: Option<Tensor<1>>,
    targets: Tensor<1, Int>,
    /// Left out of the list below.
    untouched: Tensor<1>,
    name: &'static str,
}

cast_fields!(Batch { images, weights });

/// Runs a value through a scope and a region in f32: `dtypes` of it must be half precision in the scope, and f32 in the region and outside.
fn through<T: CastFloat>(value: T, dtypes: impl Fn(&T) -> Vec<DType>) -> T {
    let assert_all = |value: &T, expected: DType| {
        let found = dtypes(value);
        assert!(!found.is_empty());
        assert!(found.iter().all(|dtype| *dtype == expected), "{found:?}");
    };
    let mut value = value;
    for dtype in halves() {
        value = scaled(dtype, two(10)).autocast(value, |inside| {
            assert_all(&inside, dtype.into());
            let back = in_f32(inside, |wide| {
                assert_all(&wide, DType::F32);
                wide
            });
            assert_all(&back, dtype.into());
            back
        });
        assert_all(&value, DType::F32);
    }
    value
}

#[test]
fn a_batch_is_cast_by_its_fields() {
    let batch = Batch {
        images: Tensor::ones([1, 2, 2], &device()),
        weights: Some(vector(&[2.0])),
        targets: Tensor::from_ints([300_000], &device()),
        untouched: vector(&[1.0]),
        name: "batch",
    };
    through(batch, |batch| {
        assert_eq!((batch.untouched.dtype(), batch.name), (DType::F32, "batch"));
        // f16 could not hold it.
        assert_eq!(batch.targets.clone().into_scalar::<i64>(), 300_000);
        let weights = batch.weights.as_ref().unwrap();
        vec![batch.images.dtype(), weights.dtype()]
    });
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
    let all = (x(), (x().unsqueeze::<3>(), [x()]));
    through(all, |(a, (b, [c]))| vec![a.dtype(), b.dtype(), c.dtype()]);
    let eight = (x(), x(), x(), x(), x(), x(), x(), x());
    through(eight, |(a, b, c, d, e, f, g, h)| {
        [a, b, c, d, e, f, g, h].map(Tensor::dtype).to_vec()
    });
    let two_ranks = || x().unsqueeze::<2>();
    let both = LstmState::new(two_ranks(), two_ranks());
    through(both, |s| vec![s.cell.dtype(), s.hidden.dtype()]);
    let hidden = two_ranks();
    through(RnnState { hidden }, |state| vec![state.hidden.dtype()]);
}

/// Tensors of the scope are widened by a region, f32 ones stay; all come back in half precision.
#[test]
fn a_region_takes_both() {
    let output = scaled(FloatDType::F16, two(10)).autocast(vector(&[1.0, 2.0]), |x| {
        let (sum, list) = in_f32((x, vec![vector(&[3.0, 4.0])]), |(x, list)| {
            assert_eq!([x.dtype(), list[0].dtype()], [DType::F32; 2]);
            (x + list[0].clone(), list)
        });
        assert_eq!([sum.dtype(), list[0].dtype()], [DType::F16; 2]);
        sum
    });
    assert_eq!(values(output), [4.0, 6.0]);
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
