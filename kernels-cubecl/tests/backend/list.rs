//! `TensorList`, and what is written over what it was, on Flex.

use burn::backend::{BackendTensor, DispatchTensorKind};

use super::*;

/// Where the values of a tensor on Flex lie.
pub fn address<const D: usize>(tensor: &Tensor<D>) -> Option<*const u8> {
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => Some(tensor.bytes().as_ptr()),
        _ => None,
    }
}

#[test]
fn misuses_panic() {
    let list = || list_of([floats(vec![1.0], [1])]);
    panics("", || list().get::<1>(1));
    panics("the rank is not the one", || list().get::<2>(0));
    panics("the rank is not the one", || list().pop::<2>());
    let two = floats(vec![0.5; 2], [2]);
    panics("`inverse` is one value, not 2", || unscale(list(), two));
}

/// Whatever the order of its dimensions, and the dtype of the inverse; and by the next operation, as what is popped is the only handle.
#[test]
fn memory_of_our_own_is_reused() {
    let half = floats(vec![0.5], [1]).cast(DType::F16);
    for dtype in [DType::F32, DType::F64] {
        for shape in [[3, 1], [1000, 1], [(1 << 18) + 1, 1], [2, 3]] {
            let source = Tensor::<2>::ones(shape, (&Device::flex(), dtype));
            let before = address(&source);
            let list = list_of([source.transpose()]);
            drop(inspect(list.clone()).expect("f32").read());
            let (mut products, _) = unscale(list, half.clone()).expect("f32");
            let product = products.pop::<2>().unwrap();
            assert_eq!(address(&product), before, "{dtype:?} of {shape:?}");
            assert_eq!(values(&product), vec![0.5; shape[0] * shape[1]]);
            let doubled = address(&product.mul_scalar(2.0));
            // What is transposed, Burn does not overwrite.
            let same = doubled == before || shape[1] > 1;
            assert!(same, "{dtype:?} of {shape:?}, later");
        }
    }
}
