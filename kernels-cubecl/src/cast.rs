use burn::{
    backend::{Dispatch, DispatchTensorKind},
    tensor::{DType, FloatDType, Tensor},
};
use std::sync::Arc;

use crate::{
    ops::CastOps,
    status::{WORDS, decode},
};

/// Casts a tensor to `dtype`; the backward pass multiplies its gradient by `factor`.
///
/// Forward, a cast and nothing else. Backward, the gradient is widened to f32, multiplied by `factor`, rounded once to
/// the tensor's own dtype: with a factor that is a power of two, exactly the gradient times that power, as far as the dtype
/// reaches. A gradient that is not finite stays not finite. With this at both ends of a network's half-precision part, its
/// gradients are multiplied where they are narrow, and nowhere else.
///
/// Any of f16, bf16 and f32 to any float dtype; tensors of other dtypes (f64, quantized) are returned as they are. `factor`
/// is finite, and is rounded to f32. Any shape; any autodiff graph, gradient checkpointing included; a tensor outside
/// autodiff is cast. Does not wait for the device.
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
pub fn scaled_cast<const D: usize>(tensor: Tensor<D>, dtype: FloatDType, factor: f64) -> Tensor<D> {
    cast(tensor, dtype, factor, None)
}

/// As [`scaled_cast`], and tells `watch` at the backward pass what arrived there.
///
/// Measuring reads the gradient once, and the tensor too unless the watch is [`Watch::of_gradient`], in one pass; until then the tensor is
/// kept. Nothing is told of what is composed of Burn's operations. Does not wait for the device: what was found stays there until [`Crossing::read`].
///
/// # Panics
///
/// As [`scaled_cast`].
pub fn watched_cast<const D: usize>(
    tensor: Tensor<D>,
    dtype: FloatDType,
    factor: f64,
    watch: &Watch,
) -> Tensor<D> {
    cast(tensor, dtype, factor, Some(watch.clone()))
}

fn cast<const D: usize>(
    tensor: Tensor<D>,
    dtype: FloatDType,
    factor: f64,
    watch: Option<Watch>,
) -> Tensor<D> {
    let from = tensor.dtype();
    if !is_narrow(from) {
        return tensor;
    }
    if !tensor.is_tracked() || tensor.shape().num_elements() == 0 {
        return tensor.cast(dtype);
    }
    if factor == 1.0 && watch.is_none() {
        return tensor.cast(dtype);
    }
    let tensor = tensor.into_dispatch();
    match has_kernels(&tensor.kind) && is_narrow(dtype.into()) {
        true => Tensor::from_dispatch(Dispatch::amp_cast(tensor, dtype, factor, watch)),
        false => composed(Tensor::from_dispatch(tensor), dtype, factor),
    }
}

/// What kernels are there for.
fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
}

/// Backends beside those of the extension would panic in it.
fn has_kernels(kind: &DispatchTensorKind) -> bool {
    #[allow(unreachable_patterns)]
    // which backends there are beside these depends on Burn's features
    match kind {
        #[cfg(feature = "flex")]
        DispatchTensorKind::Flex(_) => true,
        #[cfg(feature = "cubecl")]
        DispatchTensorKind::Cube(_) => true,
        DispatchTensorKind::Autodiff(inner) => has_kernels(inner),
        _ => false,
    }
}

/// The same of Burn's operations: the value without its graph, less a zero whose gradient is multiplied. Where `tensor`
/// is not finite there is no such zero, and the gradient passes as it is.
fn composed<const D: usize>(tensor: Tensor<D>, dtype: FloatDType, factor: f64) -> Tensor<D> {
    // A leaf that is detached is a leaf again.
    let value = tensor.clone().detach().set_require_grad(false);
    let wide = value.clone().cast(FloatDType::F32);
    let finite = wide.clone().is_finite();
    let zero = (wide - tensor.clone().cast(FloatDType::F32)).mul_scalar(factor);
    let sum = value.cast(dtype) - zero.cast(dtype);
    tensor.cast(dtype).mask_where(finite, sum)
}

/// Hears at each backward pass through a [`watched_cast`] what arrived there.
#[derive(Clone)]
pub struct Watch {
    tell: Arc<dyn Fn(Crossing) + Send + Sync>,
    /// Whether the tensor of the forward pass is looked at too.
    pub(crate) both: bool,
}

impl Watch {
    /// Calls `tell` at each backward pass, on the thread that runs it. It must not wait for the device.
    pub fn new(tell: impl Fn(Crossing) + Send + Sync + 'static) -> Self {
        let (tell, both) = (Arc::new(tell), true);
        Self { tell, both }
    }

    /// As [`new`](Self::new), and does not look at the tensor of the forward pass.
    pub fn of_gradient(tell: impl Fn(Crossing) + Send + Sync + 'static) -> Self {
        Self {
            both: false,
            ..Self::new(tell)
        }
    }

    pub(crate) fn tell(&self, crossing: Crossing) {
        (self.tell)(crossing);
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

type ReadWords = Box<dyn FnOnce() -> Option<Vec<u32>> + Send>;

/// A gradient that crossed a [`watched_cast`] on its way back, measured and still on the device.
pub struct Crossing {
    factor: f64,
    dtype: FloatDType,
    elements: u64,
    words: ReadWords,
}

/// What was found in a [`Crossing`]. Host values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossingStatus {
    /// Whether all values of the cast's input, on the forward pass, were finite; true where they were not looked at.
    pub output_finite: bool,
    /// Whether all values of the gradient were finite when it arrived.
    pub gradient_finite: bool,
    /// Whether a finite value of the gradient was too large for the input's dtype once it was multiplied.
    pub overflow: bool,
    /// The largest finite magnitude of the gradient after the multiplication, before it was rounded to the input's dtype.
    pub max_abs: f64,
    /// The L2 norm of the finite values of the gradient, in the same way.
    pub norm: f64,
    /// The number of its values.
    pub elements: u64,
}

impl Crossing {
    pub(crate) fn new(factor: f64, dtype: FloatDType, elements: usize, words: ReadWords) -> Self {
        Self {
            factor,
            dtype,
            elements: elements as u64,
            words,
        }
    }

    /// Reads what was found: waits for the device, for one transfer of 64 or 128 bytes. None if the device cannot be read here.
    pub fn read(self) -> Option<CrossingStatus> {
        let words = (self.words)()?;
        let mut rows = words.chunks_exact(WORDS).map(|row| decode(row, 0));
        let (gradient, output) = (rows.next()?, rows.next());
        // Rounded as the backward pass has rounded it: half a unit decides.
        let product = gradient.max_abs as f32 * (self.factor as f32).abs();
        Some(CrossingStatus {
            output_finite: output.is_none_or(|output| output.non_finite == 0),
            gradient_finite: gradient.non_finite == 0,
            overflow: f64::from(product) >= overflow_from(self.dtype),
            max_abs: gradient.max_abs * self.factor.abs(),
            norm: gradient.norm * self.factor.abs(),
            elements: self.elements,
        })
    }
}

impl std::fmt::Debug for Crossing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crossing")
            .field("factor", &self.factor)
            .field("dtype", &self.dtype)
            .finish_non_exhaustive()
    }
}

/// The smallest magnitude that rounds to infinity: half a unit above the largest finite value.
fn overflow_from(dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::F16 => 65520.0,
        FloatDType::BF16 => (2.0 - 2f64.powi(-8)) * 2f64.powi(127),
        _ => (2.0 - 2f64.powi(-24)) * 2f64.powi(127),
    }
}
