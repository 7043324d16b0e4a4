//! One line in a training of Burn's `Learner`.

use burn::train::{
    ClassificationOutput, InferenceStep, SupervisedTraining, TrainOutput, TrainStep,
    metric::LossMetric, renderer::CliMetricsRenderer,
};
use burn_amp::train::LearnerExt;
use burn_amp_report::{FlightRecorder, probed, report};
use burn_amp_tests::{prelude::*, says};
use digits::model::Network;
use learner::data::{DigitsBatch, loaders};
use std::fs;

use crate::writes::json;

#[derive(Module, Debug)]
struct Classifier {
    network: Network,
}

impl TrainStep for Classifier {
    type Input = DigitsBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitsBatch) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = DigitsBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: DigitsBatch) -> ClassificationOutput {
        let logits = autocast(batch.images, |x| {
            probed("network", x, |x| self.network.forward(x))
        });
        let loss = digits::training::brier_score(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, logits, batch.labels)
    }
}

#[test]
fn one_line_records_a_learner_and_the_report_reads_both() {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::f16();
    let (train, valid) = loaders(0).unwrap();
    let model = Classifier {
        network: Network::new(&device),
    };

    let recorder = FlightRecorder::new(folder.path(), &amp).unwrap();

    let learner = amp.learner(model, SgdConfig::new().init(), 0.1).unwrap();
    let training = SupervisedTraining::new(folder.path(), train, valid)
        .metrics((LossMetric::new(),))
        .renderer(Box::new(CliMetricsRenderer::new()))
        .num_epochs(2);
    amp.training(training).launch(learner);
    amp.run_result().unwrap();

    let page = recorder.write().unwrap();
    let flight = json(&page);
    assert_eq!(flight["step"], amp.counters().steps());
    let steps = flight["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 21);
    for step in steps {
        // Validation passes the probe too, and has no gradients.
        assert_eq!(step["probes"].as_array().unwrap().len(), 1);
        assert_eq!(step["probes"][0]["name"], "network");
    }

    let page = folder.path().join("report.html");
    report(&[folder.path()], &page).unwrap();
    let page = fs::read_to_string(page).unwrap();
    says(&page, ["Train Loss", "Valid Loss", "Loss Scale"]);
    says(&page, ["Gradient Norm", "Zero Gradients", "Step Time"]);
    says(&page, ["This is a run without skips"]);
}
