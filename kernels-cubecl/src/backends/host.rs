//! f64 tensors of devices whose kernels have no f64: read and measured on the host.

use burn::tensor::{FloatDType, Tensor};

use super::fallback::flatten;
use crate::{
    list::TensorList,
    status::{Squares, TensorStatus},
};

/// What waits to be read: tensors before they were multiplied, and the factor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    tensors: Vec<Tensor<1>>,
    inverse: Option<Tensor<1>>,
}

pub(crate) fn unscale(list: TensorList, inverse: &Tensor<1>) -> (TensorList, Host) {
    let host = Host {
        inverse: (!list.is_empty()).then(|| inverse.clone()),
        ..inspect(list.clone())
    };
    (products(list, inverse), host)
}

pub(crate) fn inspect(list: TensorList) -> Host {
    let entries = list.tensors.into_iter();
    Host {
        tensors: entries.map(|e| flatten(e.tensor, e.elements)).collect(),
        inverse: None,
    }
}

fn products(mut list: TensorList, inverse: &Tensor<1>) -> TensorList {
    use burn::backend::{Dispatch, TensorMetadata, ops::FloatTensorOps};
    let factor = inverse.clone().cast(FloatDType::F64);
    for entry in &mut list.tensors {
        let shape = entry.tensor.shape();
        let flat = flatten(entry.tensor.clone(), entry.elements) * factor.clone();
        entry.tensor = Dispatch::float_reshape(flat.into_dispatch(), shape);
    }
    list
}

impl Host {
    pub(crate) fn read(self) -> Vec<TensorStatus> {
        let inverse = self
            .inverse
            .map(values)
            .and_then(|values| values.first().copied());
        let measure = |tensor| measure(values(tensor), inverse.unwrap_or(1.0));
        self.tensors.into_iter().map(measure).collect()
    }

    /// All values, as they are.
    pub(crate) fn values(self) -> impl Iterator<Item = f64> {
        self.tensors.into_iter().flat_map(values)
    }
}

fn values(tensor: Tensor<1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn measure(values: Vec<f64>, inverse: f64) -> TensorStatus {
    let mut status = TensorStatus {
        elements: values.len() as u64,
        ..Default::default()
    };
    let mut squares = Squares::default();
    for before in values {
        let value = before * inverse;
        status.non_finite_before += u64::from(!before.is_finite());
        if !value.is_finite() {
            status.non_finite += 1;
            continue;
        }
        status.zeros += u64::from(value == 0.0);
        status.max_abs = status.max_abs.max(value.abs());
        squares.add(value.abs());
    }
    status.norm = squares.norm();
    status
}
