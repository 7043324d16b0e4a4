//! Running statistics, as BatchNorm's: values of a module that the forward pass changes, and no optimizer.
//!
//! A forward pass that overflows leaves NaN in them, and no later one takes it away: `0.9 * NaN` is NaN. A step that is
//! skipped for the overflow does not take it back by itself, because the optimizer knows nothing of them.

use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    tensor::{DType, Device, Tensor},
};

use crate::{
    gradient_pass::Pass,
    module_path::{self, ModulePath},
    param_tensors::ParamTensors,
    rank::with_rank,
};

/// The running statistics of the last good step: handles, no copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningStatistics {
    values: ParamTensors,
}

impl RunningStatistics {
    /// Keeps those of a module that were not met before, as they were before its last forward pass.
    pub(crate) fn meet(&mut self, met: Statistics) {
        let mut values = met.values;
        values.retain(|id| !self.values.contains(id));
        self.values.extend(values);
    }

    /// Keeps what a traversal has met, in place of what was known.
    pub(crate) fn learn(&mut self, met: Statistics) {
        self.values.extend(met.values);
    }

    /// Keeps those of a module, the last forward pass included. Does not wait for the device.
    pub(crate) fn keep<M: Module>(&mut self, module: &M) {
        take_in_updates(module);
        self.values.extend(Statistics::of(module).values);
    }

    /// Replaces values that are not finite by those that were kept, one by one; finite ones stay. Clones of a module share
    /// them. Waits for each device, if there are any.
    pub(crate) fn repair<M: Module>(&mut self, module: &M) {
        take_in_updates(module);
        let mut find = Statistics::of(module);
        find.retain_not_finite();
        if find.is_empty() {
            return;
        }
        let mut repair = Repair {
            kept: &self.values,
            broken: find.found.iter().map(|found| found.id).collect(),
        };
        drop(module.clone().map(&mut repair));
        let paths = |find: &Statistics| {
            let paths = find.found.iter().map(|found| format!("`{}`", found.path));
            paths.collect::<Vec<_>>().join(", ")
        };
        let before = paths(&find);
        let mut find = Statistics::of(module);
        find.retain_not_finite();
        match find.is_empty() {
            true => log::info!(
                "running statistics were not finite after a forward pass, and were set back to those of the last good step: {before}"
            ),
            false => log::warn!(
                "running statistics are not finite, and no finite ones are known: {}. Load them from a record, or initialize the layers again",
                paths(&find)
            ),
        }
    }

    /// Puts back those that were kept, finite or not.
    pub(crate) fn restore<M: Module>(&self, module: &M) {
        take_in_updates(module);
        drop(module.clone().map(&mut Restore(&self.values)));
    }
}

/// Takes in what forward passes have added on all threads and nobody has read yet: Burn does it in `valid`.
fn take_in_updates<M: Module>(module: &M) {
    drop(module.valid());
}

/// The running statistics of a module. Burn does not tell them from frozen parameters, which do no harm here.
#[derive(Default)]
pub(crate) struct Statistics {
    found: Vec<Found>,
    values: ParamTensors,
}

struct Found {
    id: ParamId,
    path: String,
    rank: usize,
    device: Device,
}

impl Statistics {
    fn of<M: Module>(module: &M) -> Self {
        let mut find = Self::default();
        module_path::visit(module, &mut find);
        find
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Waits for each device once.
    fn retain_not_finite(&mut self) {
        let (mut pass, mut indices) = (Pass::default(), Vec::new());
        for (index, found) in self.found.iter().enumerate() {
            with_rank!(found.rank, D => {
                if let Some(value) = self.values.get::<D>(found.id, &found.device) {
                    pass.push(value, true);
                    indices.push(index);
                }
            }, _rank => ());
        }
        let mut finite = vec![true; self.found.len()];
        #[cfg(test)]
        tests::READS.set(tests::READS.get() + u32::from(!indices.is_empty()));
        match pass.inspect() {
            Ok(statuses) => {
                for (index, status) in indices.into_iter().zip(statuses) {
                    finite[index] = status.non_finite == 0;
                }
            }
            Err(error) => log::warn!("running statistics cannot be tested: {error}"),
        }
        let mut finite = finite.into_iter();
        self.found.retain(|_| finite.next() == Some(false));
    }
}

impl module_path::Visit for Statistics {
    fn parameter<const D: usize>(&mut self, path: &ModulePath, param: &Param<Tensor<D>>) {
        let value = param.base();
        let float = matches!(
            value.dtype(),
            DType::F16 | DType::BF16 | DType::F32 | DType::F64
        );
        if !float || value.is_require_grad() {
            return;
        }
        self.found.push(Found {
            id: param.id,
            path: path.join(),
            rank: D,
            device: value.device(),
        });
        self.values.insert(param.id, value);
    }

    fn enter(&mut self, path: &ModulePath, _name: &str, container_type: &str) {
        // Nothing can be attached to a running statistic: it was a frozen parameter.
        if container_type == "Reparameterization"
            && let Some(frozen) = self.found.pop_if(|last| last.path == path.as_str())
        {
            self.values.remove(frozen.id);
        }
    }
}

struct Repair<'a> {
    kept: &'a ParamTensors,
    broken: Vec<ParamId>,
}

impl ModuleMapper for Repair<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.broken.contains(&param.id) {
            return param;
        }
        let value = param.base();
        match self.kept.get::<D>(param.id, &value.device()) {
            Some(kept) if kept.shape() == value.shape() => {
                let kept = kept.cast(value.dtype());
                param.map(|_| kept.mask_where(value.clone().is_finite(), value))
            }
            _ => param,
        }
    }
}

struct Restore<'a>(&'a ParamTensors);

impl ModuleMapper for Restore<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.0.get::<D>(param.id, &param.base().device());
        match value {
            Some(value) => param.map(|_| value),
            None => param,
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
        optim::{GradientsParams, SgdConfig},
        tensor::{Device, Tensor},
    };
    use std::cell::Cell;

    use super::Statistics;
    use crate::{GradScalerConfig, MixedPrecision, ScaledOptimizer};

    thread_local! {
        /// How often this thread has waited for a device.
        pub(super) static READS: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn only_a_skipped_step_waits() {
        let device = Device::flex().autodiff();
        let scaler = GradScalerConfig::new().init().unwrap();
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
        let mut norm: BatchNorm = BatchNormConfig::new(2).init(&device);
        for (factor, reads) in [(1.0, 0), (1.0, 0), (f32::INFINITY, 2), (1.0, 0)] {
            let input = Tensor::<3>::ones([4, 2, 3], &device) * factor;
            let loss = norm.forward(input).square().mean();
            let grads = optim.backward(loss, &norm);
            READS.set(0);
            norm = optim.step(0.1, norm, grads);
            assert_eq!(READS.get(), reads, "{factor}");
        }
    }

    #[test]
    fn a_model_without_them_never_waits() {
        let device = Device::flex().autodiff();
        let scaler = GradScalerConfig::new().init().unwrap();
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
        let model: Linear = LinearConfig::new(4, 2).init(&device);
        let loss = model
            .forward(Tensor::<2>::full([3, 4], f32::NAN, &device))
            .sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optim.step(0.1, model, grads);
        assert_eq!(optim.scaler().counters().skipped(), 1);
        assert_eq!(READS.get(), 0);
    }

    #[test]
    fn frozen_parameters_of_a_mixed_precision_are_none() {
        let device = Device::flex().autodiff();
        let model: Linear = LinearConfig::new(4, 2).init(&device).freeze();
        assert_eq!(Statistics::of(&model).found.len(), 2);
        let model = model.apply_reparameterization(MixedPrecision::f16());
        assert!(Statistics::of(&model).is_empty());
        let norm: BatchNorm = BatchNormConfig::new(2).init(&device);
        let norm = norm
            .freeze()
            .apply_reparameterization(MixedPrecision::f16());
        let found = Statistics::of(&norm).found;
        let paths: Vec<_> = found.iter().map(|found| found.path.as_str()).collect();
        assert_eq!(paths, ["running_mean", "running_var"]);
    }
}
