//! One pass over gradients, on all devices that hold some.

use burn::tensor::{DType, Device, Tensor};
use burn_amp_kernels::{
    Crossing, CrossingStatus, ExponentHistogram, Reading, Status, TensorList, TensorStatus,
    UnsupportedDType,
};

#[cfg(test)]
thread_local! {
    /// How often this thread has waited for a device.
    pub(crate) static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Gradients on their way through the kernels: one list for each device, and one more for those that keep their dtype.
#[derive(Default)]
pub(crate) struct Pass {
    groups: Vec<Group>,
    len: usize,
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
        Self {
            edge,
            ..Self::default()
        }
    }

    /// Unscaled, a gradient is in f32 (f64 for f64), or in its own dtype, and then measured as rounded.
    pub(crate) fn push<const D: usize>(&mut self, grad: Tensor<D>, keep_dtype: bool) {
        let grad = grad.inner();
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
        self.groups[group].list.push(grad);
        self.groups[group].positions.push(self.len);
        self.len += 1;
    }

    /// Multiplies all gradients by `inverse`; results and statuses are in the order in which the gradients came. Does not wait.
    pub(crate) fn unscale(self, inverse: f32) -> Result<(Products, Pending), UnsupportedDType> {
        let mut products = Products { groups: Vec::new() };
        let mut pending = Pending::of(self.len);
        for group in self.groups {
            let factor = Tensor::from_data([inverse], (&group.device, DType::F32));
            let (list, status) = match group.keep_dtype {
                true => burn_amp_kernels::unscale_in_dtype(group.list, factor)?,
                false => burn_amp_kernels::unscale(group.list, factor)?,
            };
            products.groups.push((list, group.positions.clone()));
            pending.groups.push((group.device, status, group.positions));
        }
        Ok((products, pending))
    }

    /// Measures all gradients; statuses are in the order in which the gradients came. Waits for each device, for one transfer.
    pub(crate) fn inspect(self) -> Result<Vec<TensorStatus>, UnsupportedDType> {
        Ok(self.started()?.read())
    }

    /// As [`inspect`](Self::inspect), and reads what has crossed the border in the same transfer.
    pub(crate) fn inspect_with(
        self,
        crossings: Vec<Crossing>,
    ) -> Result<(Vec<TensorStatus>, Vec<Option<CrossingStatus>>), UnsupportedDType> {
        Ok(self.started()?.read_with(crossings))
    }

    /// The list, if all are on one device.
    pub(crate) fn only(mut self) -> Option<TensorList> {
        let group = self.groups.pop()?;
        self.groups.is_empty().then_some(group.list)
    }

    fn started(self) -> Result<Pending, UnsupportedDType> {
        let mut pending = Pending::of(self.len);
        for group in self.groups {
            let status = burn_amp_kernels::inspect(group.list)?;
            pending.groups.push((group.device, status, group.positions));
        }
        Ok(pending)
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
pub(crate) struct Pending {
    groups: Vec<(Device, Status, Vec<usize>)>,
    len: usize,
}

impl Pending {
    fn of(len: usize) -> Self {
        let groups = Vec::new();
        Self { groups, len }
    }

    /// Waits for each device, for one transfer.
    pub(crate) fn read(self) -> Vec<TensorStatus> {
        self.read_with(Vec::new()).0
    }

    /// As [`read`](Self::read), with what has crossed the border beside the gradients of the first device.
    fn read_with(
        self,
        mut crossings: Vec<Crossing>,
    ) -> (Vec<TensorStatus>, Vec<Option<CrossingStatus>>) {
        start(self.groups.iter().map(|(device, ..)| device));
        let mut statuses = vec![TensorStatus::default(); self.len];
        let mut crossed = Vec::new();
        for (_, status, positions) in self.groups {
            #[cfg(test)]
            READS.set(READS.get() + 1);
            let (rows, found) = Reading::now(status, std::mem::take(&mut crossings)).wait(1.0);
            crossed.extend(found);
            for (position, status) in positions.into_iter().zip(rows) {
                statuses[position] = status;
            }
        }
        // Nothing was measured.
        crossed.extend(crossings.into_iter().map(Crossing::read));
        (statuses, crossed)
    }
}

/// The unscaled gradients.
pub(crate) struct Products {
    groups: Vec<(TensorList, Vec<usize>)>,
}

impl Products {
    /// Takes a gradient out. From the last to the first, so that nothing else holds its memory.
    pub(crate) fn pop<const D: usize>(&mut self, position: usize) -> Option<Tensor<D>> {
        let group = self
            .groups
            .iter_mut()
            .find(|(_, positions)| positions.last() == Some(&position))?;
        group.1.pop();
        group.0.pop()
    }
}
