use burn::backend::{
    Backend, BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind,
    ExtensionType, backend_extension,
    tensor::{FloatTensor, IntTensor},
};

/// The operations of this crate, as a backend sees them. Use the functions at the root of the crate.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cubecl"),
)]
pub trait AmpOps: Backend {
    /// Multiplies every tensor by `inverse`, of shape `[1]`, and measures the products.
    fn amp_unscale(
        #[extension_type] tensors: TensorVec<Self>,
        inverse: FloatTensor<Self>,
    ) -> UnscaledVec<Self>;

    /// Measures every tensor and writes none.
    fn amp_inspect(#[extension_type] tensors: TensorVec<Self>) -> IntTensor<Self>;

    /// Counts the values of all tensors by binary exponent.
    fn amp_histogram(#[extension_type] tensors: TensorVec<Self>) -> IntTensor<Self>;

    /// `keep * target + add * source`, of two tensors of one shape.
    fn amp_blend(
        target: FloatTensor<Self>,
        source: FloatTensor<Self>,
        keep: f64,
        add: f64,
    ) -> FloatTensor<Self>;
}

/// A list of float tensors, as a backend sees it.
pub struct TensorVec<B: Backend> {
    /// The tensors, of any ranks and float dtypes.
    pub tensors: Vec<FloatTensor<B>>,
}

/// Tensors and their status, as a backend sees them.
pub struct UnscaledVec<B: Backend> {
    /// The products, in the order of the factors.
    pub tensors: TensorVec<B>,
    /// The status words, see [`Status`](crate::Status).
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
