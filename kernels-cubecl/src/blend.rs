use burn::tensor::{FloatDType, Tensor};
#[cfg(feature = "flex")]
use burn::{
    backend::{Backend, Dispatch, DispatchTensorKind, backend_extension, tensor::FloatTensor},
    tensor::DType,
};

/// The weighted sum of two tensors, as Flex sees it. Use [`blend`].
#[cfg(feature = "flex")]
#[backend_extension(Flex)]
pub trait BlendOps: Backend {
    /// `keep * target + add * source`; `target` is f32 or f64, `source` of the same shape.
    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self>;
}

/// `keep * target + add * source`, element by element, in one pass: a running sum (`keep` 1), a moving average.
///
/// `target` is f32 or f64; `source` has the same shape and device and any float dtype, and is widened on the way. A
/// target that nobody else holds is overwritten in place. The weights are rounded to the target's dtype. Does not wait
/// for the device.
///
/// On other backends than Flex it is composed of Burn's operations, which are one kernel under fusion.
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
    #[cfg(feature = "flex")]
    if matches!(target.dtype(), DType::F32 | DType::F64) {
        let target = target.into_dispatch();
        if matches!(target.kind, DispatchTensorKind::Flex(_)) {
            let sum = Dispatch::amp_blend(target, source.into_dispatch(), keep, add);
            return Tensor::from_dispatch(sum);
        }
        return composed(Tensor::from_dispatch(target), source, keep, add);
    }
    composed(target, source, keep, add)
}

fn composed<const D: usize>(
    target: Tensor<D>,
    source: Tensor<D>,
    keep: f64,
    add: f64,
) -> Tensor<D> {
    let weighted = |tensor: Tensor<D>, weight: f64| match weight {
        1.0 => tensor,
        weight => tensor.mul_scalar(weight),
    };
    let dtype: FloatDType = target.dtype().into();
    weighted(target, keep).add(weighted(source.cast(dtype), add))
}
