//! One pass over gradients, on all devices that hold some.

use burn::tensor::{DType, Device, Tensor};
use burn_amp_kernels::{
    EventStatus, ExponentHistogram, Histogram, Reading, Status, TensorList, TensorStatus,
    UnreadEvent, UnsupportedDType,
};
use std::{iter::zip, mem::take};

use crate::values::AnyTensor;

#[cfg(any(test, feature = "counts"))]
thread_local! {
    /// How often this thread has waited for a device.
    pub static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Gradients on their way through the kernels: one list for each device, and one more for those that keep their dtype.
#[derive(Default)]
pub(crate) struct Pass {
    groups: Vec<Group>,
    /// From which magnitude on values are counted as near the top.
    edge: Option<f32>,
}

struct Group {
    device: Device,
    keep_dtype: bool,
    /// The gradients, or what they were multiplied to.
    list: TensorList,
    /// What is in them, once it was measured; nobody has read it.
    status: Status,
    /// Where each tensor stands among all gradients.
    positions: Vec<usize>,
}

impl Pass {
    pub(crate) fn counting_from(edge: Option<f32>) -> Self {
        let groups = Vec::new();
        Self { groups, edge }
    }

    /// Of tensors that stay as they are, by their positions.
    pub(crate) fn of(edge: Option<f32>, tensors: impl Iterator<Item = (usize, AnyTensor)>) -> Self {
        let mut pass = Self::counting_from(edge);
        tensors.for_each(|(position, tensor)| pass.push(position, tensor, true));
        pass
    }

    /// What is in each of these tensors. Waits for each device once.
    pub(crate) fn measure(tensors: Vec<AnyTensor>) -> Result<Vec<TensorStatus>, UnsupportedDType> {
        let mut statuses = vec![TensorStatus::default(); tensors.len()];
        let pass = Self::of(None, tensors.into_iter().enumerate());
        pass.inspect(Vec::new(), |at, status| statuses[at] = status)?;
        Ok(statuses)
    }

    /// Adds the gradient that stands at a position among all. Unscaled, it is in f32 (f64 for f64), or in its own dtype, and then measured
    /// as rounded.
    pub(crate) fn push(&mut self, position: usize, grad: AnyTensor, keep_dtype: bool) {
        let device = grad.device();
        let is_ours = |g: &Group| g.device == device && g.keep_dtype == keep_dtype;
        let group = self.groups.iter().position(is_ours);
        let group = group.unwrap_or_else(|| {
            let mut list = TensorList::new();
            if let Some(edge) = self.edge {
                list.count_from(edge);
            }
            self.groups.push(Group {
                device,
                keep_dtype,
                list,
                status: Status::default(),
                positions: Vec::new(),
            });
            self.groups.len() - 1
        });
        self.groups[group].list.push::<1>(grad.into_handle());
        self.groups[group].positions.push(position);
    }

    /// Multiplies all gradients by `inverse`, and measures the products. Does not wait.
    pub(crate) fn unscale(&mut self, inverse: f32) -> Result<(), UnsupportedDType> {
        for group in &mut self.groups {
            let factor = Tensor::from_data([inverse], (&group.device, DType::F32));
            let list = take(&mut group.list);
            (group.list, group.status) = match group.keep_dtype {
                true => burn_amp_kernels::unscale_in_dtype(list, factor)?,
                false => burn_amp_kernels::unscale(list, factor)?,
            };
        }
        Ok(())
    }

    /// Measures all gradients, and reads what was found, as [`read`](Self::read).
    pub(crate) fn inspect(
        mut self,
        events: Vec<UnreadEvent>,
        found: impl FnMut(usize, TensorStatus),
    ) -> Result<Vec<Option<EventStatus>>, UnsupportedDType> {
        for group in &mut self.groups {
            group.status = burn_amp_kernels::inspect(take(&mut group.list))?;
        }
        Ok(self.read(events, found))
    }

    /// Reports what was `found` in the gradients, by their positions. Reads the border events in the same transfer. Waits for each
    /// device, for one transfer.
    pub(crate) fn read(
        &mut self,
        mut events: Vec<UnreadEvent>,
        mut found: impl FnMut(usize, TensorStatus),
    ) -> Vec<Option<EventStatus>> {
        self.start();
        let mut event_statuses = Vec::new();
        for group in &mut self.groups {
            #[cfg(any(test, feature = "counts"))]
            READS.set(READS.get() + 1);
            // With those of the first device.
            let reading = Reading::now(take(&mut group.status), take(&mut events));
            let (rows, first) = reading.wait(1.0);
            event_statuses.extend(first);
            for (position, status) in group.positions.iter().zip(rows) {
                found(*position, status);
            }
        }
        // Nothing was measured.
        event_statuses.extend(events.into_iter().map(UnreadEvent::read));
        event_statuses
    }

    /// Takes the gradients out, each with its position.
    pub(crate) fn into_tensors(self) -> impl Iterator<Item = (usize, AnyTensor)> {
        let tensors = |group: Group| zip(group.positions, AnyTensor::all_of(group.list));
        self.groups.into_iter().flat_map(tensors)
    }

    /// The list, if all are on one device.
    pub(crate) fn only(mut self) -> Option<TensorList> {
        let group = self.groups.pop()?;
        self.groups.is_empty().then_some(group.list)
    }

    /// Counts the values of all gradients by exponent. Waits for each device, for one transfer.
    pub(crate) fn histogram(mut self) -> Result<ExponentHistogram, UnsupportedDType> {
        let mut counts = Vec::new();
        for group in &mut self.groups {
            counts.push(burn_amp_kernels::histogram(take(&mut group.list))?);
        }
        self.start();
        let counts = counts.into_iter().map(Histogram::read);
        Ok(counts.fold(ExponentHistogram::default(), |sum, counts| sum + counts))
    }

    /// Has all devices start before the first of them is waited for: with fusion, work is queued until it is read or flushed.
    fn start(&self) {
        if self.groups.len() < 2 {
            return;
        }
        for Group { device, .. } in &self.groups {
            if let Err(error) = device.flush() {
                // Reading returns the same error.
                debug!("{device:?} could not start: {error}");
            }
        }
    }
}
