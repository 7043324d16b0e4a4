//! One pass over gradients, on all devices that hold some.

use burn::tensor::{DType, Device, Tensor};
use burn_amp_kernels::{
    Crossing, CrossingStatus, ExponentHistogram, Reading, Status, TensorList, TensorStatus,
    UnsupportedDType,
};

use crate::{any_tensor::AnyTensor, rank::with_rank};

#[cfg(test)]
thread_local! {
    /// How often this thread has waited for a device.
    pub(crate) static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
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
    list: TensorList,
    /// Where each tensor stands among all gradients.
    positions: Vec<usize>,
}

impl Pass {
    pub(crate) fn counting_from(edge: Option<f32>) -> Self {
        let groups = Vec::new();
        Self { groups, edge }
    }

    /// Of tensors that stay as they are.
    pub(crate) fn of(tensors: impl IntoIterator<Item = AnyTensor>) -> Self {
        let mut pass = Self::default();
        for (position, tensor) in tensors.into_iter().enumerate() {
            pass.push(position, tensor, true);
        }
        pass
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
                positions: Vec::new(),
            });
            self.groups.len() - 1
        });
        self.groups[group].list.push(grad.into_handle());
        self.groups[group].positions.push(position);
    }

    /// Multiplies all gradients by `inverse`. Does not wait.
    pub(crate) fn unscale(self, inverse: f32) -> Result<(Products, Pending), UnsupportedDType> {
        let (mut products, mut pending) = (Vec::new(), Vec::new());
        for group in self.groups {
            let factor = Tensor::from_data([inverse], (&group.device, DType::F32));
            let (list, status) = match group.keep_dtype {
                true => burn_amp_kernels::unscale_in_dtype(group.list, factor)?,
                false => burn_amp_kernels::unscale(group.list, factor)?,
            };
            products.push((list, group.positions.clone()));
            pending.push((group.device, status, group.positions));
        }
        Ok((Products(products), Pending(pending)))
    }

    /// Measures all gradients, and puts what was found at their positions. Reads what has crossed the border in the same transfer. Waits for
    /// each device, for one transfer.
    pub(crate) fn inspect(
        self,
        statuses: &mut [TensorStatus],
        crossings: Vec<Crossing>,
    ) -> Result<Vec<Option<CrossingStatus>>, UnsupportedDType> {
        let mut pending = Vec::new();
        for group in self.groups {
            let status = burn_amp_kernels::inspect(group.list)?;
            pending.push((group.device, status, group.positions));
        }
        Ok(Pending(pending).read(statuses, crossings))
    }

    /// The list, if all are on one device.
    pub(crate) fn only(mut self) -> Option<TensorList> {
        let group = self.groups.pop()?;
        self.groups.is_empty().then_some(group.list)
    }

    /// Counts the values of all gradients by exponent. Waits for each device, for one transfer.
    pub(crate) fn histogram(self) -> Result<ExponentHistogram, UnsupportedDType> {
        let mut pending = Vec::new();
        for group in self.groups {
            pending.push((group.device, burn_amp_kernels::histogram(group.list)?));
        }
        start(pending.iter().map(|(device, _)| device));
        let counts = pending.into_iter().map(|(_, counts)| counts.read());
        Ok(counts.fold(ExponentHistogram::default(), |sum, counts| sum + counts))
    }
}

/// Has all devices start before the first of them is waited for: with fusion, work is queued until it is read or flushed.
fn start<'a>(devices: impl ExactSizeIterator<Item = &'a Device>) {
    if devices.len() < 2 {
        return;
    }
    for device in devices {
        if let Err(error) = device.flush() {
            // Reading tells the same.
            log::debug!("{device:?} could not start: {error}");
        }
    }
}

/// Statuses that were not read yet.
pub(crate) struct Pending(Vec<(Device, Status, Vec<usize>)>);

impl Pending {
    /// As [`Pass::inspect`], of gradients that were multiplied.
    pub(crate) fn read(
        self,
        statuses: &mut [TensorStatus],
        mut crossings: Vec<Crossing>,
    ) -> Vec<Option<CrossingStatus>> {
        start(self.0.iter().map(|(device, ..)| device));
        let mut crossed = Vec::new();
        for (_, status, positions) in self.0 {
            #[cfg(test)]
            READS.set(READS.get() + 1);
            // With those of the first device.
            let (rows, found) = Reading::now(status, std::mem::take(&mut crossings)).wait(1.0);
            crossed.extend(found);
            for (position, status) in positions.into_iter().zip(rows) {
                statuses[position] = status;
            }
        }
        // Nothing was measured.
        crossed.extend(crossings.into_iter().map(Crossing::read));
        crossed
    }
}

/// The unscaled gradients, and their positions.
pub(crate) struct Products(Vec<(TensorList, Vec<usize>)>);

impl Products {
    /// Takes the gradient at a position out. From the last to the first, so that nothing else holds its memory.
    pub(crate) fn pop(&mut self, position: usize, rank: usize) -> Option<AnyTensor> {
        let is_last = |positions: &[usize]| positions.last() == Some(&position);
        let mut groups = self.0.iter_mut();
        let (list, positions) = groups.find(|(_, positions)| is_last(positions))?;
        positions.pop();
        with_rank!(rank, D => list.pop::<D>().map(AnyTensor::new), _rank => None)
    }
}
