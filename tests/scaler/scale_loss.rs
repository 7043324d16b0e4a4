//! `scale`: any rank, float dtype and structure; the product is taken in f32.

use super::support::*;

fn loss<const D: usize>(shape: [usize; D], dtype: DType, value: f64) -> Tensor<D> {
    Tensor::full(shape, value, (&Device::flex(), dtype))
}

fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().iter().collect()
}

fn check_rank<const D: usize>(shape: [usize; D]) {
    let scaled = scaler(1024.0).scale(loss(shape, DType::F32, -1.5));
    assert_eq!(scaled.dims(), shape);
    assert_eq!(scaled.dtype(), DType::F32);
    let count: usize = shape.iter().product();
    assert_eq!(values(&scaled), vec![-1536.0; count]);
}

#[test]
fn any_rank() {
    check_rank([1]);
    check_rank([7]);
    check_rank([2, 3]);
    check_rank([2, 1, 3]);
    check_rank([1, 2, 2, 2]);
    check_rank([2, 1, 2, 1, 2]);
    check_rank([0]);
}

/// 65536 is infinite in f16: both factor and product must be f32.
#[test]
fn half_precision_losses_are_multiplied_in_f32() {
    for dtype in [DType::F16, DType::BF16] {
        let scaled = scaler(65536.0).scale(loss([2], dtype, 3.0));
        assert_eq!(scaled.dtype(), DType::F32);
        assert_eq!(values(&scaled), [196608.0; 2], "{dtype:?}");
        // 65537 is neither an f16 nor a bf16.
        let scaled = scaler(65537.0).scale(loss([1], dtype, 1.0));
        assert_eq!(values(&scaled), [65537.0], "{dtype:?}");
    }
}

#[test]
fn f64_losses_stay_f64() {
    let scaled = scaler(65536.0).scale(loss([1], DType::F64, 1e300));
    assert_eq!(scaled.dtype(), DType::F64);
    assert_eq!(values(&scaled), [1e300 * 65536.0]);
}

#[test]
fn structures_keep_their_shape() {
    let scaler = scaler(8.0);
    let one = |value| loss([1], DType::F32, value);
    let two = |value| loss([1, 2], DType::F16, value);

    let (a, b) = scaler.scale((one(1.0), two(0.5)));
    assert_eq!((values(&a), values(&b)), (vec![8.0], vec![4.0; 2]));
    assert_eq!(b.dtype(), DType::F32);

    assert!(scaler.scale(None::<Tensor<1>>).is_none());
    let nested = vec![(Some(two(1.0)), [one(2.0)]), (None, [one(4.0)])];
    let nested = scaler.scale(nested);
    assert_eq!(values(nested[0].0.as_ref().unwrap()), [8.0; 2]);
    assert!(nested[1].0.is_none());
    assert_eq!(values(&nested[0].1[0]), [16.0]);
    assert_eq!(values(&nested[1].1[0]), [32.0]);
}

#[test]
fn backward_goes_through_the_product() {
    let model = Model::new();
    let loss = || (model.vector.val() * 3.0).sum();
    let scaler = scaler(256.0);

    let grads = GradientsParams::from_grads(scaler.scale(loss()).backward(), &model);
    assert_eq!(values_of::<1>(&grads, model.vector.id), [768.0; 5]);
    assert_eq!(scaler.scaled(grads).unwrap().loss_scale(), 256.0);
    let grads = scaler.backward(loss(), &model);
    assert_eq!(grads.loss_scale(), 256.0);
    assert_eq!(values_of::<1>(grads.params(), model.vector.id), [768.0; 5]);
    let grads = scaler.unscale(grads, &model).unwrap();
    assert_eq!(values_of::<1>(grads.params(), model.vector.id), [3.0; 5]);
    assert_eq!(model.num_params(), Model::VALUES);
}
