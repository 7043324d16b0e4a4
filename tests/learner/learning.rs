//! Runs that go well.

use burn::{
    lr_scheduler::linear::LinearLrSchedulerConfig,
    optim::AdamConfig,
    tensor::{Device, FloatDType},
    train::{Learner, SupervisedTraining, metric::LossMetric},
};

use crate::support::{Net, Plain, Run, loader, parameters, quiet, read_metric, samples};

/// In f16 if the device has it, with all metrics: the classes are learnt, every step is counted, the scale grows, and the
/// files say so.
#[test]
fn an_f16_run_learns() {
    let folder = tempfile::tempdir().unwrap();
    let result = Run::default().launch(folder.path());
    assert!(result.error.is_none() && result.interrupted.is_none());

    let model = result.model;
    assert_eq!(model.scaler().counters().steps(), 24);
    // Of 24 clean steps, every fourth would double the scale, were there no overflow at 2^20 or so.
    let skipped = model.scaler().counters().skipped();
    let grown = f64::from(model.scaler().loss_scale()) / 65536.0;
    assert!(grown > 1.0, "{grown}, {skipped} skipped");

    let accuracy = read_metric(folder.path(), 4, "Accuracy");
    let last: f64 = accuracy
        .last()
        .unwrap()
        .trim_end_matches(",final")
        .parse()
        .unwrap();
    assert!(last > 95.0, "{last} % in {accuracy:?}");

    let scales = read_metric(folder.path(), 1, "Loss Scale");
    assert_eq!(
        scales[..6],
        ["65536", "65536", "65536", "131072", "131072", "131072"]
    );
    let norms = read_metric(folder.path(), 4, "Gradient Norm");
    assert_eq!(
        norms.len(),
        7,
        "one for each step and one for the epoch: {norms:?}"
    );
    for norm in norms {
        let norm: f64 = norm.split(',').next().unwrap().parse().unwrap();
        assert!(norm > 0.0 && norm < 10.0);
    }
}

/// In f32, a run without overflow is Burn's own, bit for bit: the same parameters after as many steps.
#[test]
fn an_f32_run_is_that_of_burn_without_scaling() {
    let device = Device::default().autodiff();
    let run = Run::default();
    let folder = tempfile::tempdir().unwrap();
    let (learner, _) = run.learner_of(Net::new(FloatDType::F32, &device));
    let scaled = run.training(folder.path()).launch(learner);
    assert_eq!(scaled.model.scaler().counters().skipped(), 0);

    let folder = tempfile::tempdir().unwrap();
    let net = Net::new(FloatDType::F32, &device);
    let lr = LinearLrSchedulerConfig::new(0.05, 0.01, 24).init().unwrap();
    let learner = Learner::new(Plain { net }, AdamConfig::new().init(), lr);
    let training = SupervisedTraining::new(
        folder.path(),
        loader(run.samples.clone(), None),
        loader(samples(16), None),
    );
    let plain = quiet(training)
        .metrics((LossMetric::new(),))
        .num_epochs(4)
        .launch(learner);

    let values = |net: &Net| -> Vec<_> { parameters(net).into_values().map(|(_, v)| v).collect() };
    assert_eq!(values(scaled.model.inner()), values(&plain.model.net));
}
