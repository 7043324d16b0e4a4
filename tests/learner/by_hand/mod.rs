//! A model that scales its loss itself: the book's, run.

mod regressor;

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    lr_scheduler::constant::ConstantLr,
    nn::LinearConfig,
    optim::SgdConfig,
    tensor::{Device, Tensor},
    train::{
        ExecutionStrategy, Learner, LearningResult, MultiDeviceOptim, SupervisedTraining,
        metric::LossMetric,
    },
};
use burn_amp::GradScalerConfig;
use std::sync::Arc;

use crate::support::{all_finite, block_with, chapter, parameters, quiet};
use regressor::{Regressor, Stop};

struct Rows;

impl Batcher<[f32; 2], (Tensor<2>, Tensor<2>)> for Rows {
    /// The target is the sum of the inputs.
    fn batch(&self, rows: Vec<[f32; 2]>, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let rows = rows.into_iter().map(|r| Tensor::<1>::from_data(r, device));
        let inputs = Tensor::stack(rows.collect(), 0);
        (inputs.clone(), inputs.sum_dim(1))
    }
}

fn loader(rows: Vec<[f32; 2]>) -> Arc<dyn DataLoader<(Tensor<2>, Tensor<2>)>> {
    let builder = DataLoaderBuilder::new(Rows).batch_size(4);
    builder.build(InMemDataset::new(rows))
}

/// Four batches. The poison is in the third, the first of a second device.
fn rows(poisoned: bool) -> Vec<[f32; 2]> {
    let row = |i: usize| [(i as f32).sin(), (i as f32).cos()];
    let mut rows: Vec<_> = (0..16).map(row).collect();
    if poisoned {
        rows[8][0] = 1e30;
    }
    rows
}

fn model(config: GradScalerConfig) -> Regressor {
    let device = Device::flex().autodiff();
    Regressor {
        linear: LinearConfig::new(2, 1).init(&device),
        scaler: config.init().unwrap(),
        stop: Stop::default(),
    }
}

fn launch(
    model: Regressor,
    strategy: Option<ExecutionStrategy>,
    rows: Vec<[f32; 2]>,
) -> LearningResult<Regressor> {
    let folder = tempfile::tempdir().unwrap();
    let interrupter = model.stop.interrupter.clone();
    let learner = Learner::new(model, SgdConfig::new().init(), ConstantLr::new(0.1));
    let training = SupervisedTraining::new(folder.path(), loader(rows), loader(self::rows(false)));
    let training = quiet(training)
        .metrics((LossMetric::new(),))
        .with_interrupter(interrupter)
        .num_epochs(30);
    match strategy {
        Some(strategy) => training.with_training_strategy(strategy.into()),
        None => training,
    }
    .launch(learner)
}

fn strategies() -> [Option<ExecutionStrategy>; 3] {
    let multi = |optim| {
        let devices = vec![Device::flex(), Device::flex()];
        Some(ExecutionStrategy::multi(devices, optim))
    };
    [
        None,
        multi(MultiDeviceOptim::OptimMainDevice),
        multi(MultiDeviceOptim::OptimSharded),
    ]
}

#[test]
fn the_model_of_the_book_learns_and_skips() {
    for strategy in strategies() {
        let steps = if strategy.is_some() { 2 } else { 4 } * 30;
        let config = GradScalerConfig::new();
        let clean = launch(model(config.clone()), strategy, rows(false)).model;
        let counters = *clean.scaler.counters();
        assert_eq!((counters.steps(), counters.skipped()), (steps, 0));
        let weight = clean.linear.weight.val().into_data();
        let weight: Vec<f32> = weight.iter().collect();
        assert!(
            weight.iter().all(|w| (w - 1.0).abs() < 0.1),
            "y is the sum of the inputs: {weight:?}"
        );
    }
    for strategy in strategies() {
        let config = GradScalerConfig::new();
        let poisoned = launch(model(config), strategy, rows(true));
        assert!(poisoned.error.is_none());
        let model = poisoned.model;
        assert_eq!(model.scaler.counters().skipped(), 30, "one each epoch");
        assert_eq!(model.scaler.loss_scale(), 65536.0 / 2_f32.powi(30));
        assert!(all_finite(&model));
    }
}

/// No panic, in no thread: the run's own error.
#[test]
fn the_model_of_the_book_ends_a_run_that_can_only_skip() {
    for strategy in strategies() {
        let config = GradScalerConfig::new().with_max_consecutive_skips(Some(2));
        let model = model(config);
        let stop = model.stop.clone();
        let before = parameters(&model);
        let rows = rows(false).into_iter().map(|_| [1e30; 2]).collect();
        let result = launch(model, strategy, rows);
        let error = result.error.expect("an error").to_string();
        let reason = stop.error.get().expect("a reason").to_string();
        assert!(reason.starts_with("loss scale exhausted"), "{reason}");
        assert!(error.contains(&reason), "{error}");
        assert_eq!(parameters(&result.model), before);
        assert_eq!(result.model.scaler.counters().steps(), 2);
    }
}

#[test]
fn the_book_shows_this_model() {
    let chapter = chapter();
    let shown = block_with(&chapter, "rust", "struct Regressor");
    let code = include_str!("regressor.rs");
    assert_eq!(shown.trim_end(), code.trim_end());
}
