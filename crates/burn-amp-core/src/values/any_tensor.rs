//! Float tensors whose rank is known at run time: parameters, gradients, sums, averages.

use burn::tensor::{DType, Device, FloatDType, Shape, Tensor, TensorData};
use burn::{module::ParamId, optim::GradientsParams};
use burn_amp_kernels::{Factor, TensorList, Watch, copied, is_known_now, watched_cast};

use crate::{values::dtype::is_half, values::rank::with_rank};

/// A handle on a float tensor of any rank.
///
/// Burn's types have a rank, its operations on each value by itself do not look at it: they are done to a handle of rank 1, whatever the shape.
#[derive(Clone, Debug)]
pub struct AnyTensor(pub(super) Tensor<1>);

impl AnyTensor {
    /// Of a tensor without its autodiff.
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        Self::with_graph(tensor.inner())
    }

    /// Of values in their dtype on a device; none if Burn's tensors cannot have their rank.
    pub(crate) fn from_data(data: TensorData, device: &Device) -> Option<Self> {
        let options = (device, data.dtype());
        with_rank!(data.rank(), D => Some(Self::new(Tensor::<D>::from_data(data, options))), _rank => None)
    }

    /// Of a tensor as it is.
    pub fn with_graph<const D: usize>(tensor: Tensor<D>) -> Self {
        Self(Tensor::from_bridge(tensor.into_bridge()))
    }

    /// The tensors of a list, each of which nothing else holds once it is taken out.
    pub fn all_of(list: TensorList) -> impl Iterator<Item = Self> {
        let tensors = list.into_iter();
        tensors.map(|tensor| Self(Tensor::from_dispatch(tensor)))
    }

    /// The tensor itself, with its rank.
    ///
    /// # Panics
    ///
    /// If the rank is not `D`.
    pub fn into_tensor<const D: usize>(self) -> Tensor<D> {
        assert_eq!(self.rank(), D, "a tensor of another rank is asked for");
        self.into_handle()
    }

    /// A handle of whatever rank, for lists of tensors and for what is done to each value by itself.
    pub fn into_handle<const D: usize>(self) -> Tensor<D> {
        Tensor::from_bridge(self.0.into_bridge())
    }

    pub(crate) fn rank(&self) -> usize {
        self.0.rank()
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.0.shape()
    }

    /// Its dtype.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// Its device.
    pub fn device(&self) -> Device {
        self.0.device()
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.0.is_tracked()
    }

    /// Whether nothing is to be waited for to look at it.
    pub(crate) fn is_known_now(&self) -> bool {
        is_known_now(&self.0)
    }

    /// Changes each value by itself; the shape stays.
    pub(crate) fn map(self, change: impl FnOnce(Tensor<1>) -> Tensor<1>) -> Self {
        Self(change(self.0))
    }

    pub(crate) fn cast(self, dtype: impl Into<FloatDType>) -> Self {
        let dtype = dtype.into();
        self.map(|tensor| tensor.cast(dtype))
    }

    /// The same values on another device.
    pub fn moved_to(mut self, device: &Device) -> Self {
        if self.device() != *device {
            self.0 = self.0.to_device(device);
        }
        self
    }

    /// The same in `dtype` and on `device`. What is narrower is moved.
    pub fn cast_to(self, dtype: FloatDType, device: &Device) -> Self {
        match DType::from(dtype).size() < self.dtype().size() {
            true => self.cast(dtype).moved_to(device),
            false => self.moved_to(device).cast(dtype),
        }
    }

    /// The values in memory that nothing else holds.
    pub fn copied(self) -> Self {
        let shape = self.shape();
        match self.clone().flat() {
            Some(values) => self.map(|_| copied(values).reshape(shape)),
            None => self,
        }
    }

    /// As [`map`](Self::map), in f32 for f16 and bf16: a scalar would be rounded to the tensor's dtype, where 1e-8 is zero and 1/60000
    /// off by 0.14 %.
    pub(crate) fn map_wide(self, change: impl FnOnce(Tensor<1>) -> Tensor<1>) -> Self {
        let dtype = self.dtype();
        match is_half(dtype) {
            true => self.cast(FloatDType::F32).map(change).cast(dtype),
            false => self.map(change),
        }
    }

    /// Multiplies by a number, in f32 for f16 and bf16. The dtype stays; so does the tensor itself, if the number is 1.
    pub fn mul_scalar(self, factor: f64) -> Self {
        match factor == 1.0 {
            true => self,
            false => self.map_wide(|tensor| tensor.mul_scalar(factor)),
        }
    }

    /// `keep * self + add * other`, in one pass; in place, if nothing else holds the tensor.
    pub(crate) fn blend(self, other: Self, keep: f64, add: f64) -> Self {
        self.map_wide(|tensor| burn_amp_kernels::blend(tensor, other.0, keep, add))
    }

    /// Casts with a factor for the gradient, which the watch looks at.
    pub(crate) fn scaled_cast(
        self,
        dtype: FloatDType,
        factor: Factor,
        watch: Option<&Watch>,
    ) -> Self {
        self.map(|tensor| watched_cast(tensor, dtype, factor, watch))
    }

    /// All values in one row; none if there are none.
    pub(crate) fn flat(self) -> Option<Tensor<1>> {
        let elements = self.shape().num_elements();
        // `reshape` reads a 0 as "keep this dimension".
        (elements > 0).then(|| self.0.reshape([elements]))
    }

    /// Waits for the device, or will where the values are looked at: CubeCL reads then.
    pub fn into_data(self) -> TensorData {
        self.0.into_data()
    }
}

/// The gradient of a parameter of this rank, if it has one.
pub fn gradient(grads: &GradientsParams, id: ParamId, rank: usize) -> Option<AnyTensor> {
    with_rank!(rank, D => grads.get::<D>(id).map(AnyTensor::new), rank => no_such(rank))
}

/// Takes the gradient of a parameter of this rank out, so that nothing else here holds its memory.
pub(crate) fn take_gradient(
    grads: &mut GradientsParams,
    id: ParamId,
    rank: usize,
) -> Option<AnyTensor> {
    with_rank!(rank, D => grads.remove::<D>(id).map(AnyTensor::new), rank => no_such(rank))
}

/// Puts a gradient in, in the place of another one.
pub fn put_gradient(grads: &mut GradientsParams, id: ParamId, gradient: AnyTensor) {
    with_rank!(gradient.rank(), D => grads.register(id, gradient.into_tensor::<D>()), rank => no_such(rank));
}

fn no_such<T>(rank: usize) -> T {
    unreachable!("a tensor of rank {rank}")
}
