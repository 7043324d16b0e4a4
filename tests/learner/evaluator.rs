//! Inference: `valid()` and Burn's `Evaluator` see the model, not the scaler.

use burn::{
    module::Module,
    tensor::{Device, FloatDType},
    train::{
        ClassificationOutput, EvaluatorBuilder, InferenceStep,
        metric::{AccuracyMetric, LossMetric},
        renderer::CliMetricsRenderer,
    },
};
use std::{fmt::Display, fs, path::Path};

use crate::support::{Batch, Run, loader, samples, scaler_state, temp_dir};

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

/// In the precision of the training, whether the model was just trained or not; the scaler is not touched.
#[test]
fn the_evaluator_sees_inference_in_the_precision_of_the_training() {
    let folder = temp_dir();
    let run = Run {
        epochs: 2,
        ..Run::default()
    };
    let amp = run.amp();
    let learner = run.learner(&amp);
    let scaled = run.training(folder.path()).launch(learner).model;
    let (before, last) = (scaler_state(scaled.scaler()), amp.counters());

    let batches = loader(samples(8), None).to_device(&Device::default());
    let batch = batches.iter().next().unwrap().unwrap();
    let outputs = [
        scaled.step(batch.clone()),
        scaled.clone().train().valid().step(batch.clone()),
    ];
    let logits = amp.autocast(batch.features.clone(), |x| scaled.forward(x));
    for output in outputs {
        assert!(output.output.into_data() == logits.clone().into_data());
    }
    if amp.dtype() == FloatDType::F16 {
        // The bare model, outside of all scopes, is the f32 model.
        let bare = scaled.clone().into_inner().step(batch);
        assert!(bare.output.into_data() != logits.into_data());
    }

    let folders = [(); 2].map(|()| temp_dir());
    let figures = evaluate(scaled.clone(), folders[0].path());
    let again = evaluate(scaled.clone().train().valid(), folders[1].path());
    assert_eq!(figures, again);
    assert!(figures.iter().all(|text| !text.is_empty()));
    assert_eq!(scaler_state(scaled.scaler()), before);
    assert_eq!(amp.counters(), last);
}
