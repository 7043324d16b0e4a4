use burn::tensor::{DType, Device, Tensor};
use burn_amp_kernels::{ExponentHistogram, Status, TensorList, TensorStatus, UnsupportedDType};

/// Gradients on their way through the kernels: one list for each device.
#[derive(Default)]
pub(crate) struct Pass {
    groups: Vec<Group>,
    len: usize,
}

struct Group {
    device: Device,
    list: TensorList,
    /// Where each tensor stands among all gradients.
    positions: Vec<usize>,
}

impl Pass {
    pub(super) fn push<const D: usize>(&mut self, grad: Tensor<D>) {
        let grad = grad.inner();
        let device = grad.device();
        let group = self.groups.iter().position(|g| g.device == device);
        let group = group.unwrap_or_else(|| {
            self.groups.push(Group {
                device,
                list: TensorList::new(),
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
    pub(super) fn unscale(
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
    pub(super) fn inspect(self) -> Result<Vec<TensorStatus>, UnsupportedDType> {
        let mut pending = Vec::new();
        for group in self.groups {
            pending.push((burn_amp_kernels::inspect(group.list)?, group.positions));
        }
        Ok(read(pending, self.len))
    }

    /// Counts the values of all gradients by exponent. Waits for each device, for one transfer.
    pub(super) fn histogram(self) -> Result<ExponentHistogram, UnsupportedDType> {
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
        tests::READS.set(tests::READS.get() + 1);
        for (position, status) in positions.into_iter().zip(status.read()) {
            statuses[position] = status;
        }
    }
    statuses
}

/// The unscaled gradients.
pub(super) struct Products {
    groups: Vec<(TensorList, Vec<usize>)>,
}

impl Products {
    /// Takes a gradient out. From the last to the first, so that nothing else holds its memory.
    pub(super) fn pop<const D: usize>(&mut self, position: usize) -> Option<Tensor<D>> {
        let group = self
            .groups
            .iter_mut()
            .find(|(_, positions)| positions.last() == Some(&position))?;
        group.1.pop();
        group.0.pop()
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{Linear, LinearConfig},
        tensor::{Device, Tensor},
    };
    use std::cell::Cell;

    use crate::{GradScalerConfig, GradientClip, UnscaledGradients};

    thread_local! {
        /// How often this thread has waited for a device.
        pub(super) static READS: Cell<u32> = const { Cell::new(0) };
    }

    fn reads(action: impl FnOnce() -> UnscaledGradients) -> (u32, UnscaledGradients) {
        READS.set(0);
        let grads = action();
        (READS.get(), grads)
    }

    #[test]
    fn clipping_waits_only_for_gradients_that_were_changed() {
        let device = Device::flex().autodiff();
        let model: Linear = LinearConfig::new(4, 2).init(&device);
        let scaler = GradScalerConfig::new().init().unwrap();
        let loss = model.forward(Tensor::<2>::ones([3, 4], &device)).sum();
        let clip = GradientClip::by_global_norm(0.5).unwrap();

        let (count, grads) = reads(|| scaler.unscale(scaler.backward(loss, &model), &model));
        assert_eq!(count, 1);
        let (count, clipped) = reads(|| grads.clone().clip(&clip));
        assert_eq!(count, 0);
        assert!(clipped.status().clip().is_some());
        let (count, _) = reads(|| grads.mul_scalar(2.0).clip(&clip));
        assert_eq!(count, 1);
    }
}
