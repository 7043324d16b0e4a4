use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::backends::COMPOSED;
use crate::device::{Kind, has_kernels};
use crate::remote::stores;
use crate::{AmpOps, Histogram, Job, Status, TensorList, TensorVec, UnsupportedDType};

/// Multiplies every tensor by `inverse` and measures the products, in one pass.
///
/// Products are in f32 for f16, bf16 and f32 tensors, and in f64 for f64 ones; f32 and f64 tensors that nobody
/// else holds are overwritten in place. `inverse` has shape `[1]`, is rounded to f32, and lives on the tensors' device.
/// Does not wait for the device, except where there are f64 tensors on a CubeCL device: its kernels have no f64, and the
/// list is moved to Flex, done there and moved back.
///
/// On Flex, new memory for products is kept from step to step: `release_memory` says how much, and frees it.
///
/// # Errors
///
/// [`UnsupportedDType`] if the device cannot read a tensor's dtype; for f64 on CubeCL devices, also if feature `flex` is
/// off.
///
/// # Panics
///
/// If `inverse` is not one value, or not all of them are on one device.
pub fn unscale(
    list: TensorList,
    inverse: Tensor<1>,
) -> Result<(TensorList, Status), UnsupportedDType> {
    multiply(list, inverse, false)
}

/// Multiplies and measures as [`unscale`] does, but products keep the dtypes of their factors, and are measured after they were rounded to them: what
/// overflows by rounding is seen. f16 and bf16 are multiplied in f32.
///
/// All tensors that nobody else holds are overwritten in place.
///
/// # Errors
///
/// As [`unscale`].
///
/// # Panics
///
/// As [`unscale`].
pub fn unscale_in_dtype(
    list: TensorList,
    inverse: Tensor<1>,
) -> Result<(TensorList, Status), UnsupportedDType> {
    multiply(list, inverse, true)
}

fn multiply(
    list: TensorList,
    inverse: Tensor<1>,
    keep_dtype: bool,
) -> Result<(TensorList, Status), UnsupportedDType> {
    let count = inverse.dims()[0];
    assert_eq!(count, 1, "`inverse` is one value, not {count}");
    let (elements, edge) = (list.elements(), list.edge);
    let inverse = inverse.inner().cast(FloatDType::F32).into_dispatch();
    let job = Job::Unscale { keep_dtype, edge };
    let (mut products, home) = run_list(list, Some(inverse), job)?;
    let status = Status::new(products.pop(), elements);
    if let Some(home) = home {
        products = moved(products, &home);
    }
    Ok((TensorList::of(products), status))
}

/// Measures every tensor as it is, in one pass that writes none of them.
///
/// Does not wait for the device, except for f64 tensors, as [`unscale`].
///
/// # Errors
///
/// [`UnsupportedDType`], as [`unscale`].
///
/// # Panics
///
/// If not all tensors are on one device.
pub fn inspect(list: TensorList) -> Result<Status, UnsupportedDType> {
    let (elements, edge) = (list.elements(), list.edge);
    let (mut rows, _) = run_list(list, None, Job::Inspect { edge })?;
    Ok(Status::new(rows.pop(), elements))
}

/// Counts the values of all tensors by binary exponent, in one pass that writes none of them.
///
/// For diagnosis: it shows how much of a gradient lies below the range of a narrower dtype. Values are taken as they
/// are. Does not wait for the device, except for f64 tensors, as [`unscale`].
///
/// # Errors
///
/// [`UnsupportedDType`], as [`unscale`].
///
/// # Panics
///
/// If not all tensors are on one device.
pub fn histogram(list: TensorList) -> Result<Histogram, UnsupportedDType> {
    let (mut counts, _) = run_list(list, None, Job::Histogram)?;
    let counts = counts.pop().map(Tensor::from_dispatch);
    Ok(Histogram { counts })
}

/// Does a job to a list, and to one more tensor behind it if there is one. Gives what the job does, and the device of the list if it was done
/// on another; nothing of an empty list.
///
/// A kernel over a dtype that the device lacks would end in a panic of its compiler, and one over memory of another
/// device in worse.
pub(crate) fn run_list(
    list: TensorList,
    last: Option<DispatchTensor>,
    job: Job,
) -> Result<(Vec<DispatchTensor>, Option<Device>), UnsupportedDType> {
    let Some(first) = list.tensors.first() else {
        return Ok((Vec::new(), None));
    };
    let device = first.device();
    let home = Device::new(device.clone());
    for tensor in list.tensors.iter().chain(&last) {
        let (other, dtype) = (tensor.device(), tensor.dtype());
        assert!(
            other == device || Device::new(other.clone()) == home,
            "the tensors of a list are on one device, not on {home:?} and {other:?}"
        );
        if !dtype.is_float() || !stores(&home, dtype) {
            return Err(UnsupportedDType::new(&home, dtype));
        }
    }
    let has_kernels = list.has_kernels && list.tensors.iter().all(has_kernels);
    // Burn 0.22.1 gets f64 wrong in reductions and fused operations there.
    let is_moved = !has_kernels && list.has_kernels && Kind::of(&device) == Kind::Cube;
    let mut tensors = list.tensors;
    tensors.extend(last);
    Ok(match is_moved {
        true => (run(true, moved(tensors, &flex(&home)?), job), Some(home)),
        false => (run(has_kernels, tensors, job), None),
    })
}

/// Does a job by kernels, or else by Burn's own operations.
pub(crate) fn run(
    has_kernels: bool,
    tensors: impl IntoIterator<Item = DispatchTensor>,
    job: Job,
) -> Vec<DispatchTensor> {
    let tensors = tensors.into_iter().collect();
    match has_kernels {
        true => Dispatch::amp_run(TensorVec(tensors), job).0,
        false => COMPOSED.run(tensors, job),
    }
}

/// The device that computes f64 for one that cannot.
fn flex(home: &Device) -> Result<Device, UnsupportedDType> {
    let none = Err(UnsupportedDType::new(home, DType::F64));
    #[cfg(feature = "flex")]
    let none = none.or_else(|_| Ok(Device::flex()));
    none
}

fn moved(tensors: Vec<DispatchTensor>, device: &Device) -> Vec<DispatchTensor> {
    let device = device.as_dispatch();
    let bring = |tensor: DispatchTensor| match tensor.shape().num_elements() {
        // Burn 0.22.1 cannot read every tensor that is empty.
        0 => Dispatch::float_empty(tensor.shape(), device, tensor.dtype().into()),
        _ => Dispatch::float_to_device(tensor, device),
    };
    tensors.into_iter().map(bring).collect()
}
