//! One pass over gradients, on all devices that hold some.

use burn::{
    optim::GradientsParams,
    tensor::{DType, Device, Tensor},
};
use burn_amp_kernels::{ExponentHistogram, Status, TensorList, TensorStatus, UnsupportedDType};

use crate::{entries::Entry, rank::with_rank};

#[cfg(test)]
thread_local! {
    /// How often this thread has waited for a device.
    pub(crate) static READS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Measures gradients, one status for each entry; counts values from `edge` on. Waits for each device once.
pub(crate) fn measure(
    grads: &GradientsParams,
    entries: &[Entry],
    edge: Option<f32>,
) -> Result<Vec<TensorStatus>, UnsupportedDType> {
    let (pass, positions) = handles(grads, entries, edge);
    let mut statuses = vec![TensorStatus::default(); entries.len()];
    for (position, status) in positions.into_iter().zip(pass.inspect()?) {
        statuses[position] = status;
    }
    Ok(statuses)
}

/// Handles to gradients, and the positions of their entries.
pub(crate) fn handles(
    grads: &GradientsParams,
    entries: &[Entry],
    edge: Option<f32>,
) -> (Pass, Vec<usize>) {
    let (mut pass, mut positions) = (Pass::counting_from(edge), Vec::new());
    for (position, entry) in entries.iter().enumerate() {
        with_rank!(entry.rank, D => {
            if let Some(grad) = grads.get::<D>(entry.id) {
                pass.push(grad);
                positions.push(position);
            }
        }, _rank => ());
    }
    (pass, positions)
}

/// Gradients on their way through the kernels: one list for each device.
#[derive(Default)]
pub(crate) struct Pass {
    groups: Vec<Group>,
    len: usize,
    /// From which magnitude on values are counted as near the top.
    edge: Option<f32>,
}

struct Group {
    device: Device,
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

    pub(crate) fn push<const D: usize>(&mut self, grad: Tensor<D>) {
        let grad = grad.inner();
        let device = grad.device();
        let group = self.groups.iter().position(|g| g.device == device);
        let group = group.unwrap_or_else(|| {
            let mut list = TensorList::new();
            if let Some(edge) = self.edge {
                list.count_from(edge);
            }
            self.groups.push(Group {
                device,
                list,
                positions: Vec::new(),
            });
            self.groups.len() - 1
        });
        self.groups[group].list.push(grad);
        self.groups[group].positions.push(self.len);
        self.len += 1;
    }

    /// Multiplies all gradients by `inverse`; results and statuses are in the order in which the gradients came.
    ///
    /// Waits for each device, for one transfer.
    pub(crate) fn unscale(
        self,
        inverse: f32,
    ) -> Result<(Products, Vec<TensorStatus>), UnsupportedDType> {
        let mut groups = Vec::new();
        let mut pending = Vec::new();
        for group in self.groups {
            let factor = Tensor::from_data([inverse], (&group.device, DType::F32));
            let (list, status) = burn_amp_kernels::unscale(group.list, factor)?;
            pending.push((status, group.positions.clone()));
            groups.push((list, group.positions));
        }
        // All devices have their work before the first of them is waited for.
        Ok((Products { groups }, read(pending, self.len)))
    }

    /// Measures all gradients; statuses are in the order in which the gradients came.
    ///
    /// Waits for each device, for one transfer.
    pub(crate) fn inspect(self) -> Result<Vec<TensorStatus>, UnsupportedDType> {
        let mut pending = Vec::new();
        for group in self.groups {
            pending.push((burn_amp_kernels::inspect(group.list)?, group.positions));
        }
        Ok(read(pending, self.len))
    }

    /// Counts the values of all gradients by exponent. Waits for each device, for one transfer.
    pub(crate) fn histogram(self) -> Result<ExponentHistogram, UnsupportedDType> {
        let mut pending = Vec::new();
        for group in self.groups {
            pending.push(burn_amp_kernels::histogram(group.list)?);
        }
        let counts = pending.into_iter().map(|counts| counts.read());
        Ok(counts.fold(ExponentHistogram::default(), |sum, counts| sum + counts))
    }
}

fn read(pending: Vec<(Status, Vec<usize>)>, len: usize) -> Vec<TensorStatus> {
    let mut statuses = vec![TensorStatus::default(); len];
    for (status, positions) in pending {
        #[cfg(test)]
        READS.set(READS.get() + 1);
        for (position, status) in positions.into_iter().zip(status.read()) {
            statuses[position] = status;
        }
    }
    statuses
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
