use burn::{
    backend::{Dispatch, DispatchTensor, DispatchTensorKind, TensorMetadata, ops::FloatTensorOps},
    tensor::{DType, FloatDType, Tensor},
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
    let (list, empty) = split(list);
    let elements = empty.elements(&list);
    let unscaled = Dispatch::amp_unscale(tensors(list), inverse.inner().into_dispatch());
    let products = empty.merge(unscaled.tensors.tensors);
    (products, words(unscaled.status, elements))
}

/// Measures every tensor as it is, in one pass that writes none of them. Does not wait for the device.
pub fn inspect(list: TensorList) -> Status {
    if !has_kernels(&list) {
        return fallback::inspect(list);
    }
    let (list, empty) = split(list);
    let elements = empty.elements(&list);
    words(Dispatch::amp_inspect(tensors(list)), elements)
}

/// Backends beside those of the extension would panic in it, and nothing but empty tensors needs no kernel.
fn has_kernels(list: &TensorList) -> bool {
    let mut filled = list.tensors.iter().filter(|entry| entry.elements > 0);
    match filled.next().map(|entry| &entry.tensor.kind) {
        #[cfg(feature = "flex")]
        Some(DispatchTensorKind::Flex(_)) => true,
        // Most of its runtimes have no f64.
        #[cfg(feature = "cubecl")]
        Some(DispatchTensorKind::Cube(_)) => {
            list.tensors.iter().all(|entry| entry.dtype != DType::F64)
        }
        _ => false,
    }
}

fn tensors(list: TensorList) -> TensorVec<Dispatch> {
    TensorVec {
        tensors: list.tensors.into_iter().map(|e| e.tensor).collect(),
    }
}

fn words(status: DispatchTensor, elements: Vec<u64>) -> Status {
    Status {
        repr: Repr::Words(Tensor::from_dispatch(status), elements),
    }
}

/// Tensors without values, which kernels never see, and where they stood.
struct Empty {
    tensors: Vec<Option<Entry>>,
}

fn split(list: TensorList) -> (TensorList, Empty) {
    let mut filled = TensorList::new();
    let mut tensors = Vec::with_capacity(list.len());
    for mut entry in list.tensors {
        if entry.elements == 0 {
            if entry.dtype != DType::F64 {
                entry.tensor = Dispatch::float_cast(entry.tensor, FloatDType::F32);
                entry.dtype = DType::F32;
            }
            tensors.push(Some(entry));
        } else {
            filled.tensors.push(entry);
            tensors.push(None);
        }
    }
    (filled, Empty { tensors })
}

impl Empty {
    /// The number of values of every tensor of the whole list.
    fn elements(&self, filled: &TensorList) -> Vec<u64> {
        let mut filled = filled.tensors.iter().map(|entry| entry.elements as u64);
        self.tensors
            .iter()
            .map(|empty| match empty {
                Some(_) => 0,
                None => filled.next().unwrap_or(0),
            })
            .collect()
    }

    /// The whole list again.
    fn merge(self, filled: Vec<DispatchTensor>) -> TensorList {
        let mut filled = filled.into_iter().map(|tensor| Entry {
            dtype: tensor.dtype(),
            elements: tensor.shape().num_elements(),
            tensor,
        });
        let tensors = self
            .tensors
            .into_iter()
            .filter_map(|empty| empty.or_else(|| filled.next()));
        TensorList {
            tensors: tensors.collect(),
        }
    }
}
