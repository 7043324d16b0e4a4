//! Inputs of the wrong dtype: named, or cast.

use burn::{
    module::Module,
    nn::LinearConfig,
    tensor::{Bool, DType, Device, FloatDType, Int, Tensor},
};
use burn_amp::{AmpError, CastFloat, MixedPrecision};

use crate::support::{panic_message, tensor};

#[test]
fn check_names_the_input_and_what_to_cast() {
    let device = Device::flex();
    let input = tensor([2, 3], &device);
    let f16 = MixedPrecision::f16();
    f16.check("images", &f16.cast(input.clone())).unwrap();
    MixedPrecision::new(FloatDType::F32)
        .check("images", &input)
        .unwrap();

    let error = f16.check("images", &input).unwrap_err();
    let expected = AmpError::InputDType {
        input: "images".to_string(),
        found: DType::F32,
        expected: DType::F16,
    };
    assert_eq!(error, expected);
    let message = error.to_string();
    for part in ["`images`", "F32", "F16", "`MixedPrecision::cast`"] {
        assert!(message.contains(part), "{message}");
    }
    let bf16 = MixedPrecision::bf16();
    let error = bf16.check("images", &f16.cast(input)).unwrap_err();
    assert!(error.to_string().contains("BF16"), "{error}");
}

/// Without a check, it is Burn's panic.
#[test]
fn burn_refuses_an_f32_input() {
    let device = Device::flex();
    let f16 = MixedPrecision::f16();
    let linear = LinearConfig::new(3, 2).init(&device);
    let linear = linear.apply_reparameterization(f16.clone());
    let input = tensor([2, 3], &device);
    let message = panic_message(|| linear.forward(input.clone()));
    assert!(message.contains("dtype mismatch"), "{message}");

    let output = f16.autocast(input, |x| {
        assert_eq!(x.dtype(), DType::F16);
        let output = linear.forward(x);
        assert_eq!(output.dtype(), DType::F16);
        output
    });
    assert_eq!(output.dtype(), DType::F32);
}

struct Batch {
    images: Tensor<3>,
    targets: Tensor<1, Int>,
}

impl CastFloat for Batch {
    fn cast_float(self, dtype: FloatDType) -> Self {
        Self {
            images: self.images.cast_float(dtype),
            ..self
        }
    }
}

#[test]
fn a_batch_is_cast_as_a_whole() {
    let device = Device::flex();
    let batch = || Batch {
        images: tensor([2, 3, 3], &device),
        targets: Tensor::from_data([3, 1], &device),
    };
    let mask = || Tensor::<1, Bool>::from_data([true, false], &device);
    let (cast, (mask, list), [first, second], none) = MixedPrecision::f16().cast((
        batch(),
        (mask(), vec![tensor([2], &device), tensor([4], &device)]),
        [Some(tensor([1, 2], &device)), None],
        None::<Tensor<4>>,
    ));
    assert_eq!(cast.images.dtype(), DType::F16);
    assert_eq!(cast.targets.to_data(), batch().targets.to_data());
    assert_eq!(
        mask.to_data().iter::<bool>().collect::<Vec<_>>(),
        [true, false]
    );
    assert!(list.iter().all(|tensor| tensor.dtype() == DType::F16));
    assert_eq!(first.unwrap().dtype(), DType::F16);
    assert!(second.is_none() && none.is_none());
}

#[test]
fn autocast_takes_and_returns_structures() {
    let device = Device::flex();
    let input = (tensor([2, 3], &device), Some(tensor([2], &device)));
    let (sum, inside) = MixedPrecision::bf16().autocast(input, |(a, b)| {
        let inside = vec![a.clone().sum(), b.clone().unwrap().sum()];
        assert!(inside.iter().all(|t| t.dtype() == DType::BF16));
        (a.sum() + b.unwrap().sum(), inside)
    });
    assert_eq!(sum.dtype(), DType::F32);
    assert!(inside.iter().all(|t| t.dtype() == DType::F32));
}
