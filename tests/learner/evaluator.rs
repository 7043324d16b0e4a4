//! Inference: `valid()` and Burn's `Evaluator` see the model, not the scaler.

use burn::train::EvaluatorBuilder;

use crate::support::*;

/// What the `Evaluator` writes for a model.
fn evaluate(model: Scaled<Net>) -> [String; 2] {
    let folder = temp_dir();
    let samples = InMemDataset::new(samples(40));
    let result = EvaluatorBuilder::new(folder.path())
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .renderer(Box::new(CliMetricsRenderer::new()))
        .with_application_logger(None)
        .build(model)
        .eval("held out", loader(samples, None));
    assert!(result.error.is_none());
    ["Accuracy", "Loss"].map(|name| {
        let file = folder.path().join(format!("test/held-out/{name}.log"));
        fs::read_to_string(file).unwrap()
    })
}

/// In the precision of the training, whether the model was just trained or not; the scaler is not touched.
#[test]
fn the_evaluator_sees_inference_in_the_precision_of_the_training() {
    let Done { model, amp, .. } = Run::of(2).launch();
    let (before, last) = (model.scaler().bits(), amp.counters());

    let batch = batches(&samples(8)).remove(0);
    let again = model.clone().train().valid();
    let logits = amp.autocast(batch.features.clone(), |x| model.forward(x));
    for model in [&model, &again] {
        let output = InferenceStep::step(model, batch.clone()).output;
        assert!(output.into_data() == logits.clone().into_data());
    }
    // The bare model, outside of all scopes, is the f32 model.
    let bare = InferenceStep::step(&model.clone().into_inner(), batch);
    assert!(bare.output.into_data() != logits.into_data());

    let figures = evaluate(model.clone());
    assert_eq!(figures, evaluate(again));
    assert!(figures.iter().all(|text| !text.is_empty()));
    assert_eq!((model.scaler().bits(), amp.counters()), (before, last));
}
