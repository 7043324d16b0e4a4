use burn::backend::{Dispatch, ops::FloatTensorOps};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::{CastOps, TensorVec, Watch, device::has_kernels, job::Scale};

/// Casts a tensor to `dtype`; the backward pass multiplies its gradient by `factor`.
///
/// Forward, a cast and nothing else. Backward, the gradient is widened to f32, multiplied by `factor`, rounded once to
/// the tensor's own dtype: with a factor that is a power of two, exactly the gradient times that power, as far as the dtype
/// reaches. A gradient that is not finite stays not finite. With this at both ends of a network's half-precision part, its
/// gradients are multiplied where they are narrow, and nowhere else.
///
/// Any of f16, bf16 and f32 to any float dtype; tensors of other dtypes (f64, quantized) are returned as they are. `factor`
/// is a finite number, rounded to f32, or a [`Factor`] with a tensor that is not read before the backward pass, and not by the
/// host unless it is the device. Any shape; any autodiff graph, gradient checkpointing included; a tensor outside autodiff is
/// cast. Does not wait for the device, except where the factor's tensor comes from another one.
///
/// Between those three dtypes, one pass over memory each way on Flex and on CubeCL devices, and two where the gradient's
/// values do not fill their memory; with `fusion`, a part of the kernels that Burn makes of the operations around it.
/// Composed of Burn's operations elsewhere, where the gradient of a value that is not finite itself passes as it is.
///
/// # Panics
///
/// As Burn's `cast` where the device lacks the dtype.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
/// use burn_amp_kernels::scaled_cast;
///
/// let device = Device::flex().autodiff();
/// let narrow = Tensor::<1>::from_floats([3.0], &device).cast(FloatDType::F16).require_grad();
/// let wide = scaled_cast(narrow.clone(), FloatDType::F32, 65536.0);
/// let grads = (wide * 1e-8).sum().backward(); // 1e-8 is zero in f16, 65536 times that is not
/// let grad = narrow.grad(&grads).unwrap().cast(FloatDType::F32) / 65536.0;
/// assert!((grad.into_scalar::<f32>() - 1e-8).abs() < 1e-11);
/// ```
pub fn scaled_cast<const D: usize>(
    tensor: Tensor<D>,
    dtype: FloatDType,
    factor: impl Into<Factor>,
) -> Tensor<D> {
    watched_cast(tensor, dtype, factor, None::<&Watch>)
}

/// As [`scaled_cast`], and calls `watch`, if there is one, with what arrives there at the backward pass.
///
/// Measuring reads the gradient once, and the tensor too unless the watch is [`Watch::of_gradient`], in one pass; until then the
/// tensor is kept. [`Watch::of_arrival`] measures nothing. It is not called for what is composed of Burn's operations. Does not wait for the device: what was found stays
/// there until [`UnreadEvent::read`](crate::UnreadEvent::read). Where the factor has a tensor, the event knows the ratio alone, and
/// [`Reading::wait`](crate::Reading::wait) takes the rest.
///
/// # Panics
///
/// As [`scaled_cast`].
pub fn watched_cast<'a, const D: usize>(
    tensor: Tensor<D>,
    dtype: FloatDType,
    factor: impl Into<Factor>,
    watch: impl Into<Option<&'a Watch>>,
) -> Tensor<D> {
    let watch = watch.into();
    let from = tensor.dtype();
    if !is_narrow(from) {
        return tensor;
    }
    let is_empty = tensor.shape().num_elements() == 0;
    let Factor { ratio, scale } = factor.into();
    let is_one = ratio == 1.0 && scale.is_none();
    if !tensor.is_tracked() || is_empty || is_one && watch.is_none() {
        return tensor.cast(dtype);
    }
    let device = tensor.device();
    // From another device, Burn waits for it where it goes through the host.
    let scale = scale.map(|scale| match scale.device() == device {
        true => scale,
        false => scale.to_device(&device),
    });
    let tensor = tensor.into_dispatch();
    match has_kernels(&tensor) && is_narrow(dtype.into()) {
        true => {
            let scale = TensorVec(scale.into_iter().map(Tensor::into_dispatch).collect());
            let cast = Dispatch::amp_cast(tensor, dtype, ratio, scale, watch.cloned());
            Tensor::from_dispatch(cast)
        }
        false => composed(Tensor::from_dispatch(tensor), dtype, (ratio, scale)),
    }
}

/// What kernels are there for.
fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
}

/// The same of Burn's operations: the value without its graph, less a zero whose gradient is multiplied. Where `tensor`
/// is not finite there is no such zero, and the gradient passes as it is. Flat, so that it is compiled for one rank.
fn composed<const D: usize>(
    tensor: Tensor<D>,
    dtype: FloatDType,
    (ratio, scale): Scale<Tensor<1>>,
) -> Tensor<D> {
    let shape = tensor.shape();
    let tensor = tensor.reshape([shape.num_elements()]);
    // A leaf that is detached is a leaf again.
    let value = tensor.clone().detach().set_require_grad(false);
    let wide = value.clone().cast(FloatDType::F32);
    let finite = wide.clone().is_finite();
    let same = tensor.clone().cast(FloatDType::F32);
    // Not -0, less which a value of -0 would be 0.
    let zero = match ratio < 0.0 {
        true => same - wide,
        false => wide - same,
    };
    let zero = match scale {
        Some(scale) => zero * scale.mul_scalar(ratio.abs()),
        None => zero.mul_scalar(ratio.abs()),
    };
    let sum = value.cast(dtype) - zero.cast(dtype);
    let cast = tensor.cast(dtype).mask_where(finite, sum);
    // It may be a handle whose shape has another rank than `D`.
    Tensor::from_dispatch(Dispatch::float_reshape(cast.into_dispatch(), shape))
}

/// What a [`scaled_cast`](crate::scaled_cast) multiplies gradients by: a number of the host, or one that only the device knows.
///
/// Made of an `f64`, or by [`on_device`](Self::on_device). A handle to the tensor, which nobody writes.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
/// use burn_amp_kernels::{Factor, scaled_cast};
///
/// let device = Device::flex().autodiff();
/// let narrow = Tensor::<1>::from_floats([3.0], &device).cast(FloatDType::F16).require_grad();
/// let scale = Tensor::from_floats([1024.0], &device); // and nobody reads it
/// let wide = scaled_cast(narrow.clone(), FloatDType::F32, Factor::on_device(0.5, scale));
/// let grad = narrow.grad(&wide.sum().backward()).unwrap();
/// assert_eq!(grad.into_scalar::<burn::tensor::f16>().to_f32(), 512.0);
/// ```
#[derive(Clone, Debug)]
pub struct Factor {
    /// The whole of it where there is no tensor.
    ratio: f64,
    scale: Option<Tensor<1>>,
}

impl Factor {
    /// `ratio` times the value of `scale`.
    ///
    /// `ratio` is finite and rounded to f32. `scale` has shape `[1]`, is finite and positive, and is rounded to f32; an
    /// association with autodiff is dropped. The two are multiplied in f32, exactly where one of them is a power of two and the
    /// product in f32's range; a ratio other than 1 may cost a launch over one value. `scale` may be on any device: a cast moves it
    /// to the device of its tensor. Does not wait for the device.
    ///
    /// # Panics
    ///
    /// If `scale` is not one value.
    pub fn on_device(ratio: f64, scale: Tensor<1>) -> Self {
        let [count] = scale.dims();
        assert_eq!(count, 1, "`scale` is one value, not {count}");
        let scale = Some(scale.inner().cast(FloatDType::F32));
        Self { ratio, scale }
    }
}

impl From<f64> for Factor {
    /// The number itself: finite, and rounded to f32.
    fn from(ratio: f64) -> Self {
        Self { ratio, scale: None }
    }
}
