//! Inference: `valid()` and Burn's `Evaluator` see the model, not the scaler.

use burn::{
    module::Module,
    tensor::Device,
    train::{
        ClassificationOutput, EvaluatorBuilder, InferenceStep,
        metric::{AccuracyMetric, LossMetric},
        renderer::CliMetricsRenderer,
    },
};
use std::{fmt::Display, fs, path::Path};

use crate::support::{Batch, Run, loader, samples};

/// What the `Evaluator` writes for a model.
fn evaluate<M>(model: M, folder: &Path) -> Vec<String>
where
    M: Module + Display + 'static + InferenceStep<Input = Batch, Output = ClassificationOutput>,
{
    let result = EvaluatorBuilder::new(folder)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_application_logger(None)
        .build(model)
        .eval("held out", loader(samples(40), None));
    assert!(result.error.is_none());
    ["Accuracy", "Loss"].map(|name| read(folder, name)).to_vec()
}

fn read(folder: &Path, name: &str) -> String {
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().unwrap() == format!("{name}.log").as_str() {
                return fs::read_to_string(path).unwrap();
            }
        }
    }
    panic!("no {name}.log");
}

/// The same figures and the same bits with the wrapper and without; the scaler is not touched.
#[test]
fn the_evaluator_sees_plain_inference() {
    let folder = tempfile::tempdir().unwrap();
    let result = Run {
        epochs: 2,
        ..Run::default()
    }
    .launch(folder.path());
    let (scaled, bare) = (result.model.clone(), result.model.inner().clone());
    let monitor = scaled.monitor();
    let (before, last) = (scaled.scaler().to_record(), monitor.last());

    let batches = loader(samples(8), None).to_device(&Device::flex());
    let batch = batches.iter().next().unwrap().unwrap();
    let outputs = [
        scaled.step(batch.clone()),
        bare.step(batch.clone()),
        scaled.clone().train().valid().step(batch),
    ];
    let [first, second, third] = outputs.map(|output| output.loss.into_data());
    assert!(first == second && second == third);

    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let figures = evaluate(scaled.clone(), folders[0].path());
    assert_eq!(figures, evaluate(bare, folders[1].path()));
    assert!(figures.iter().all(|text| !text.is_empty()));
    assert_eq!(scaled.scaler().to_record(), before);
    assert_eq!(monitor.last(), last);
}
