use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Device, Tensor};

use crate::device::has_kernels;
use crate::{Job, TensorList, UnsupportedDType, UpdateRow, UpdateRule};
use crate::{run::run_list, step::ROW, words::upload};

impl UpdateRow {
    /// Rows as a tensor of shape `[parameters, 12]` in f32, which [`update`] reads on the device.
    pub fn upload(rows: &[Self], device: &Device) -> Tensor<2> {
        let words = rows.iter().flat_map(|row| row.words());
        upload(words, [rows.len(), ROW], device)
    }
}

/// Whether [`update`] has a kernel for parameters like this one: in f16, bf16 or f32, on Flex and on CubeCL devices.
pub fn can_update<const D: usize>(parameter: &Tensor<D>) -> bool {
    has_step(&parameter.clone().inner().into_dispatch())
}

fn has_step(tensor: &DispatchTensor) -> bool {
    tensor.dtype() != DType::F64 && has_kernels(tensor)
}

/// Steps many parameters in one pass: reads gradients, states and parameters, and writes states and parameters.
///
/// The list has, for each parameter in turn, its gradient (f16, bf16 or f32), itself (f16, bf16 or f32), its master in f32 if it is
/// in half precision, and its states in f32: all of the parameter's shape, on one device. Given back are, for each in turn, the parameter,
/// the master and the states; those that nobody else holds are overwritten in place. `rows` has one [`UpdateRow`] for each parameter
/// ([`UpdateRow::upload`]).
///
/// The arithmetic is that of Burn 0.22.1's optimizers, operation by operation in f32: on Flex bit for bit. A master whose rounded image is no
/// longer the parameter, which was changed elsewhere, takes the parameter's value first. Where a row is not taken, nothing changes.
/// Does not wait for the device.
///
/// # Errors
///
/// [`UnsupportedDType`] if the device cannot read a tensor's dtype, or there is no kernel for it (see [`can_update`]).
///
/// # Panics
///
/// If the list is not of that form, or not all tensors are on one device.
pub fn update(
    rule: UpdateRule,
    list: TensorList,
    rows: Tensor<2>,
) -> Result<TensorList, UnsupportedDType> {
    if list.is_empty() {
        return Ok(list);
    }
    assert_eq!(rows.dtype(), DType::F32, "rows are in f32");
    check(rule, &list, rows.dims());
    if let Some(tensor) = list.tensors.iter().find(|tensor| !has_step(tensor)) {
        let device = Device::new(tensor.device());
        return Err(UnsupportedDType::new(&device, tensor.dtype()));
    }
    let rows = Some(rows.inner().into_dispatch());
    let (updated, _) = run_list(list, rows, Job::Update { rule })?;
    Ok(TensorList::of(updated))
}

/// A kernel over other shapes than it was given would read other memory.
fn check(rule: UpdateRule, list: &TensorList, rows: [usize; 2]) {
    let parameters = rule.parameters(&list.tensors, |tensor| tensor.dtype());
    for own in &parameters {
        let (shape, count) = (own[1].shape(), rule.tensors(own[1].dtype()));
        let all = "each parameter has its gradient, its master and its states";
        assert_eq!(own.len(), count, "{all}");
        let alike = own.iter().all(|tensor| tensor.shape() == shape);
        assert!(alike, "all its tensors have the parameter's shape");
        let wide = own[2..].iter().all(|tensor| tensor.dtype() == DType::F32);
        assert!(wide, "masters and states are in f32");
    }
    let count: usize = parameters.iter().map(Vec::len).sum();
    assert_eq!(count, list.len(), "a gradient without its parameter");
    assert_eq!(rows, [parameters.len(), ROW], "a row for each parameter");
}
