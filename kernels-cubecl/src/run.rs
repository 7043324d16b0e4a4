use burn::{
    backend::{Dispatch, DispatchTensorKind},
    tensor::Tensor,
};

use crate::{
    backends::fallback,
    list::{Entry, TensorList},
    ops::{AmpOps, TensorVec},
    status::{Repr, Status},
};

/// Multiplies every tensor by `inverse` and measures the products, in one pass.
///
/// Products are in f32 for f16, bf16 and f32 tensors, and in f64 for f64 ones; f32 and f64 tensors that nobody
/// else holds are overwritten in place. `inverse` has shape `[1]`, is f32, and lives on the tensors' device.
/// Does not wait for the device.
pub fn unscale(list: TensorList, inverse: Tensor<1>) -> (TensorList, Status) {
    if !has_kernels(&list) {
        return fallback::unscale(list, inverse);
    }
    let elements: Vec<usize> = list.tensors.iter().map(|entry| entry.elements).collect();
    let unscaled = Dispatch::amp_unscale(tensors(list), inverse.inner().into_dispatch());
    let entry = |(tensor, elements)| {
        let dtype = burn::backend::TensorMetadata::dtype(&tensor);
        Entry {
            tensor,
            dtype,
            elements,
        }
    };
    let tensors = unscaled.tensors.tensors.into_iter().zip(elements);
    let list = TensorList {
        tensors: tensors.map(entry).collect(),
    };
    (list, words(unscaled.status))
}

/// Measures every tensor as it is, in one pass that writes none of them. Does not wait for the device.
pub fn inspect(list: TensorList) -> Status {
    if !has_kernels(&list) {
        return fallback::inspect(list);
    }
    words(Dispatch::amp_inspect(tensors(list)))
}

/// Backends beside those of the extension would panic in it.
fn has_kernels(list: &TensorList) -> bool {
    match list.tensors.first().map(|entry| &entry.tensor.kind) {
        #[cfg(feature = "flex")]
        Some(DispatchTensorKind::Flex(_)) => true,
        _ => false,
    }
}

fn tensors(list: TensorList) -> TensorVec<Dispatch> {
    TensorVec {
        tensors: list.tensors.into_iter().map(|e| e.tensor).collect(),
    }
}

fn words(status: burn::backend::DispatchTensor) -> Status {
    Status {
        repr: Repr::Words(Tensor::from_dispatch(status)),
    }
}
