//! Running statistics, as BatchNorm's: values of a module that the forward pass changes, and no optimizer.
//!
//! A forward pass that overflows leaves NaN in them, and no later one takes it away: `0.9 * NaN` is NaN. A step that is
//! skipped for the overflow does not take it back by itself, because the optimizer knows nothing of them.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::Tensor;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use crate::values::{ParamTensor, ParamTensors, Parameter, parameters, replaced};
use crate::{gradients::pass::not_finite, lock::locked, scale::loss_scale::StepOutcome};

/// The running statistics of the modules of one optimizer, which PyTorch calls buffers, and good ones to repair them by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers {
    /// The values of the last good step: handles, no copies.
    good: ParamTensors,
    /// The values of the last step, as they were before the forward pass of its gradients.
    at_step: Vec<Parameter>,
    /// The number of overflows, in the gradients of all optimizers of the scale, after which they were tested; none after gradients were thrown away that
    /// nobody has tested.
    tested_at: Option<u64>,
    /// Says of values that are not trained, once it was asked, whether they are running statistics.
    known: Arc<Mutex<HashMap<ParamId, bool>>>,
}

impl Buffers {
    /// Begins after so many overflows in the gradients of all optimizers of the scale.
    pub(crate) fn since(overflows: u64) -> Self {
        Self {
            tested_at: Some(overflows),
            ..Self::default()
        }
    }

    /// Remembers those among values that are not trained, before a step, or a micro-batch, of their module.
    pub(crate) fn before_step<M: Module>(&mut self, module: &M, untrained: Vec<Parameter>) {
        self.at_step = self.running(module, untrained);
        // Those that are new, as they were before the last forward pass.
        for Parameter { id, value, .. } in &self.at_step {
            (self.good.entry(*id)).or_insert_with(|| value.clone().into());
        }
    }

    /// Repairs them after it, after so many `overflows` in the gradients of all optimizers of the scale, whose forward passes may have gone
    /// through this module.
    /// Waits for the device only where something was skipped. `accepts_micro_batches` where each of them is tested.
    /// `is_behind` if the module has made another forward pass since that of the step, as in a pipeline: those of `at_step` are good then.
    pub(crate) fn after_step<M: Module>(
        &mut self,
        module: &M,
        outcome: Option<StepOutcome>,
        accepts_micro_batches: bool,
        is_behind: bool,
        overflows: u64,
    ) {
        let (is_lost, is_good) = match outcome {
            // A hook may have rejected what a forward pass that has overflowed made of the loss.
            Some(StepOutcome::Skipped | StepOutcome::Dropped | StepOutcome::Guarded) => {
                (true, false)
            }
            Some(StepOutcome::Stepped) => (false, true),
            Some(StepOutcome::Accumulated) => (false, accepts_micro_batches),
            _ => (false, false),
        };
        if self.at_step.is_empty() {
            return;
        }
        if is_lost || (is_good && self.tested_at != Some(overflows)) {
            self.repair(module);
            self.tested_at = Some(overflows);
        }
        if is_good {
            let good = match is_behind {
                true => self.at_step.clone(),
                false => self.updated(module),
            };
            self.good.extend(by_id(good));
        }
    }

    /// Picks those of a module among values that are not trained. Walks over the module where one is new.
    pub(crate) fn running<M: Module>(
        &self,
        module: &M,
        mut untrained: Vec<Parameter>,
    ) -> Vec<Parameter> {
        let mut known = locked(&self.known);
        if !untrained.iter().all(|one| known.contains_key(&one.id)) {
            let running = ids_of_running(module);
            let found = untrained.iter();
            known.extend(found.map(|one| (one.id, running.contains(&one.id))));
        }
        untrained.retain(|one| known.get(&one.id) == Some(&true));
        untrained
    }

    /// The running statistics of a module, with what forward passes have added on all threads and nobody has read yet: Burn takes that in in `valid`.
    fn updated<M: Module>(&self, module: &M) -> Vec<Parameter> {
        drop(module.valid());
        let mut untrained = parameters(module);
        untrained.retain(|parameter| !parameter.is_trained);
        self.running(module, untrained)
    }

    /// Replaces values that are not finite by good ones, one by one; finite ones stay. Clones of a module share them. Waits for each device, if
    /// there are any.
    fn repair<M: Module>(&self, module: &M) {
        let broken = broken_of(self.updated(module));
        if broken.is_empty() {
            return;
        }
        let repaired = broken.iter().filter_map(|Parameter { id, value, .. }| {
            let good = self.good.get(id)?;
            let fits = good.shape() == value.shape();
            let good = fits.then(|| good.clone().live(&value.device()))??;
            let broken = value.clone().into_handle();
            let repair = |good: Tensor<1>| good.mask_where(broken.clone().is_finite(), broken);
            Some((*id, good.cast(value.dtype()).map(repair).into()))
        });
        put(module, repaired.collect());
        let left = broken_of(self.updated(module));
        match left.is_empty() {
            true => info!(
                "running statistics were not finite after a forward pass, and were set back to those of the last good step: {}",
                paths(&broken)
            ),
            false => warn!(
                "running statistics are not finite, and no finite ones are known: {}. Load them from a record, or initialize the layers again",
                paths(&left)
            ),
        }
    }

    /// Has the next good step test them: gradients of a forward pass that has overflowed were thrown away.
    pub(crate) fn suspect(&mut self) {
        self.tested_at = None;
    }

    /// Forgets which ones were good: the next ones are those of another model.
    pub(crate) fn forget(&mut self) {
        *self = Self {
            tested_at: self.tested_at,
            ..Self::default()
        };
    }
}

/// Runs forward passes that leave no trace in the running statistics of a module.
pub fn unchanged<M: Module, R>(module: &M, forward: impl FnOnce() -> R) -> R {
    let before = by_id(Buffers::default().updated(module)).collect();
    let result = forward();
    put(module, before);
    result
}

/// The ids of what keeps its id in a copy that has another for each parameter: Burn's visitors see no difference between a frozen parameter and
/// a running statistic, but of what a mapper returns, a running statistic takes the value alone.
fn ids_of_running<M: Module>(module: &M) -> HashSet<ParamId> {
    struct Renamed;

    impl ModuleMapper for Renamed {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            Param::initialized(ParamId::new(), param.base())
        }
    }

    let renamed = parameters(&module.clone().map(&mut Renamed));
    renamed.into_iter().map(|kept| kept.id).collect()
}

/// Gives a module, and its clones, these running statistics.
fn put<M: Module>(module: &M, values: ParamTensors) {
    // What a forward pass has added would be taken in over them.
    drop(module.valid());
    drop(replaced(module.clone(), |id, statistic| {
        let value = values.get(&id)?.clone();
        value.live(&statistic().value.device())
    }));
}

fn by_id(found: Vec<Parameter>) -> impl Iterator<Item = (ParamId, ParamTensor)> {
    let found = found.into_iter();
    found.map(|parameter| (parameter.id, parameter.value.into()))
}

/// Picks those that are not finite. Waits for each device once.
fn broken_of(found: Vec<Parameter>) -> Vec<Parameter> {
    #[cfg(test)]
    tests::READS.set(tests::READS.get() + u32::from(!found.is_empty()));
    not_finite(found).unwrap_or_else(|error| {
        warn!("running statistics cannot be tested: {error}");
        Vec::new()
    })
}

fn paths(found: &[Parameter]) -> String {
    let paths = found.iter().map(|found| format!("`{}`", found.path));
    paths.collect::<Vec<_>>().join(", ")
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

    use crate::{GradScalerConfig, ScaledOptimizer, Scaler};

    thread_local! {
        /// Counts how often this thread has waited for a device.
        pub(super) static READS: Cell<u32> = const { Cell::new(0) };
    }

    fn scaler() -> Scaler {
        let schedule = GradScalerConfig::new().schedule().unwrap();
        schedule.try_into().unwrap()
    }

    #[test]
    fn only_a_skipped_step_waits() {
        let device = Device::flex().autodiff();
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler());
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
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler());
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
    fn frozen_parameters_are_not_read() {
        let device = Device::flex().autodiff();
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler());
        let linear = || -> Linear { LinearConfig::new(4, 4).init(&device) };
        let norm = || -> BatchNorm { BatchNormConfig::new(4).init(&device) };
        let mut model = ((linear().freeze(), None), linear());
        // A layer of the frozen part has running statistics, then.
        for (factor, reads) in [(1.0, 0), (f32::INFINITY, 0), (f32::INFINITY, 2)] {
            let input = Tensor::<2>::ones([3, 4], &device) * factor;
            let hidden = model.0.0.forward(input);
            let hidden = match &model.0.1 {
                Some(norm) => BatchNorm::forward(norm, hidden),
                None => hidden,
            };
            let grads = optim.backward(model.1.forward(hidden).sum(), &model);
            READS.set(0);
            model = optim.step(0.1, model, grads);
            assert_eq!(READS.get(), reads, "{factor}");
            if factor.is_infinite() {
                model.0.1 = Some(norm());
            }
        }
        assert_eq!(optim.scaler().counters().skipped(), 2);
    }
}
