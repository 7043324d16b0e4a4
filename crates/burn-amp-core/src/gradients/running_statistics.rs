//! Running statistics, as BatchNorm's: values of a module that the forward pass changes, and no optimizer.
//!
//! A forward pass that overflows leaves NaN in them, and no later one takes it away: `0.9 * NaN` is NaN. A step that is
//! skipped for the overflow does not take it back by itself, because the optimizer knows nothing of them.

use burn::{module::Module, tensor::DType};
use burn_amp_kernels::TensorStatus;

use crate::{
    gradients::pass::Pass,
    scale::live_scale::LiveScale,
    scale::loss_scale::StepOutcome,
    values::module_path::{Parameter, parameters, replaced},
    values::param_tensors::ParamTensors,
};

/// The running statistics of the last good step: handles, no copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunningStatistics {
    values: ParamTensors,
}

impl RunningStatistics {
    /// Keeps those of a module that were not met before, as they were before its last forward pass.
    pub fn track(&mut self, met: Statistics) {
        for found in met.0 {
            if !self.values.contains(found.id) {
                self.values.insert(found.id, found.value);
            }
        }
    }

    /// Keeps what a traversal has met, in place of what was known.
    pub fn accept(&mut self, met: Statistics) {
        for found in met.0 {
            self.values.insert(found.id, found.value);
        }
    }

    /// Keeps those of a module, the last forward pass included. Does not wait for the device.
    pub(crate) fn keep<M: Module>(&mut self, module: &M) {
        self.accept(updated(module));
    }

    /// Replaces values that are not finite by those that were kept, one by one; finite ones stay. Clones of a module share
    /// them. Waits for each device, if there are any.
    pub(crate) fn repair<M: Module>(&mut self, module: &M) {
        let broken = updated(module).not_finite();
        if broken.is_empty() {
            return;
        }
        let repaired = broken.0.iter().filter_map(|found| {
            let value = &found.value;
            let kept = self.values.get_any(found.id, &value.device())?;
            let fits = kept.shape() == value.shape();
            let kept = fits.then(|| kept.cast(value.dtype()))?;
            let value = value.clone().into_handle();
            let repaired = kept.map(|kept| kept.mask_where(value.clone().is_finite(), value));
            Some((found.id, repaired))
        });
        put(module, repaired.collect());
        let left = updated(module).not_finite();
        match left.is_empty() {
            true => log::info!(
                "running statistics were not finite after a forward pass, and were set back to those of the last good step: {}",
                broken.paths()
            ),
            false => warn!(
                "running statistics are not finite, and no finite ones are known: {}. Load them from a record, or initialize the layers again",
                left.paths()
            ),
        }
    }

    /// Runs forward passes that leave no trace in the running statistics of a module.
    pub(crate) fn unchanged<M: Module, R>(module: &M, forward: impl FnOnce() -> R) -> R {
        let mut before = Self::default();
        before.keep(module);
        let result = forward();
        put(module, before.values);
        result
    }
}

/// What PyTorch calls buffers, of the modules of one optimizer: an overflow in the forward pass leaves NaN in them, and a skip does not take
/// it back by itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    good: RunningStatistics,
    /// As the last step has met them, before the forward pass of its gradients.
    met: Statistics,
    /// Whether the module has made another forward pass since that of the step, as in a pipeline: those are good then that this has met.
    pub(crate) is_behind: bool,
    /// Whether the step is one of a module that has some.
    are_there: bool,
    /// Whether a forward pass may have overflowed of which no step knows: its gradients were thrown away.
    are_suspicious: bool,
    /// The skips of all optimizers of the scale after which they were looked at.
    skips: u64,
}

impl Buffers {
    /// After so many skips of all optimizers of the scale.
    pub(crate) fn since(skips: u64) -> Self {
        Self {
            skips,
            ..Self::default()
        }
    }

    /// Before a step, or a micro-batch, of a module that has these.
    pub fn before_step(&mut self, found: Statistics) {
        self.are_there = !found.is_empty();
        self.good.track(found.clone());
        self.met = found;
    }

    /// After it. Waits for the device only where something was skipped. `accepts_micro_batches` where each of them is tested.
    pub(crate) fn after_step<M: Module>(
        &mut self,
        module: &M,
        outcome: Option<StepOutcome>,
        accepts_micro_batches: bool,
        live: &LiveScale,
    ) {
        let (lost, clean) = match outcome {
            Some(StepOutcome::Skipped | StepOutcome::Dropped) => (true, false),
            Some(StepOutcome::Stepped) => (false, true),
            Some(StepOutcome::Accumulated) => (false, accepts_micro_batches),
            _ => (false, false),
        };
        // Another optimizer's forward pass may have gone through this module.
        let skips = live.skips();
        self.are_suspicious |= self.skips != skips;
        self.skips = match lost {
            true => live.add_skip(),
            false => skips,
        };
        if !self.are_there {
            return;
        }
        if lost || (clean && self.are_suspicious) {
            self.good.repair(module);
            self.are_suspicious = false;
        }
        match (clean, self.is_behind) {
            (true, true) => self.good.accept(std::mem::take(&mut self.met)),
            (true, false) => self.good.keep(module),
            (false, _) => {}
        }
    }

    /// Gradients of a forward pass that has overflowed were thrown away.
    pub(crate) fn suspect(&mut self) {
        self.are_suspicious = true;
    }

    /// Those of another model are met next.
    pub(crate) fn forget(&mut self) {
        *self = Self::since(self.skips);
    }
}

/// The running statistics of a module. Burn does not tell them from frozen parameters, which do no harm here.
#[derive(Clone, Debug, Default)]
pub struct Statistics(Vec<Parameter>);

/// Those of a module with what forward passes have added on all threads and nobody has read yet: Burn takes that in in `valid`.
fn updated<M: Module>(module: &M) -> Statistics {
    drop(module.valid());
    Statistics::of(parameters(module))
}

/// Gives a module, and its clones, these running statistics.
fn put<M: Module>(module: &M, values: ParamTensors) {
    // What a forward pass has added would be taken in over them.
    drop(module.valid());
    drop(replaced(module.clone(), |id, statistic| {
        values.get_any(id, &statistic().value.device())
    }));
}

impl Statistics {
    /// Nothing can be attached to a running statistic: what has an attachment is a frozen parameter.
    pub(crate) fn of(mut parameters: Vec<Parameter>) -> Self {
        let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
        parameters.retain(|parameter| {
            let is_float = floats.contains(&parameter.value.dtype());
            is_float && !parameter.is_trained && parameter.attached.is_none()
        });
        Self(parameters)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that are not finite. Waits for each device once.
    fn not_finite(mut self) -> Self {
        let pass = Pass::of(self.0.iter().map(|found| found.value.clone()));
        #[cfg(test)]
        tests::READS.set(tests::READS.get() + u32::from(!self.is_empty()));
        let mut statuses = vec![TensorStatus::default(); self.0.len()];
        if let Err(error) = pass.inspect(Vec::new(), |at, status| statuses[at] = status) {
            warn!("running statistics cannot be tested: {error}");
        }
        let mut statuses = statuses.into_iter();
        (self.0).retain(|_| statuses.next().is_some_and(|found| found.non_finite > 0));
        self
    }

    fn paths(&self) -> String {
        let paths = self.0.iter().map(|found| format!("`{}`", found.path));
        paths.collect::<Vec<_>>().join(", ")
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
    use crate::{
        GradScalerConfig, MixedPrecision, ScaledOptimizer, values::module_path::parameters,
    };

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
        assert_eq!(Statistics::of(parameters(&model)).0.len(), 2);
        let model = model.apply_reparameterization(MixedPrecision::f16());
        assert!(Statistics::of(parameters(&model)).is_empty());
        let norm: BatchNorm = BatchNormConfig::new(2).init(&device);
        let norm = norm
            .freeze()
            .apply_reparameterization(MixedPrecision::f16());
        let found = Statistics::of(parameters(&norm)).0;
        let paths: Vec<_> = found.iter().map(|found| found.path.as_str()).collect();
        assert_eq!(paths, ["running_mean", "running_var"]);
    }
}
