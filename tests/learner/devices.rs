//! Several devices. Flex has one; two workers on it are two threads with a fork of the model each.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{GradientsAccumulator, GradientsParams},
    tensor::{
        Device, Tensor,
        distributed::{DistributedConfig, ReduceOperation},
    },
    train::{ExecutionStrategy, LearningResult, MultiDeviceOptim},
};
use burn_amp::{Scaled, SkippedStepsMetric};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
};

use crate::support::{Net, Run, all_finite, loader, parameters, poison, read_metric};

/// Three steps an epoch of two batches each. The poison is in the half of the samples that the second device gets.
fn run() -> Run {
    let mut run = Run {
        epochs: 3,
        ..Run::default()
    };
    poison(&mut run.samples, 24 + 9);
    run
}

fn launch(optim: MultiDeviceOptim) -> LearningResult<Scaled<Net>> {
    let folder = tempfile::tempdir().unwrap();
    let run = run();
    let (learner, monitor) = run.learner();
    let devices = vec![Device::flex(), Device::flex()];
    let result = run
        .training(folder.path())
        .with_training_strategy(ExecutionStrategy::multi(devices, optim).into())
        .metric_train_numeric(SkippedStepsMetric::new(&monitor))
        .launch(learner);
    let skips = read_metric(folder.path(), 1, "Skipped Steps");
    let share: f64 = skips
        .last()
        .unwrap()
        .trim_end_matches(",final")
        .parse()
        .unwrap();
    assert!((share - 100.0 / 3.0).abs() < 1e-9, "{skips:?}");
    result
}

/// Where the optimizer runs makes no difference, and an overflow on one device skips the step.
#[test]
fn an_overflow_on_one_device_skips_the_step_for_all() {
    let results = [
        launch(MultiDeviceOptim::OptimMainDevice),
        launch(MultiDeviceOptim::OptimSharded),
    ];
    for result in &results {
        assert!(result.error.is_none());
        let scaler = result.model.scaler();
        assert_eq!(
            (scaler.counters().steps(), scaler.counters().skipped()),
            (9, 3)
        );
        assert_eq!(scaler.loss_scale(), 8192.0);
        assert!(all_finite(result.model.inner()));
        // What a worker gets is a fork: it has all of the scaler.
        let fork = result.model.clone().fork(&Device::flex());
        assert_eq!(fork.scaler().to_record(), scaler.to_record());
    }
    let [main, sharded] = results.map(|result| result.model);
    assert_eq!(main.scaler().to_record(), sharded.scaler().to_record());
    let values = |model| {
        parameters(model)
            .into_values()
            .map(|(_, v)| v)
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&main), values(&sharded));
}

/// As the book says. When this fails, Burn has learnt it, and the test below can be a real run.
#[test]
fn burn_has_no_ddp_for_flex() {
    let config = DistributedConfig {
        all_reduce_op: ReduceOperation::Mean,
    };
    let strategy = || ExecutionStrategy::ddp(vec![Device::flex(), Device::flex()], config);
    let panic = catch_unwind(AssertUnwindSafe(strategy)).err().unwrap();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(
        message.contains("not supported for device Flex"),
        "{message}"
    );
}

/// What decides in `ExecutionStrategy::ddp`: each worker has a learner of its own and takes the reduced gradients. Here they
/// are summed through channels.
#[test]
fn replicas_with_the_same_reduced_gradients_stay_the_same() {
    let device = Device::flex().autodiff();
    let run = run();
    let (learner, _) = run.learner();
    let halves = [&run.samples[..24], &run.samples[24..]];
    let batches = halves.map(|half| loader(half.to_vec(), None).to_device(&device));

    let (to_first, from_second) = mpsc::channel();
    let (to_second, from_first) = mpsc::channel();
    let ends = [(to_second, from_second), (to_first, from_first)];
    let workers = batches
        .into_iter()
        .zip(ends)
        .enumerate()
        .map(|(rank, (batches, (to, from)))| {
            let mut learner = learner.clone();
            std::thread::spawn(move || {
                let mut history = Vec::new();
                for _ in 0..3 {
                    for batch in batches.iter() {
                        let model = learner.model();
                        let own = learner.train_step(batch.unwrap()).grads;
                        to.send(copy(&own, &model)).unwrap();
                        let other = from.recv().unwrap();
                        let mut sum = GradientsAccumulator::new();
                        // Both sum in the order of ranks, as an all-reduce would.
                        let mut both = [own, other];
                        both.rotate_left(rank);
                        both.into_iter()
                            .for_each(|grads| sum.accumulate(&model, grads));
                        learner.lr_step();
                        learner.optimizer_step(sum.grads());
                        let model = learner.model();
                        history.push((model.scaler().to_record(), parameters(&model)));
                    }
                }
                history
            })
        });
    let workers: Vec<_> = workers.collect();
    let histories: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    assert_eq!(histories[0], histories[1]);
    assert_eq!(histories[0].len(), 9);
    let (scaler, _) = &histories[0][8];
    assert_eq!(
        (scaler.counters().steps(), scaler.counters().skipped()),
        (9, 3)
    );
}

/// The same tensors in a container of their own.
fn copy<M: Module>(grads: &GradientsParams, model: &M) -> GradientsParams {
    struct Copy<'a>(&'a GradientsParams, GradientsParams);

    impl ModuleVisitor for Copy<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.0.get::<D>(param.id) {
                self.1.register(param.id, grad);
            }
        }
    }

    let mut copy = Copy(grads, GradientsParams::new());
    model.visit(&mut copy);
    copy.1
}
