use burn::{
    backend::{
        Backend, Dispatch, DispatchTensor, DispatchTensorKind, TensorMetadata, tensor::FloatTensor,
    },
    tensor::{DType, Tensor},
};

use crate::ops::AmpOps;

/// `keep * target + add * source`, element by element, in one pass: a running sum (`keep` 1), a moving average.
///
/// `target` is f32 or f64; `source` has the same shape and device and any float dtype, and is widened on the way. A
/// target that nobody else holds is overwritten in place. The weights are rounded to the target's dtype. Does not wait
/// for the device.
///
/// One kernel on Flex and on CubeCL devices; with `fusion` a part of the kernel that Burn makes of the operations
/// around it. Composed of Burn's operations elsewhere, for f64 on CubeCL devices, and for targets of other dtypes.
///
/// ```
/// use burn::tensor::{Device, Tensor, TensorData};
///
/// let device = Device::flex();
/// let average = Tensor::<1>::from_floats([1.0, 2.0], &device);
/// let value = Tensor::<1>::from_floats([3.0, 6.0], &device);
/// let average = burn_amp_kernels::blend(average, value, 0.75, 0.25);
/// assert_eq!(average.to_data(), TensorData::from([1.5f32, 3.0]));
/// ```
///
/// # Panics
///
/// If the shapes differ.
pub fn blend<const D: usize>(
    target: Tensor<D>,
    source: Tensor<D>,
    keep: f64,
    add: f64,
) -> Tensor<D> {
    assert_eq!(
        target.shape(),
        source.shape(),
        "only tensors of one shape can be blended"
    );
    let (target, source) = (target.inner(), source.inner());
    let dtypes = (target.dtype(), source.dtype());
    let empty = target.shape().num_elements() == 0;
    let target = target.into_dispatch();
    if !empty && has_kernel(&target, dtypes) {
        let sum = Dispatch::amp_blend(target, source.into_dispatch(), keep, add);
        return Tensor::from_dispatch(sum);
    }
    let sum = composed::<Dispatch>(target, source.into_dispatch(), keep, add);
    Tensor::from_dispatch(sum)
}

#[cfg_attr(
    not(any(feature = "flex", feature = "cubecl")),
    allow(unused_variables)
)]
fn has_kernel(target: &DispatchTensor, dtypes: (DType, DType)) -> bool {
    #[allow(unreachable_patterns)]
    // which backends there are beside these depends on Burn's features
    match &target.kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => matches!(dtypes.0, DType::F32 | DType::F64),
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(_) => dtypes.0 == DType::F32 && dtypes.1 != DType::F64,
        _ => false,
    }
}

pub(crate) fn composed<B: Backend>(
    target: FloatTensor<B>,
    source: FloatTensor<B>,
    keep: f64,
    add: f64,
) -> FloatTensor<B> {
    let weighted = |tensor, weight: f64| match weight {
        1.0 => tensor,
        weight => B::float_mul_scalar(tensor, weight.into()),
    };
    let dtype = target.dtype();
    let source = match source.dtype() == dtype {
        true => source,
        false => B::float_cast(source, dtype.into()),
    };
    B::float_add(weighted(target, keep), weighted(source, add))
}
