use burn::tensor::{DType, Tensor};

use crate::{Elementwise, Job, device::has_kernels, run::run};

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
    blend_unless(target, source, keep, add, None::<Tensor<1>>)
}

/// As [`blend`], unless there is a `found_inf` and it is above 0: the target stays as it is then, bit for bit.
///
/// `found_inf` has shape `[1]`, is in f32 and on the device of the tensors ([`DeviceScale::found_inf`](crate::DeviceScale::found_inf)). Nobody
/// reads it.
///
/// # Panics
///
/// If the shapes differ, or `found_inf` is on another device.
pub fn blend_unless<const D: usize>(
    target: Tensor<D>,
    source: Tensor<D>,
    keep: f64,
    add: f64,
    found_inf: impl Into<Option<Tensor<1>>>,
) -> Tensor<D> {
    let (one, other) = (target.shape(), source.shape());
    assert_eq!(one, other, "only tensors of one shape can be blended");
    if one.num_elements() == 0 {
        // Burn 0.22.1's fusion would run what follows over as many values (docs/upstream/fused-with-nothing.md).
        return target.inner();
    }
    let is_wide = matches!(target.dtype(), DType::F32 | DType::F64);
    let tensors = [target, source].map(|tensor| tensor.inner().into_dispatch());
    let has_kernels = is_wide && tensors.iter().all(has_kernels);
    let found_inf = found_inf.into();
    let found_inf = found_inf.map(|found| found.inner().into_dispatch());
    let tensors = tensors.into_iter().chain(found_inf);
    let blend = Elementwise::Blend { keep, add };
    let mut sum = run(has_kernels, tensors, Job::Elementwise(blend));
    Tensor::from_dispatch(sum.remove(0))
}
