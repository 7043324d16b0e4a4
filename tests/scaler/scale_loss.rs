//! `scale`: any rank and float dtype; the product is taken in f32. That it takes every structure is in `border/inputs.rs`.

use DType::{BF16, F16, F32, F64};
use burn_amp_tests::prelude::*;

/// A loss of this value everywhere, times a scale, has this dtype.
fn check<const D: usize>(scale: f64, shape: [usize; D], loss: (DType, f64), product: DType) {
    let (dtype, value) = loss;
    let loss = Tensor::<D>::full(shape, value, (&Device::flex(), dtype));
    let scaler = GradScaler::new(at_scale(scale)).unwrap();
    let (Some(scaled), [None]) = scaler.scale((Some(loss), [None::<Tensor<1>>])) else {
        panic!("another structure");
    };
    assert_eq!((scaled.dtype(), scaled.dims()), (product, shape));
    let values: Vec<f64> = scaled.to_data().iter().collect();
    assert_eq!(values, vec![value * scale; shape.iter().product()]);
}

/// 65536 is infinite in f16, and 65537 neither an f16 nor a bf16: both factor and product must be f32. f64 stays.
#[test]
fn every_rank_and_dtype() {
    let one = (F32, -1.5);
    check(1024.0, [1], one, F32);
    check(1024.0, [2, 1, 3], one, F32);
    check(1024.0, [2, 1, 2, 1, 2], one, F32);
    check(1024.0, [0], one, F32);
    for half in [F16, BF16] {
        check(65536.0, [2], (half, 3.0), F32);
        check(65537.0, [2], (half, 1.0), F32);
    }
    check(65536.0, [2], (F64, 1e300), F64);
}
