//! f64 tensors of devices whose kernels have no f64: worked on by the host.

use burn::{
    backend::{TensorMetadata, ops::FloatTensorOps},
    tensor::{DType, Device, Tensor, TensorData},
};

use super::fallback::flatten;
use crate::{
    list::{Entry, TensorList},
    status::{Squares, TensorStatus},
};

/// What has been found. Waits for the device where there is a tensor.
pub(crate) fn unscale(
    list: TensorList,
    inverse: &Tensor<1>,
    edge: f32,
) -> (TensorList, Vec<TensorStatus>) {
    let mut products = TensorList::new();
    let mut statuses = Vec::new();
    if list.is_empty() {
        return (products, statuses);
    }
    let inverse = values(inverse.clone()).first().copied().unwrap_or(1.0);
    for entry in list.tensors {
        let (device, shape) = (Device::new(entry.tensor.device()), entry.tensor.shape());
        let before = read(&entry);
        let after: Vec<f64> = before.iter().map(|value| value * inverse).collect();
        statuses.push(measure(&before, &after, edge));
        let after = TensorData::new(after, [entry.elements]);
        let after = Tensor::<1>::from_data(after, (&device, DType::F64)).into_dispatch();
        products.tensors.push(Entry {
            tensor: burn::backend::Dispatch::float_reshape(after, shape),
            ..entry
        });
    }
    (products, statuses)
}

pub(crate) fn inspect(list: &TensorList, edge: f32) -> Vec<TensorStatus> {
    let measure = |entry| {
        let values = read(entry);
        measure(&values, &values, edge)
    };
    list.tensors.iter().map(measure).collect()
}

/// A tensor's values. Waits for the device.
pub(crate) fn read(entry: &Entry) -> Vec<f64> {
    values(flatten(entry.tensor.clone(), entry.elements))
}

fn values(tensor: Tensor<1>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn measure(before: &[f64], after: &[f64], edge: f32) -> TensorStatus {
    let bad = |values: &[f64]| values.iter().filter(|value| !value.is_finite()).count() as u64;
    let mut status = TensorStatus {
        elements: after.len() as u64,
        non_finite_before: bad(before),
        non_finite: bad(after),
        above: above(after, edge),
        ..Default::default()
    };
    let mut squares = Squares::default();
    for value in after.iter().filter(|value| value.is_finite()) {
        status.zeros += u64::from(*value == 0.0);
        status.max_abs = status.max_abs.max(value.abs());
        squares.add(value.abs());
    }
    status.norm = squares.norm();
    status
}

/// Values from `edge` on, and NaN.
pub(crate) fn above(values: &[f64], edge: f32) -> u64 {
    let reaches = |value: &&f64| value.is_nan() || value.abs() >= f64::from(edge);
    values.iter().filter(reaches).count() as u64
}
