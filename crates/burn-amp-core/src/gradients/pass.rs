//! One pass over gradients, on all devices that hold some.

use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use burn_amp_kernels::{
    EventStatus, ExponentHistogram, Histogram, Reading, Status, TensorList, TensorStatus,
    UnreadEvent, check_server,
};
use std::{iter::zip, mem::take};

use crate::error::AmpError;
use crate::gradients::{Entry, GradientStatus};
use crate::values::{AnyTensor, Parameter, with_rank};

#[cfg(any(test, feature = "counts"))]
thread_local! {
    /// Counts how often this thread has waited for a device.
    pub static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// The measures of tensors, and those of the border events that were read with them.
type Measured = (Vec<TensorStatus>, Vec<Option<EventStatus>>);

/// Gradients on their way through the kernels: one list for each device, and one more for those that keep their dtype.
pub(crate) struct Pass {
    groups: Vec<Group>,
    /// Values from there on are counted as near the top.
    edge: Option<f32>,
    /// The number of gradients, those that are not there included.
    len: usize,
}

struct Group {
    device: Device,
    keep_dtype: bool,
    /// The gradients, or the products that became of them.
    list: TensorList,
    /// Their measures, which nobody has read yet.
    status: Status,
    /// The position of each among all gradients.
    positions: Vec<usize>,
}

/// Handles to gradients, as they are. Counts values from `edge` on as near the top.
pub(crate) fn handles(grads: &GradientsParams, entries: &[Entry], edge: Option<f32>) -> Pass {
    let mut pass = Pass::new(edge, entries.len());
    for (at, entry) in entries.iter().enumerate() {
        with_rank!(entry.shape.num_dims(), D => {
            if let Some(gradient) = grads.get::<D>(entry.id) {
                pass.push(at, gradient, true);
            }
        });
    }
    pass
}

impl Pass {
    /// A pass over so many gradients, of which none is there yet.
    pub(super) fn new(edge: Option<f32>, len: usize) -> Self {
        let groups = Vec::new();
        Self { groups, edge, len }
    }

    /// Adds a gradient, at its position among all. If it is to `keep_dtype`, it is in its own dtype unscaled, and then measured as rounded; or else in
    /// f32 (f64 for f64).
    pub(super) fn push<const D: usize>(
        &mut self,
        position: usize,
        gradient: Tensor<D>,
        keep_dtype: bool,
    ) {
        let device = gradient.device();
        let is_ours = |g: &Group| g.device == device && g.keep_dtype == keep_dtype;
        let group = self.groups.iter().position(is_ours).unwrap_or_else(|| {
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
        let group = &mut self.groups[group];
        group.list.push::<D>(gradient.inner());
        group.positions.push(position);
    }

    /// Handles to tensors, as they are.
    pub(crate) fn over(tensors: Vec<AnyTensor>) -> Self {
        let mut pass = Self::new(None, tensors.len());
        for (at, tensor) in tensors.into_iter().enumerate() {
            pass.push::<1>(at, tensor.into_handle(), true);
        }
        pass
    }

    /// Multiplies all gradients by `inverse`, and measures the products. Does not wait.
    pub(super) fn unscale(&mut self, inverse: f32) -> Result<(), AmpError> {
        for group in &mut self.groups {
            check_server(&group.device)?;
            let factor = Tensor::from_data([inverse], (&group.device, DType::F32));
            let list = take(&mut group.list);
            (group.list, group.status) = match group.keep_dtype {
                true => burn_amp_kernels::unscale_in_dtype(list, factor)?,
                false => burn_amp_kernels::unscale(list, factor)?,
            };
        }
        Ok(())
    }

    /// Measures all gradients, and reads the measures, as [`read`](Self::read).
    pub(crate) fn inspect(mut self, events: Vec<UnreadEvent>) -> Result<Measured, AmpError> {
        for group in &mut self.groups {
            check_server(&group.device)?;
            group.status = burn_amp_kernels::inspect(take(&mut group.list))?;
        }
        self.read(events)
    }

    /// Reads the measures, by position, and the border events in the same transfer. Waits for each device, for one transfer.
    pub(super) fn read(&mut self, mut events: Vec<UnreadEvent>) -> Result<Measured, AmpError> {
        if self.groups.len() > 1 {
            self.start();
        }
        let mut statuses = vec![TensorStatus::default(); self.len];
        let mut event_statuses = Vec::new();
        for group in &mut self.groups {
            #[cfg(any(test, feature = "counts"))]
            READS.set(READS.get() + 1);
            // With those of the first device.
            let reading = Reading::now(take(&mut group.status), take(&mut events));
            reading.check()?;
            let (rows, first) = reading.wait(1.0);
            event_statuses.extend(first);
            for (position, status) in zip(&group.positions, rows) {
                statuses[*position] = status;
            }
        }
        // Nothing was measured.
        event_statuses.extend(events.into_iter().map(UnreadEvent::read));
        Ok((statuses, event_statuses))
    }

    /// Takes the gradients out, each with its position.
    pub(super) fn into_tensors(self) -> impl Iterator<Item = (usize, AnyTensor)> {
        let tensors = |group: Group| zip(group.positions, AnyTensor::all_of(group.list));
        self.groups.into_iter().flat_map(tensors)
    }

    /// The list, if all are on one device.
    pub(crate) fn only(mut self) -> Option<TensorList> {
        let group = self.groups.pop()?;
        self.groups.is_empty().then_some(group.list)
    }

    /// Counts the values of all gradients by exponent. Waits for each device, for one transfer.
    pub(crate) fn histogram(mut self) -> Result<ExponentHistogram, AmpError> {
        let mut counts = Vec::new();
        for group in &mut self.groups {
            check_server(&group.device)?;
            counts.push(burn_amp_kernels::histogram(take(&mut group.list))?);
        }
        self.start();
        let counts = counts.into_iter().map(Histogram::read);
        Ok(counts.fold(ExponentHistogram::default(), |sum, counts| sum + counts))
    }

    /// Has all devices start before the first of them is waited for: with fusion, work is queued until it is read or flushed.
    fn start(&self) {
        for Group { device, .. } in &self.groups {
            if let Err(error) = device.flush() {
                // Reading returns the same error.
                debug!("{device:?} could not start: {error}");
            }
        }
    }
}

/// Picks the parameters that are not finite. Waits for each device once.
pub(super) fn not_finite(mut found: Vec<Parameter>) -> Result<Vec<Parameter>, AmpError> {
    let values = found.iter().map(|found| found.value.clone()).collect();
    let (statuses, _) = Pass::over(values).inspect(Vec::new())?;
    let mut statuses = statuses.into_iter();
    found.retain(|_| statuses.next().is_some_and(|found| found.non_finite > 0));
    Ok(found)
}

/// Sums up the measures of each gradient.
pub(super) fn summarize(entries: &[Entry], each: &[TensorStatus]) -> GradientStatus {
    let mut status = GradientStatus {
        gradients: entries.len(),
        ..Default::default()
    };
    let measures = &mut status.measures;
    measures.norm = norm(each.iter().map(|one| one.norm));
    for (entry, one) in zip(entries, each) {
        measures.elements += one.elements;
        measures.zeros += one.zeros;
        measures.above += one.above;
        measures.max_abs = measures.max_abs.max(one.max_abs);
        status.non_finite += one.non_finite;
        if one.non_finite > 0 && status.overflow.is_none() {
            status.overflow = Some(entry.path.clone());
        }
    }
    status
}

/// The norm of several gradients as one vector, relative to the largest of their norms.
pub(super) fn norm(norms: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = norms.clone().fold(0.0, f64::max);
    if largest == 0.0 || largest.is_infinite() {
        return largest;
    }
    let squares: f64 = norms.map(|norm| (norm / largest).powi(2)).sum();
    largest * squares.sqrt()
}
