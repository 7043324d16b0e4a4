//! Float tensors whose rank is known at run time: parameters, gradients, sums, averages.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use burn_amp_kernels::{Factor, TensorList, Watch, copied, is_kept_for_nothing, watched_cast};
use std::ops::Deref;

use crate::values::{is_half, with_rank};

/// A handle on a float tensor of any rank.
///
/// Burn's types have a rank, its operations on each value by itself do not look at it: they are done to a handle of rank 1, whatever the shape. It
/// can be asked what a tensor can be asked.
#[derive(Clone, Debug)]
pub struct AnyTensor(pub(super) Tensor<1>);

impl Deref for AnyTensor {
    type Target = Tensor<1>;

    fn deref(&self) -> &Tensor<1> {
        &self.0
    }
}

impl AnyTensor {
    /// A handle on a tensor without its autodiff.
    pub(crate) fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        Self::with_graph(tensor.inner())
    }

    /// Uploads values in their dtype to a device; none if Burn's tensors cannot have their rank.
    pub(super) fn from_data(data: TensorData, device: &Device) -> Option<Self> {
        let options = (device, data.dtype());
        with_rank!(data.rank(), D => Some(Self::new(Tensor::<D>::from_data(data, options))), _rank => None)
    }

    /// A handle on a tensor as it is.
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

    /// True if a handle to it costs no launch.
    pub(crate) fn is_kept_for_nothing(&self) -> bool {
        is_kept_for_nothing(&self.0)
    }

    /// Changes each value by itself; the shape stays.
    pub fn map(self, change: impl FnOnce(Tensor<1>) -> Tensor<1>) -> Self {
        Self(change(self.0))
    }

    /// The same values in another dtype.
    pub fn cast(self, dtype: impl Into<FloatDType>) -> Self {
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
            Some(values) => {
                let own = copied(values);
                with_rank!(shape.rank(), D => Self::with_graph(own.reshape::<D, _>(shape)))
            }
            None => self,
        }
    }

    /// Changes each value by itself, in f32 for f16 and bf16: a scalar would be rounded to the tensor's dtype, where 1e-8 is zero and 1/60000
    /// off by 0.14 %.
    fn map_wide(self, change: impl FnOnce(Tensor<1>) -> Tensor<1>) -> Self {
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
        Self(watched_cast(self.0, dtype, factor, watch))
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
