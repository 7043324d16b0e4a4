//! Regions in f32, and tensors that a scope captures.

use crate::support::*;

/// A captured tensor that is taken in has its own gradient, unscaled, and is taken in once; in a region with a factor, too.
#[test]
fn captured_tensors_are_taken_in() {
    let cases = halves().into_iter();
    for (dtype, k) in cases.flat_map(|dtype| [(dtype, 0), (dtype, 3)]) {
        let amp = scaled(dtype, two(12));
        let captured = vector(&[4.0, -0.5]).require_grad();
        let input = vector(&[1.0, 2.0]).require_grad();
        let region = |x| {
            let inside = amp.cast(captured.clone());
            assert_eq!(inside.dtype(), DType::from(dtype));
            let twice = amp.cast(amp.cast(inside));
            // What is inside already stays.
            amp.cast(x) * twice
        };
        let output = amp.autocast(input.clone(), |x| by(k, x, region));
        let grads = (output * two(-30)).sum().backward();
        let [captured, input] = [captured, input].map(|x| x.grad(&grads).unwrap() * two(30));
        assert_eq!(values(captured), [1.0, 2.0]);
        assert_eq!(values(input), [4.0, -0.5]);
    }
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
        let mean = |x: Tensor<1>| {
            assert_eq!(x.dtype(), DType::F32);
            x.square().div_scalar(1000.0)
        };
        let output = in_f32(half.clone(), mean);
        assert_eq!(output.dtype(), DType::from(dtype));
        assert_eq!(values(output.clone()), [90.0]);
        let grads = output.sum().backward();
        assert_eq!(half.grad(&grads).unwrap().dtype(), DType::from(dtype));
    }
}
