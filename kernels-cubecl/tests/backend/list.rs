//! `TensorList`, and what is written over what it was, on Flex.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_amp_kernels::{TensorList, inspect, unscale};

use crate::system::list_of;

fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &Device::flex())
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// Where the values of a tensor on Flex lie.
pub fn address<const D: usize>(tensor: &Tensor<D>) -> Option<*const u8> {
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => Some(tensor.bytes().as_ptr()),
        _ => None,
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
        let list = list_of([tensor(&[1.0])]);
        let misused = catch_unwind(AssertUnwindSafe(|| misuse(list)));
        assert!(misused.is_err(), "misuse {index}");
    }
}

/// Whatever the order of its dimensions; and by the next operation, as what is popped is the only handle.
#[test]
fn memory_of_our_own_is_reused() {
    for dtype in [DType::F32, DType::F64] {
        for shape in [[3, 1], [1000, 1], [(1 << 18) + 1, 1], [2, 3]] {
            let source = Tensor::<2>::ones(shape, (&Device::flex(), dtype));
            let before = address(&source);
            let list = list_of([source.transpose()]);
            drop(inspect(list.clone()).expect("f32").read());
            let (mut products, _) = unscale(list, tensor(&[0.5])).expect("f32");
            let product = products.pop::<2>().unwrap();
            assert_eq!(address(&product), before, "{dtype:?} of {shape:?}");
            let doubled = address(&product.mul_scalar(2.0));
            // What is transposed, Burn does not overwrite.
            let same = doubled == before || shape[1] > 1;
            assert!(same, "{dtype:?} of {shape:?}, later");
        }
    }
}

#[test]
fn the_inverse_may_be_of_any_float_dtype() {
    let half = tensor(&[0.5]).cast(FloatDType::F16);
    let list = list_of([tensor(&[3.0])]);
    let (products, _) = unscale(list, half).unwrap();
    assert_eq!(values(products.get::<1>(0)), [1.5]);
}

#[test]
#[should_panic(expected = "`inverse` is one value, not 2")]
fn an_inverse_of_two_values_is_refused() {
    let list = list_of([tensor(&[3.0])]);
    let _ = unscale(list, tensor(&[0.5, 0.5]));
}
