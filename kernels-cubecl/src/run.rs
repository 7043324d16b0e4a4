use burn::{
    backend::{Backend, DTypeUsage, Dispatch, TensorMetadata},
    tensor::{Device, FloatDType, Tensor},
};

use crate::{
    backends::{fallback, has_kernels, is_cube},
    error::UnsupportedDType,
    histogram::Histogram,
    list::TensorList,
    ops::AmpOps,
    status::Status,
};

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

/// As [`unscale`], but products keep the dtypes of their factors, and are measured after they were rounded to them: what
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
    let inverse = inverse.inner().cast(FloatDType::F32);
    let (device, run) = match check(&list)? {
        Some(checked) => checked,
        None => return Ok((list, Status::default())),
    };
    assert_one_device(&device, &inverse.device());
    match run {
        Run::Kernels => {
            let (edge, elements) = (list.edge, list.elements());
            let (tensors, inverse) = (list.into_vec(), inverse.into_dispatch());
            let unscaled = Dispatch::amp_unscale(tensors, inverse, keep_dtype, edge);
            let products = TensorList::of(unscaled.tensors.tensors);
            Ok((products, Status::of_words(unscaled.status, elements)))
        }
        Run::Composed => Ok(fallback::multiply(list, inverse, keep_dtype)),
        Run::OnFlex(flex) => {
            let (list, inverse) = (list.moved(&flex), inverse.to_device(&flex));
            let (products, status) = multiply(list, inverse, keep_dtype)?;
            Ok((products.moved(&device), status.of_device(device)))
        }
    }
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
    match check(&list)? {
        None => Ok(Status::default()),
        Some((_, Run::Kernels)) => {
            let (edge, elements) = (list.edge, list.elements());
            let words = Dispatch::amp_inspect(list.into_vec(), edge);
            Ok(Status::of_words(words, elements))
        }
        Some((_, Run::Composed)) => Ok(fallback::inspect(list)),
        Some((device, Run::OnFlex(flex))) => Ok(inspect(list.moved(&flex))?.of_device(device)),
    }
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
    match check(&list)? {
        None => Ok(Histogram::default()),
        Some((_, Run::Kernels)) => Ok(Histogram::of_words(Dispatch::amp_histogram(
            list.into_vec(),
        ))),
        Some((_, Run::Composed)) => Ok(fallback::histogram(list)),
        Some((_, Run::OnFlex(flex))) => histogram(list.moved(&flex)),
    }
}

/// How a whole list is worked on.
enum Run {
    Kernels,
    Composed,
    /// By kernels, after it was moved to this device.
    #[cfg_attr(not(feature = "flex"), allow(dead_code))]
    OnFlex(Device),
}

/// The device of a list and how it is worked on; none for an empty list.
///
/// A kernel over a dtype that the device lacks would end in a panic of its compiler, and one over memory of another
/// device in worse.
fn check(list: &TensorList) -> Result<Option<(Device, Run)>, UnsupportedDType> {
    let Some(first) = list.tensors.first() else {
        return Ok(None);
    };
    let home = first.device();
    let device = Device::new(home.clone());
    for tensor in &list.tensors {
        let (other, dtype) = (tensor.device(), tensor.dtype());
        if other != home {
            assert_one_device(&device, &Device::new(other));
        }
        let is_stored = || Dispatch::dtype_usage(&home, dtype).contains(DTypeUsage::Storage);
        if !dtype.is_float() || !is_stored() {
            return Err(UnsupportedDType::new(&device, dtype));
        }
    }
    let run = if list.tensors.iter().all(has_kernels) {
        Run::Kernels
    } else if is_cube(first) {
        // Burn 0.22.1 gets f64 wrong in reductions and fused operations there.
        on_flex(&device)?
    } else {
        Run::Composed
    };
    Ok(Some((device, run)))
}

#[cfg(feature = "flex")]
fn on_flex(_: &Device) -> Result<Run, UnsupportedDType> {
    Ok(Run::OnFlex(Device::flex()))
}

#[cfg(not(feature = "flex"))]
fn on_flex(device: &Device) -> Result<Run, UnsupportedDType> {
    Err(UnsupportedDType::new(device, burn::tensor::DType::F64))
}

fn assert_one_device(first: &Device, other: &Device) {
    assert!(
        first == other,
        "the tensors of a list are on one device, not on {first:?} and {other:?}"
    );
}
