use burn::tensor::{FloatDType, bf16, f16};
use std::sync::Arc;

use crate::{Status, TensorStatus, status::decode};

/// A callback for what arrives at a [`watched_cast`](crate::watched_cast) in each backward pass through it.
#[derive(Clone)]
pub struct Watch(pub(crate) Callback);

/// What a [`Watch`] calls.
#[derive(Clone)]
pub(crate) enum Callback {
    /// Of the gradient; and of the tensor of the forward pass too, if that is to be looked at.
    Measured(Arc<dyn Fn(UnreadEvent) + Send + Sync>, bool),
    Arrived(Arc<dyn Fn() + Send + Sync>),
}

impl Watch {
    /// Calls `callback` at each backward pass, on the thread that runs it. It must not wait for the device.
    pub fn new(callback: impl Fn(UnreadEvent) + Send + Sync + 'static) -> Self {
        Self(Callback::Measured(Arc::new(callback), true))
    }

    /// As [`new`](Self::new), and measures nothing: no pass over memory.
    pub fn of_arrival(callback: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Callback::Arrived(Arc::new(callback)))
    }

    /// As [`new`](Self::new), and does not look at the tensor of the forward pass.
    pub fn of_gradient(callback: impl Fn(UnreadEvent) + Send + Sync + 'static) -> Self {
        Self(Callback::Measured(Arc::new(callback), false))
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

/// A gradient that crossed a [`watched_cast`](crate::watched_cast) on its way back, measured and still on the device.
#[derive(Clone, Debug)]
pub struct UnreadEvent {
    pub(crate) factor: f64,
    /// Whether there is more of it, in a tensor.
    pub(crate) is_ratio: bool,
    /// Of the cast's input.
    pub(crate) dtype: FloatDType,
    /// Of the gradient, and of the forward pass's tensor, if that was looked at.
    pub(crate) status: Status,
}

/// What was found in an [`UnreadEvent`]. Host values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventStatus {
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

impl UnreadEvent {
    /// Reads what was found: waits for the device, for one transfer of 44 or 88 bytes. None if the device cannot be read here.
    /// Of a factor with a tensor, the ratio alone counts: [`Reading::wait`](crate::Reading::wait) takes the rest.
    pub fn read(self) -> Option<EventStatus> {
        let rows = self.read_rows()?;
        self.status(&rows, 1.0)
    }

    /// Reads the measures of the gradient as it arrived, and of the forward pass's tensor, if that was looked at. Waits as
    /// [`read`](Self::read), and fails as it does.
    pub fn read_measures(self) -> Option<(TensorStatus, Option<TensorStatus>)> {
        let mut rows = self.read_rows()?.into_iter();
        Some((rows.next()?, rows.next()))
    }

    fn read_rows(&self) -> Option<Vec<TensorStatus>> {
        let data = self.status.rows.clone()?.into_data_async();
        let data = burn_std::reader::try_read_sync(data)?.ok()?;
        Some(decode(&self.status.elements, data.iter()))
    }

    /// What rows say, if the factor's tensor was `scale`.
    pub(crate) fn status(&self, rows: &[TensorStatus], scale: f64) -> Option<EventStatus> {
        let (gradient, output) = (rows.first()?, rows.get(1));
        let scale = if self.is_ratio { scale } else { 1.0 };
        let factor = (self.factor * scale).abs();
        // Rounded as the backward pass has rounded it.
        let product = gradient.max_abs as f32 * factor as f32;
        let overflow = match self.dtype {
            FloatDType::F16 => f16::from_f32(product).is_infinite(),
            FloatDType::BF16 => bf16::from_f32(product).is_infinite(),
            _ => product.is_infinite(),
        };
        Some(EventStatus {
            output_finite: output.is_none_or(|output| output.non_finite == 0),
            gradient_finite: gradient.non_finite == 0,
            overflow,
            max_abs: gradient.max_abs * factor,
            norm: gradient.norm * factor,
            elements: gradient.elements,
        })
    }
}
