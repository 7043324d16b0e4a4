//! `TensorList`, on Flex.
#![cfg(feature = "flex")]

use burn::{
    backend::{BackendTensor, DispatchTensorKind},
    tensor::{DType, Device, FloatDType, Tensor},
};
use burn_amp_kernels::{TensorList, inspect, unscale};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &Device::flex())
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// Where the values of a tensor lie.
fn address<const D: usize>(tensor: &Tensor<D>) -> *const u8 {
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => tensor.bytes().as_ptr(),
        _ => panic!("not a float tensor on Flex"),
    }
}

fn list<const D: usize>(tensor: Tensor<D>) -> TensorList {
    let mut list = TensorList::new();
    list.push(tensor);
    list
}

fn unscaled(list: TensorList) -> TensorList {
    let (products, _) = unscale(list, tensor(&[0.5])).expect("f32");
    products
}

#[test]
fn counts_and_hands_out() {
    let mut list = TensorList::new();
    assert!(list.is_empty());
    assert_eq!(list.len(), 0);
    assert!(list.pop::<1>().is_none());
    list.push(tensor(&[1.0, 2.0]));
    list.push(tensor(&[3.0, 4.0]).reshape([2, 1]));
    assert!(!list.is_empty());
    assert_eq!(list.len(), 2);

    assert_eq!(values(list.get::<1>(0)), [1.0, 2.0]);
    assert_eq!(list.get::<2>(1).dims(), [2, 1]);
    assert_eq!(list.len(), 2);
    assert_eq!(list.pop::<2>().map(values), Some(vec![3.0, 4.0]));
    assert_eq!(list.pop::<1>().map(values), Some(vec![1.0, 2.0]));
    assert!(list.is_empty());
}

#[test]
fn products_keep_their_order() {
    let mut list = TensorList::new();
    for value in 0..5 {
        list.push(tensor(&[value as f32]));
    }
    let mut products = unscaled(list);
    assert_eq!(products.len(), 5);
    for value in (0..5).rev() {
        let half = value as f32 / 2.0;
        assert_eq!(products.pop::<1>().map(values), Some(vec![half]));
    }
}

#[test]
fn other_ranks_and_what_is_not_there_panic() {
    let misuses: [fn(TensorList); 3] = [
        |list| drop(list.get::<1>(1)),
        |list| drop(list.get::<2>(0)),
        |mut list| drop(list.pop::<2>()),
    ];
    for (index, misuse) in misuses.into_iter().enumerate() {
        let list = self::list(tensor(&[1.0]));
        let misused = catch_unwind(AssertUnwindSafe(|| misuse(list)));
        assert!(misused.is_err(), "misuse {index}");
    }
}

#[test]
fn memory_of_our_own_is_reused() {
    for dtype in [DType::F32, DType::F64] {
        for length in [3, 1000, (1 << 18) + 1] {
            let source = Tensor::<1>::ones([length], (&Device::flex(), dtype));
            let before = address(&source);
            let list = self::list(source);
            drop(inspect(list.clone()).expect("f32").read());
            let products = unscaled(list);
            let after = address(&products.get::<1>(0));
            assert_eq!(after, before, "{dtype:?} of {length}");
        }
    }
}

#[test]
fn memory_of_others_is_not() {
    let source = tensor(&[1.0, 2.0]);
    let list = self::list(source.clone());
    let products = unscaled(list);
    assert_ne!(address(&products.get::<1>(0)), address(&source));
    assert_eq!(values(source), [1.0, 2.0]);
}

/// What was popped is the only handle, so that the next operation can write over it.
#[test]
fn popped_tensors_are_the_only_handle() {
    let list = self::list(tensor(&[1.0, 2.0, 3.0]));
    let mut products = unscaled(list);
    let product: Tensor<1> = products.pop().unwrap();
    let before = address(&product);
    assert_eq!(address(&product.mul_scalar(2.0)), before);
}

#[test]
fn the_order_of_dimensions_keeps_nothing_from_being_overwritten() {
    let plane = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).reshape([2, 3]);
    let before = address(&plane);
    let list = self::list(plane.transpose());
    let product = unscaled(list).get::<2>(0);
    assert_eq!(address(&product), before);
    assert_eq!(values(product), [0.5, 2.0, 1.0, 2.5, 1.5, 3.0]);
}

#[test]
fn the_inverse_may_be_of_any_float_dtype() {
    let half = tensor(&[0.5]).cast(FloatDType::F16);
    let list = self::list(tensor(&[3.0]));
    let (products, _) = unscale(list, half).unwrap();
    assert_eq!(values(products.get::<1>(0)), [1.5]);
}

#[test]
#[should_panic(expected = "`inverse` is one value, not 2")]
fn an_inverse_of_two_values_is_refused() {
    let list = self::list(tensor(&[3.0]));
    let _ = unscale(list, tensor(&[0.5, 0.5]));
}
