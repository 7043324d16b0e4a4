use burn::backend::{
    Backend, BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, TensorMetadata, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{DType, FloatDType};

use crate::watch::Watch;

/// The operations of this crate, as a backend sees them. Use the functions at the root of the crate: they send here
/// what a backend has kernels for, and ask first whether its device has the dtypes.
///
/// Tensors are on one device; a list has at least one. Flex takes f16, bf16, f32 and f64; CubeCL's
/// runtimes f16, bf16 and f32. Tensors may be empty: they have a row of zeros. Nothing waits for a device: Flex has done the
/// work when it returns, CubeCL has launched it, and under fusion it is launched when a result is read or Burn flushes its
/// queue. Remote and capture devices note the operations for a backend that is told of them by `register_amp_ops`.
///
/// # Panics
///
/// On other dtypes; on CubeCL, on an empty list; on backends beside those of the extension, always.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cubecl"),
    Remote: cfg(feature = "remote"),
    Capture: cfg(feature = "capture"),
)]
pub trait AmpOps: Backend {
    /// Multiplies every tensor by `inverse`, of shape `[1]` and dtype f32, and measures the products. Those whose
    /// magnitude is `edge` or above are counted.
    ///
    /// Products have the shapes of the tensors, and dtype f32 (f64 for f64); or their own dtype if `keep_dtype`, and are
    /// then measured after they were rounded to it. Tensors of the product's dtype that nobody else holds are
    /// overwritten; other products are new.
    fn amp_unscale(
        #[extension_type] tensors: TensorVec<Self>,
        inverse: FloatTensor<Self>,
        keep_dtype: bool,
        edge: f32,
    ) -> UnscaledVec<Self>;

    /// Measures every tensor and writes none. Returns status words as [`UnscaledVec::status`].
    fn amp_inspect(#[extension_type] tensors: TensorVec<Self>, edge: f32) -> IntTensor<Self>;

    /// What the status words of a list say of all its tensors together, in f32, `[2]`: 1 if a value is infinite or NaN
    /// after scaling and else 0, and the L2 norm of the finite values.
    fn amp_verdict(words: IntTensor<Self>) -> FloatTensor<Self>;

    /// Counts the values of all tensors by binary exponent and writes none of them.
    ///
    /// Returns 122 words in i32: a pair of words, the lower first, for each of 61 counts of 64 bits. They are the
    /// zeros, what is infinite or NaN, exponents below the range of
    /// [`ExponentHistogram`](crate::ExponentHistogram), each exponent of the range, and those above it.
    fn amp_histogram(#[extension_type] tensors: TensorVec<Self>) -> IntTensor<Self>;

    /// `keep * target + add * source`, of two tensors of one shape: `target` in f32, or f64 on Flex, `source` in any of
    /// the dtypes above. The sum has the target's dtype, and overwrites it where nobody else holds it.
    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self> {
        weighted_sum::<Self>(target, source, keep, add)
    }
}

/// `keep * target + add * source` of Burn's operations, in the target's dtype.
pub(crate) fn weighted_sum<B: Backend>(
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

/// A cast whose backward pass multiplies the gradient. Use [`scaled_cast`](crate::scaled_cast), which also serves
/// backends that are not named here.
///
/// Tensors have values, in f16, bf16 or f32. Nothing waits for a device.
///
/// # Panics
///
/// On backends beside those of the extension, always.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cubecl"),
    Remote: cfg(feature = "remote"),
    Capture: cfg(feature = "capture"),
    Autodiff,
)]
pub trait CastOps: Backend {
    /// Casts to `dtype`. With autodiff, the gradient is widened to f32, multiplied by `factor` and cast to the input's
    /// dtype, and `watch` is told of it.
    #[allow(unused_variables)]
    fn amp_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
        watch: Option<Watch>,
    ) -> FloatTensor<Self> {
        Self::float_cast(tensor, dtype)
    }

    /// Widens to f32, multiplies by `factor`, rounds to `dtype`: the backward pass of [`amp_cast`](Self::amp_cast). What
    /// is not finite stays so.
    fn amp_mul_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
    ) -> FloatTensor<Self> {
        let wide = match tensor.dtype() {
            DType::F32 => tensor,
            _ => Self::float_cast(tensor, FloatDType::F32),
        };
        let product = Self::float_mul_scalar(wide, factor.into());
        match dtype {
            FloatDType::F32 => product,
            dtype => Self::float_cast(product, dtype),
        }
    }
}

/// A list of float tensors, as a backend sees it.
pub struct TensorVec<B: Backend> {
    /// The tensors, of any ranks and layouts and of mixed f16, bf16, f32 and, on Flex, f64.
    pub tensors: Vec<FloatTensor<B>>,
}

/// Tensors and their status, as a backend sees them.
pub struct UnscaledVec<B: Backend> {
    /// The products, in the order and of the shapes of the factors, in f32, or f64 for f64.
    pub tensors: TensorVec<B>,
    /// 16 words in i32 for each tensor, `[16 * tensors]`, laid out as [`Status`](crate::Status) says.
    pub status: IntTensor<B>,
}

impl<B: Backend> ExtensionType<B> for TensorVec<B> {
    type Target = TensorVec<burn::backend::Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let wrap = |tensor| DispatchTensor {
            kind: map_kind(BackendTensor::Float(tensor)),
            autodiff,
        };
        TensorVec {
            tensors: self.tensors.into_iter().map(wrap).collect(),
        }
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        let unwrap = |tensor| unwrap_kind(tensor).float();
        Self {
            tensors: target.tensors.into_iter().map(unwrap).collect(),
        }
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.tensors.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.tensors.first()
    }
}

impl<B: Backend> ExtensionType<B> for UnscaledVec<B> {
    type Target = UnscaledVec<burn::backend::Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        UnscaledVec {
            status: DispatchTensor {
                kind: map_kind(BackendTensor::Int(self.status)),
                autodiff,
            },
            tensors: self.tensors.map_to_dispatch(map_kind, autodiff),
        }
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        Self {
            status: unwrap_kind(target.status).int(),
            tensors: TensorVec::map_from_dispatch(target.tensors, unwrap_kind),
        }
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        Some(&target.status)
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.tensors.tensors.first()
    }
}
