//! What can go into a scope or a region in f32, and come out of it; and what is cast outside of a scope.

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
fn through<T: CastFloat>(mut value: T, dtypes: impl Fn(&T) -> Vec<DType>) -> T {
    let assert_all = |value: T, expected: DType| {
        let found = dtypes(&value);
        assert!(!found.is_empty());
        assert!(found.iter().all(|dtype| *dtype == expected), "{found:?}");
        value
    };
    for dtype in halves() {
        value = scaled(dtype, two(10)).autocast(value, |inside| {
            let inside = assert_all(inside, dtype.into());
            let back = in_f32(inside, |wide| assert_all(wide, DType::F32));
            assert_all(back, dtype.into())
        });
        value = assert_all(value, DType::F32);
    }
    value
}

fn x() -> Tensor<1> {
    vector(&[1.0, 2.0])
}

/// Floats as a whole, and the listed fields of a batch; integers, booleans and what is no tensor stay.
#[test]
fn structures_are_cast() {
    let batch = Batch {
        images: Tensor::ones([1, 2, 2], &device()),
        weights: Some(x()),
        targets: Tensor::from_ints([300_000], &device()),
        untouched: x(),
        name: "batch",
    };
    let hidden = || x().unsqueeze::<2>();
    let state = LstmState::new(hidden(), hidden());
    let rnn = RnnState { hidden: hidden() };
    let nested = (x(), [x(), x()], vec![x()], (Some(x()), None::<Tensor<2>>));
    let tokens = Tensor::<2, Int>::from_ints([[70_000, 3]], &device());
    let mask = Tensor::<1, Bool>::from_bool([true, false], &device());
    let others = (7usize, 0.1, "x".to_string());
    let kept = (tokens.clone(), mask.clone(), others.clone());
    let all = (x(), x(), state, rnn, nested, batch, kept);
    let found = through(all, |(a, b, state, rnn, nested, batch, _)| {
        assert_eq!((batch.untouched.dtype(), batch.name), (DType::F32, "batch"));
        // f16 could not hold it.
        assert_eq!(batch.targets.clone().into_scalar::<i64>(), 300_000);
        let (c, [d, e], list, (some, none)) = nested;
        assert!(none.is_none());
        let [some, weights] = [some, &batch.weights].map(|vector| vector.as_ref().unwrap());
        let vectors = [a, b, c, d, e, &list[0], some, weights].map(Tensor::dtype);
        let states = [&state.cell, &state.hidden, &rnn.hidden].map(Tensor::dtype);
        [&vectors[..], &states, &[batch.images.dtype()]].concat()
    });
    let (.., (found_tokens, found_mask, rest)) = found;
    assert_eq!(found_tokens.to_data(), tokens.to_data());
    assert_eq!((found_mask.to_data(), rest), (mask.to_data(), others));
}

/// Tensors of the scope are widened by a region, f32 ones stay; all come back in half precision.
#[test]
fn a_region_takes_both() {
    let output = f16(two(10)).autocast(x(), |x| {
        let (sum, list) = in_f32((x, vec![vector(&[3.0, 4.0])]), |(x, list)| {
            assert_eq!([x.dtype(), list[0].dtype()], [DType::F32; 2]);
            (x + list[0].clone(), list)
        });
        assert_eq!([sum.dtype(), list[0].dtype()], [DType::F16; 2]);
        sum
    });
    assert_eq!(values(output), [4.0, 6.0]);
}

/// What was made in f32 inside, from tensors of an island or of the model's own, comes in the same way.
#[test]
fn outside_a_scope_cast_is_a_cast() {
    let amp = f16(two(12));
    let input = vector(&[1.0, 2.0]).require_grad();
    let cast = amp.cast(input.clone());
    assert_eq!(cast.dtype(), DType::F16);
    let grads = cast.sum().backward();
    assert_eq!(values(input.grad(&grads).unwrap()), [1.0; 2]);

    // An island beside a scope: f32 stays, half precision comes back as it was.
    let output = in_f32(vector(&[1.0]), |x| x);
    assert_eq!(output.dtype(), DType::F32);
    for dtype in halves() {
        let half = vector(&[300.0]).cast(dtype).require_grad();
        let output = in_f32(half.clone(), |x| {
            assert_eq!(x.dtype(), DType::F32);
            x.square().div_scalar(1000.0)
        });
        assert_eq!(output.dtype(), DType::from(dtype));
        assert_eq!(values(output.clone()), [90.0]);
        let grads = output.sum().backward();
        assert_eq!(half.grad(&grads).unwrap().dtype(), DType::from(dtype));
    }
}
