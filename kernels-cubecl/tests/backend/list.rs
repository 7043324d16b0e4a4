//! `TensorList`, and what is written over what it was, on Flex.

use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_amp_kernels::{TensorList, inspect, unscale};

use crate::system::{list_of, panics};

fn tensor(values: &[f32]) -> Tensor<1> {
    Tensor::from_floats(values, &Device::flex())
}

/// Where the values of a tensor on Flex lie.
pub fn address<const D: usize>(tensor: &Tensor<D>) -> Option<*const u8> {
    match tensor.clone().into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => Some(tensor.bytes().as_ptr()),
        _ => None,
    }
}

type Misuse = fn(TensorList);

#[test]
fn misuses_panic() {
    let misuses: [(&str, Misuse); 4] = [
        ("", |list| drop(list.get::<1>(1))),
        ("", |list| drop(list.get::<2>(0))),
        ("", |mut list| drop(list.pop::<2>())),
        ("`inverse` is one value, not 2", |list| {
            drop(unscale(list, tensor(&[0.5; 2])));
        }),
    ];
    for (message, misuse) in misuses {
        panics(message, || misuse(list_of([tensor(&[1.0])])));
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
    let (products, _) = unscale(list_of([tensor(&[3.0])]), half).unwrap();
    assert_eq!(products.get::<1>(0).into_scalar::<f32>(), 1.5);
}
