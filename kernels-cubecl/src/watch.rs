use burn::tensor::{FloatDType, Tensor};
use std::sync::Arc;

use crate::{
    reading::Reading,
    status::{Status, TensorStatus, copied, decode},
};

/// Hears at each backward pass through a [`watched_cast`](crate::watched_cast) what arrived there.
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

/// A gradient that crossed a [`watched_cast`](crate::watched_cast) on its way back, measured and still on the device.
#[derive(Clone)]
pub struct Crossing {
    factor: f64,
    /// Whether there is more of it, in a tensor.
    is_ratio: bool,
    dtype: FloatDType,
    elements: u64,
    /// The rows of the gradient and of the forward pass's tensor, if that was looked at.
    rows: Tensor<1>,
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
    pub(crate) fn new(
        factor: f64,
        is_ratio: bool,
        dtype: FloatDType,
        elements: usize,
        rows: Tensor<1>,
    ) -> Self {
        Self {
            factor,
            is_ratio,
            dtype,
            elements: elements as u64,
            rows,
        }
    }

    /// With the value that the factor's tensor had, which the host did not know when the gradient crossed. The factor was the ratio
    /// until then, and is the product now; one without a tensor stays. [`read_measures`](Self::read_measures) does not depend on it.
    pub fn with_scale(self, scale: f64) -> Self {
        match self.is_ratio {
            true => Self {
                factor: self.factor * scale,
                is_ratio: false,
                ..self
            },
            false => self,
        }
    }

    /// Reads what was found: waits for the device, for one transfer of 44 or 88 bytes. None if the device cannot be read here.
    pub fn read(self) -> Option<CrossingStatus> {
        let rows = self.read_rows()?;
        self.status(&rows)
    }

    /// Reads the measures of the gradient as it arrived, and of the forward pass's tensor, if that was looked at. Waits as
    /// [`read`](Self::read), and fails as it does.
    pub fn read_measures(self) -> Option<(TensorStatus, Option<TensorStatus>)> {
        let elements = self.elements;
        let rows = self.read_rows()?.into_iter();
        let mut rows = rows.map(|row| TensorStatus { elements, ..row });
        Some((rows.next()?, rows.next()))
    }

    /// The same, in memory of its own: see [`Status::copied`].
    #[must_use]
    pub fn copied(&self) -> Self {
        Self {
            rows: copied(self.rows.clone()),
            ..self.clone()
        }
    }

    /// The rows, on the device.
    pub(crate) fn rows(&self) -> Tensor<1> {
        self.rows.clone()
    }

    fn read_rows(&self) -> Option<Vec<TensorStatus>> {
        let data = self.rows.clone().into_data_async();
        let data = burn_std::reader::try_read_sync(data)?.ok()?;
        Some(decode(data.iter()))
    }

    /// Reads a status, and what was found in crossings: on one device, in one transfer for all.
    ///
    /// # Panics
    ///
    /// As [`Status::read`].
    pub fn read_with(
        status: Status,
        crossings: Vec<Self>,
    ) -> (Vec<TensorStatus>, Vec<Option<CrossingStatus>>) {
        Reading::now(status, crossings).wait(1.0)
    }

    /// What rows say.
    pub(crate) fn status(&self, rows: &[TensorStatus]) -> Option<CrossingStatus> {
        let (gradient, output) = (rows.first()?, rows.get(1));
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
