use burn::tensor::{Device, FloatDType, Tensor};

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
    pub(crate) ratio: f64,
    pub(crate) scale: Option<Tensor<1>>,
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

    /// Whether it is known to change nothing.
    pub(crate) fn is_one(&self) -> bool {
        self.ratio == 1.0 && self.scale.is_none()
    }

    /// The tensor, on a device. From another one, Burn waits for it where it goes through the host.
    pub(crate) fn scale_on(&self, device: &Device) -> Option<Tensor<1>> {
        let scale = self.scale.clone()?;
        Some(match scale.device() == *device {
            true => scale,
            false => scale.to_device(device),
        })
    }
}

impl From<f64> for Factor {
    /// The number itself: finite, and rounded to f32.
    fn from(ratio: f64) -> Self {
        Self { ratio, scale: None }
    }
}
