use burn::tensor::{Device, FloatDType, Tensor, bf16, f16};
use std::sync::Arc;

use crate::device::Kind;
use crate::status::{decode, is_known_now};
use crate::{Status, TensorList, TensorStatus, UnsupportedDType, inspect};

/// A callback for what arrives at a [`watched_cast`](crate::watched_cast) in each backward pass through it.
#[derive(Clone)]
pub struct Watch {
    pub(crate) callback: Arc<dyn Fn(PassedGradient) + Send + Sync>,
    /// True if the tensor of the forward pass is kept, and comes with the gradient.
    pub(crate) of_output: bool,
}

impl Watch {
    /// Calls `callback` at each backward pass, on the thread that runs it. It must not wait for the device.
    pub fn new(callback: impl Fn(UnreadEvent) + Send + Sync + 'static) -> Self {
        Self {
            of_output: true,
            ..Self::of_gradient(callback)
        }
    }

    /// Calls `callback` as [`new`](Self::new) does, and measures nothing: no pass over memory.
    pub fn of_arrival(callback: impl Fn() + Send + Sync + 'static) -> Self {
        Self::of_passing(move |_| callback())
    }

    /// Calls `callback` as [`new`](Self::new) does, and does not look at the tensor of the forward pass.
    pub fn of_gradient(callback: impl Fn(UnreadEvent) + Send + Sync + 'static) -> Self {
        Self::of_passing(move |gradient| {
            // The device has the dtypes of what is there already.
            if let Ok(Some(event)) = PassedGradient::measure(vec![gradient]) {
                callback(event);
            }
        })
    }

    /// Calls `callback` as [`of_arrival`](Self::of_arrival) does, and gives it the gradient, to be measured later or never.
    pub fn of_passing(callback: impl Fn(PassedGradient) + Send + Sync + 'static) -> Self {
        Self {
            callback: Arc::new(callback),
            of_output: false,
        }
    }
}

/// Returns true if a watch of gradients is called on a device: on those whose measures can be read.
pub fn can_watch(device: &Device) -> bool {
    let kind = Kind::of(device.as_dispatch());
    matches!(kind, Kind::Flex | Kind::Cube | Kind::Remote)
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

/// A gradient on its way through a [`watched_cast`](crate::watched_cast), as it arrived there. Holds its memory until it is dropped.
#[derive(Clone, Debug)]
pub struct PassedGradient {
    /// Its values, in any rank.
    pub(crate) gradient: Tensor<1>,
    /// The tensor of the forward pass, if it is measured with the gradient.
    pub(crate) output: Option<Tensor<1>>,
    pub(crate) cast: Cast,
}

/// The way in which a cast changes a gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cast {
    pub(crate) factor: f64,
    /// True if there is more of the factor, in a tensor.
    pub(crate) is_ratio: bool,
    /// The dtype of the cast's input.
    pub(crate) dtype: FloatDType,
    /// The cast's input, by its number among all tensors that require gradients.
    pub(crate) node: u64,
    /// The backward pass.
    pub(crate) pass: u64,
}

impl PassedGradient {
    /// The number of its values.
    pub fn elements(&self) -> usize {
        self.gradient.shape().num_elements()
    }

    /// The device that it is on.
    pub fn device(&self) -> Device {
        self.gradient.device()
    }

    /// Returns true if nobody has to wait to measure it.
    pub fn is_known_now(&self) -> bool {
        is_known_now(&self.gradient)
    }

    /// The number of the tensor that was cast among all that require gradients: those that are made later have higher ones.
    pub fn node(&self) -> u64 {
        self.cast.node
    }

    /// The number of its backward pass, of all of this process. Two that one thread makes in turn are taken for one if the second's first cast is no
    /// deeper in its graph than the first's last.
    pub fn pass(&self) -> u64 {
        self.cast.pass
    }

    /// Measures gradients of one device, cast in the same way, in one pass: as one event. None of an empty list. Does not wait for the device.
    ///
    /// # Errors
    ///
    /// [`UnsupportedDType`], as [`inspect`].
    pub fn measure(mut gradients: Vec<Self>) -> Result<Option<UnreadEvent>, UnsupportedDType> {
        let Some(first) = gradients.first_mut() else {
            return Ok(None);
        };
        let (cast, output) = (first.cast, first.output.take());
        let has_output = output.is_some();
        let gradients = gradients.into_iter().map(|passed| passed.gradient);
        let mut list = TensorList::new();
        gradients.chain(output).for_each(|tensor| list.push(tensor));
        Ok(Some(UnreadEvent {
            cast,
            status: inspect(list)?,
            has_output,
        }))
    }
}

/// A gradient that crossed a [`watched_cast`](crate::watched_cast) on its way back, or several that left one scope, measured and still on the
/// device.
#[derive(Clone, Debug)]
pub struct UnreadEvent {
    pub(crate) cast: Cast,
    /// The measures of each gradient, and then of the forward pass's tensor, if that was looked at.
    pub(crate) status: Status,
    pub(crate) has_output: bool,
}

/// The findings of an [`UnreadEvent`]. Host values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventStatus {
    /// True if all values of the cast's input, on the forward pass, were finite; true where they were not looked at.
    pub output_finite: bool,
    /// True if all values of the gradient were finite when it arrived.
    pub gradient_finite: bool,
    /// True if a finite value of the gradient was too large for the input's dtype once it was multiplied.
    pub overflow: bool,
    /// The largest finite magnitude of the gradient after the multiplication, before it was rounded to the input's dtype.
    pub max_abs: f64,
    /// The L2 norm of the finite values of the gradient, in the same way.
    pub norm: f64,
    /// The number of its values.
    pub elements: u64,
}

impl UnreadEvent {
    /// Reads what was found: waits for the device, for one transfer of 44 bytes a tensor. None if the device cannot be read here.
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

    /// The number of the tensor that was cast, as that of a [`PassedGradient`].
    pub fn node(&self) -> u64 {
        self.cast.node
    }

    /// The number of its backward pass, as that of a [`PassedGradient`].
    pub fn pass(&self) -> u64 {
        self.cast.pass
    }

    fn read_rows(&self) -> Option<Vec<TensorStatus>> {
        let data = self.status.rows.clone()?.into_data_async();
        let data = burn_std::reader::try_read_sync(data)?.ok()?;
        Some(decode(&self.status.elements, data.iter()))
    }

    /// Reads rows, if the factor's tensor was `scale`.
    pub(crate) fn status(&self, rows: &[TensorStatus], scale: f64) -> Option<EventStatus> {
        let count = rows.len() - usize::from(self.has_output);
        let (gradients, output) = rows.split_at_checked(count)?;
        let max_abs = |gradient: &TensorStatus| gradient.max_abs;
        let max_abs = gradients.iter().map(max_abs).reduce(f64::max)?;
        let scale = if self.cast.is_ratio { scale } else { 1.0 };
        let factor = (self.cast.factor * scale).abs();
        // Rounded as the backward pass has rounded it.
        let product = max_abs as f32 * factor as f32;
        let overflow = match self.cast.dtype {
            FloatDType::F16 => f16::from_f32(product).is_infinite(),
            FloatDType::BF16 => bf16::from_f32(product).is_infinite(),
            _ => product.is_infinite(),
        };
        let is_finite = |row: &TensorStatus| row.non_finite == 0;
        let norms = gradients.iter().map(|gradient| gradient.norm);
        Some(EventStatus {
            output_finite: output.iter().all(is_finite),
            gradient_finite: gradients.iter().all(is_finite),
            overflow,
            max_abs: max_abs * factor,
            norm: norms.fold(0.0, f64::hypot) * factor,
            elements: gradients.iter().map(|gradient| gradient.elements).sum(),
        })
    }

    /// The least magnitude of a gradient that is infinite after the cast, before its factor's tensor has multiplied it.
    pub(crate) fn largest(&self) -> f32 {
        let largest = match self.cast.dtype {
            // Halfway to what comes after the largest value.
            FloatDType::F16 => 65520.0,
            FloatDType::BF16 => f32::from_bits(0x7F7F_8000),
            _ => f32::MAX,
        };
        largest / self.cast.factor.abs() as f32
    }
}
