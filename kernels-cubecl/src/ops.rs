use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, backend_extension,
};
use burn::tensor::FloatDType;

use crate::{Job, Watch};

/// The operations of this crate, as a backend sees them. Use the functions at the root of the crate: they send here
/// what a backend has kernels for, and ask first whether its device has the dtypes.
///
/// Tensors are on one device; a list has at least one. Flex takes f16, bf16, f32 and f64; CubeCL's
/// runtimes f16, bf16 and f32. Nothing waits for a device: Flex has done the work when it returns, CubeCL has launched it,
/// and under fusion it is launched when a result is read or Burn flushes its queue. Remote and capture devices queue the
/// operations for a backend that knows them by `register_amp_ops`.
///
/// # Panics
///
/// On other dtypes; on backends beside those of the extension, always.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cubecl"),
    Remote: cfg(feature = "remote"),
    Capture: cfg(feature = "capture"),
)]
pub trait AmpOps: Backend {
    /// Does a job to tensors, and gives what it says.
    fn amp_run(#[extension_type] tensors: TensorVec<Self>, job: Job) -> TensorVec<Self>;
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
    /// Casts to `dtype`. With autodiff, the gradient is widened to f32, multiplied by `factor` and by the tensor of `scale`, if
    /// there is one, and cast to the input's dtype, as [`Elementwise::MulCast`](crate::Elementwise::MulCast) does; and `watch` is called with it.
    #[allow(unused_variables)]
    fn amp_cast(
        tensor: FloatTensor<Self>,
        dtype: FloatDType,
        factor: f64,
        #[extension_type] scale: TensorVec<Self>,
        watch: Option<Watch>,
    ) -> FloatTensor<Self> {
        Self::float_cast(tensor, dtype)
    }
}

/// The first tensor that a job gives.
pub(crate) fn first<B: AmpOps>(
    tensors: impl IntoIterator<Item = FloatTensor<B>>,
    job: Job,
) -> FloatTensor<B> {
    let mut given = B::amp_run(TensorVec(tensors.into_iter().collect()), job);
    given.0.remove(0)
}

/// Where the values of a tensor are in a device's memory, to find out whether a result has taken their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferAddress(pub(crate) usize, pub(crate) u64);

/// A list of float tensors of any ranks and layouts, as a backend sees it.
pub struct TensorVec<B: Backend>(pub Vec<FloatTensor<B>>);

impl<B: Backend> ExtensionType<B> for TensorVec<B> {
    type Target = TensorVec<Dispatch>;

    fn map_to_dispatch<F>(self, map_kind: F, autodiff: DispatchAutodiffContext) -> Self::Target
    where
        F: Fn(BackendTensor<B>) -> DispatchTensorKind,
    {
        let wrap = |tensor| DispatchTensor {
            kind: map_kind(BackendTensor::Float(tensor)),
            autodiff,
        };
        TensorVec(self.0.into_iter().map(wrap).collect())
    }

    fn map_from_dispatch<F>(target: Self::Target, unwrap_kind: F) -> Self
    where
        F: Fn(DispatchTensor) -> BackendTensor<B>,
    {
        let unwrap = |tensor| unwrap_kind(tensor).float();
        Self(target.0.into_iter().map(unwrap).collect())
    }

    fn routing_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }

    fn routing_float_tensor(target: &Self::Target) -> Option<&DispatchTensor> {
        target.0.first()
    }
}
