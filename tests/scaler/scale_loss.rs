//! `scale`: any rank and float dtype; the product is taken in f32. That it takes every structure is in `border/inputs.rs`.

use burn_amp_tests::prelude::*;

/// This value everywhere, times a scale: dtype, shape and values.
fn scaled<const D: usize>(
    scale: f64,
    shape: [usize; D],
    dtype: DType,
    value: f64,
) -> (DType, Vec<usize>, Vec<f64>) {
    let loss = Tensor::<D>::full(shape, value, (&Device::flex(), dtype));
    let scaler = at_scale(scale).init().unwrap();
    let (Some(scaled), [None]) = scaler.scale((Some(loss), [None::<Tensor<1>>])) else {
        panic!("another structure");
    };
    let values = scaled.to_data().iter().collect();
    (scaled.dtype(), scaled.dims().to_vec(), values)
}

#[test]
fn any_rank() {
    fn check<const D: usize>(shape: [usize; D]) {
        let values = vec![-1536.0; shape.iter().product()];
        let found = scaled(1024.0, shape, DType::F32, -1.5);
        assert_eq!(found, (DType::F32, shape.to_vec(), values));
    }
    check([1]);
    check([2, 1, 3]);
    check([2, 1, 2, 1, 2]);
    check([0]);
}

/// 65536 is infinite in f16, and 65537 neither an f16 nor a bf16: both factor and product must be f32. f64 stays.
#[test]
fn half_precision_losses_are_multiplied_in_f32() {
    for (dtype, scale, value, product) in [
        (DType::F16, 65536.0, 3.0, DType::F32),
        (DType::BF16, 65536.0, 3.0, DType::F32),
        (DType::F16, 65537.0, 1.0, DType::F32),
        (DType::BF16, 65537.0, 1.0, DType::F32),
        (DType::F64, 65536.0, 1e300, DType::F64),
    ] {
        let found = scaled(scale, [2], dtype, value);
        assert_eq!(found, (product, vec![2], vec![value * scale; 2]));
    }
}
