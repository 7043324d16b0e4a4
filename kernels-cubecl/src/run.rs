use burn::{
    backend::{Backend, DTypeUsage, Dispatch, DispatchTensor, DispatchTensorKind, TensorMetadata},
    tensor::{DType, Device, FloatDType, Tensor},
};

use crate::{
    backends::{fallback, host},
    error::UnsupportedDType,
    histogram::{ExponentHistogram, Histogram},
    list::{Entry, TensorList},
    ops::{AmpOps, TensorVec},
    status::{Fused, Status},
};

/// Multiplies every tensor by `inverse` and measures the products, in one pass.
///
/// Products are in f32 for f16, bf16 and f32 tensors, and in f64 for f64 ones; f32 and f64 tensors that nobody
/// else holds are overwritten in place. `inverse` has shape `[1]`, is rounded to f32, and lives on the tensors' device.
/// Does not wait for the device, except for f64 tensors of CubeCL devices: their kernels have no f64, and the host
/// does the work.
///
/// # Errors
///
/// [`UnsupportedDType`] if the device cannot read a tensor's dtype.
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
    check(&list)?;
    let edge = list.edge;
    let count = inverse.dims()[0];
    assert_eq!(count, 1, "`inverse` is one value, not {count}");
    let inverse = inverse.inner().cast(FloatDType::F32);
    if let Some(first) = list.tensors.first() {
        let device = inverse.device();
        assert_one_device(&Device::new(first.tensor.device()), &device);
    }
    let split = Split::new(list);
    let mut products = Vec::new();
    let mut words = None;
    if !split.fused.is_empty() {
        let elements = elements(&split.fused);
        let factor = inverse.clone().into_dispatch();
        let unscaled = Dispatch::amp_unscale(tensors(split.fused), factor, keep_dtype, edge);
        products = unscaled.tensors.tensors;
        words = Some(Fused::new(unscaled.status, elements));
    }
    let (on_host, host) = host::unscale(split.host, &inverse, edge);
    let (composed, rest) = fallback::unscale_all(split.composed, inverse, keep_dtype, edge);
    let products = merge(&split.order, products, composed, on_host);
    let status = Status {
        fused: words,
        composed: rest,
        host,
        order: split.order,
    };
    Ok((products, status))
}

/// Measures every tensor as it is, in one pass that writes none of them.
///
/// Does not wait for the device, except for f64 tensors, as [`unscale`].
///
/// # Errors
///
/// [`UnsupportedDType`] if the device cannot read a tensor's dtype.
///
/// # Panics
///
/// If not all tensors are on one device.
pub fn inspect(list: TensorList) -> Result<Status, UnsupportedDType> {
    check(&list)?;
    let edge = list.edge;
    let split = Split::new(list);
    let words = (!split.fused.is_empty()).then(|| {
        let elements = elements(&split.fused);
        Fused::new(Dispatch::amp_inspect(tensors(split.fused), edge), elements)
    });
    Ok(Status {
        fused: words,
        composed: fallback::inspect_all(split.composed, edge),
        host: host::inspect(&split.host, edge),
        order: split.order,
    })
}

/// Counts the values of all tensors by binary exponent, in one pass that writes none of them.
///
/// For diagnosis: it shows how much of a gradient lies below the range of a narrower dtype. Values are taken as they
/// are. Does not wait for the device, except for f64 tensors, as [`unscale`].
///
/// # Errors
///
/// [`UnsupportedDType`] if the device cannot read a tensor's dtype.
///
/// # Panics
///
/// If not all tensors are on one device.
pub fn histogram(list: TensorList) -> Result<Histogram, UnsupportedDType> {
    check(&list)?;
    let split = Split::new(list);
    let words = (!split.fused.is_empty())
        .then(|| Tensor::from_dispatch(Dispatch::amp_histogram(tensors(split.fused))));
    let mut counted = ExponentHistogram::default();
    for value in split.host.tensors.iter().flat_map(host::read) {
        counted.add_value(value);
    }
    Ok(Histogram {
        words,
        composed: fallback::histogram_all(split.composed),
        counted,
    })
}

fn assert_one_device(first: &Device, other: &Device) {
    assert!(
        first == other,
        "the tensors of a list are on one device, not on {first:?} and {other:?}"
    );
}

/// A kernel over a dtype that the device lacks would end in a panic of its compiler, and one over memory of another
/// device in worse.
fn check(list: &TensorList) -> Result<(), UnsupportedDType> {
    let mut devices = list.tensors.iter().map(|entry| entry.tensor.device());
    if let Some(first) = devices.next()
        && let Some(other) = devices.find(|device| *device != first)
    {
        assert_one_device(&Device::new(first), &Device::new(other));
    }
    if let Some(entry) = list.tensors.iter().find(|entry| !entry.dtype.is_float()) {
        let device = Device::new(entry.tensor.device());
        return Err(UnsupportedDType::new(&device, entry.dtype));
    }
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let of_dtype = |entry: &&Entry| entry.dtype == dtype && entry.elements > 0;
        let Some(entry) = list.tensors.iter().find(of_dtype) else {
            continue;
        };
        let device = entry.tensor.device();
        if !Dispatch::dtype_usage(&device, dtype).contains(DTypeUsage::Storage) {
            return Err(UnsupportedDType::new(&Device::new(device), dtype));
        }
    }
    Ok(())
}

/// How a tensor is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// By a kernel.
    Fused,
    /// By Burn's operations.
    Composed,
    /// On the host.
    #[cfg_attr(not(feature = "cubecl"), allow(dead_code))]
    Host,
}

/// The tensors by the way in which they are measured, and in which order they came.
struct Split {
    fused: TensorList,
    composed: TensorList,
    host: TensorList,
    order: Vec<Way>,
}

impl Split {
    fn new(list: TensorList) -> Self {
        let mut split = Self {
            fused: TensorList::new(),
            composed: TensorList::new(),
            host: TensorList::new(),
            order: list.tensors.iter().map(way).collect(),
        };
        for (entry, way) in list.tensors.into_iter().zip(&split.order) {
            let part = match way {
                Way::Fused => &mut split.fused,
                Way::Composed => &mut split.composed,
                Way::Host => &mut split.host,
            };
            part.tensors.push(entry);
        }
        split
    }
}

/// Backends beside those of the extension would panic in it, and tensors without values need no kernel.
fn way(entry: &Entry) -> Way {
    if entry.elements == 0 {
        return Way::Composed;
    }
    #[allow(unreachable_patterns)]
    // which backends there are beside these depends on Burn's features
    match &entry.tensor.kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => Way::Fused,
        // Most of its runtimes have no f64, and Burn 0.22.1 gets it wrong in reductions and fused operations.
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(_) if entry.dtype == DType::F64 => Way::Host,
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(_) => Way::Fused,
        _ => Way::Composed,
    }
}

fn tensors(list: TensorList) -> TensorVec<Dispatch> {
    TensorVec {
        tensors: list.tensors.into_iter().map(|e| e.tensor).collect(),
    }
}

fn elements(list: &TensorList) -> Vec<u64> {
    let elements = list.tensors.iter().map(|entry| entry.elements as u64);
    elements.collect()
}

/// The whole list again, in its order.
fn merge(
    order: &[Way],
    fused: Vec<DispatchTensor>,
    composed: TensorList,
    host: TensorList,
) -> TensorList {
    let mut fused = fused.into_iter().map(|tensor| Entry {
        dtype: tensor.dtype(),
        elements: tensor.shape().num_elements(),
        tensor,
    });
    let mut composed = composed.tensors.into_iter();
    let mut host = host.tensors.into_iter();
    let next = |way: &Way| match way {
        Way::Fused => fused.next(),
        Way::Composed => composed.next(),
        Way::Host => host.next(),
    };
    TensorList {
        tensors: order.iter().filter_map(next).collect(),
        ..TensorList::new()
    }
}
