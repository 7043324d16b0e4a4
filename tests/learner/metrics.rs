//! What the metrics of a run show, and its report.

use burn_amp_report::{FlightRecorder, probed, report};

use crate::support::*;

fn poisoned(epochs: usize) -> Run {
    let run = Run::of(epochs).with_config(GradScalerConfig::new());
    run.poisoned([2 * 8 + 3])
}

/// They belong to the training: in validation they show nothing, and write nothing.
#[test]
fn a_poisoned_batch_is_skipped_once() {
    let run = poisoned(1);
    let amp = run.amp();
    let figures = (amp.loss_scale_metric(), amp.gradient_norm_metric());
    let counts = (amp.skipped_steps_metric(), amp.zero_gradients_metric());
    let add = |_: &_, training: Training| training.metrics(figures).metrics(counts);
    let done = run.train_by(&temp_dir(), &amp, burns(&amp), add).finished();
    let scales = done.metric(1, "Loss Scale").join(" ");
    assert_eq!(scales, "65536 65536 32768 32768 32768 32768 32768,final");
    let skips = done.metric(1, "Skipped Steps");
    assert_eq!(skips[..6], ["0,1", "0,1", "100,1", "0,1", "0,1", "0,1"]);
    let share = done.numbers(1, "Skipped Steps")[6];
    assert!((share - 100.0 / 6.0).abs() < 1e-9, "{share}");
    let norms = done.metric(1, "Gradient Norm");
    assert_eq!(norms.len(), 6, "five steps and the epoch: {norms:?}");
    for name in METRICS {
        let is_shown = ["train", "valid"].map(|split| done.log(split, 1, name).exists());
        assert_eq!(is_shown, [true, false], "{name}");
    }
    assert!(done.log("valid", 1, "Accuracy").exists());
}

/// Every step is in the metrics, though its outcome is known a step late: in a pipeline, and where nobody waits for the device.
/// The last ones, too, whose outcomes come after the last item of an epoch.
#[test]
fn metrics_are_of_the_steps_that_are_known() {
    for learner in &LEARNERS[1..] {
        let done = poisoned(2).launch(learner);
        assert_eq!(done.counters().skipped(), 2);
        for epoch in [1, 2] {
            let skips = done.metric(epoch, "Skipped Steps");
            let skipped = skips.iter().filter(|line| line.starts_with("100,")).count();
            assert_eq!(skipped, 1, "{skips:?}");
        }
        let scales = done.numbers(1, "Loss Scale");
        assert!(scales.contains(&32768.0), "{scales:?}");
    }
}

/// The fifth batch of each epoch has a loss that is 50 times too large.
pub fn spiked() -> Run {
    let run = Run::of(4).with_config(at_scale(16.0));
    run.with_gain(50.0, [4 * 8 + 3])
}

pub fn guarded(amp: &MixedPrecision) -> ScaledOptimizer {
    // Knows what is usual before the first epoch ends.
    let guard = Guard::SkipStep(SkipStep {
        rolling_interval_length: 8,
        sigma_factor: 4.0,
    });
    sgd(amp).with_hook(guard)
}

/// A step that counts nothing is no step to the metrics.
#[test]
fn a_step_that_is_refused_is_not_shown() {
    let run = Run::of(4);
    let amp = run.amp();
    let mut learner = burns(&amp).unwrap();
    amp.interrupter();
    let mut metric = amp.skipped_steps_metric();
    let metadata = MetricMetadata {
        progress: run.loader().iter().progress(),
        iteration: Some(1),
        lr: Some(0.1.into()),
    };
    let batch = batches(&run.samples).remove(0);
    step(&mut learner, batch.clone());
    metric.update(&(), &metadata).unwrap();
    assert!(metric.value().is_some());

    // Half-precision parameters and f32 gradients, which Burn's optimizers cannot combine.
    let grads = learner.train_step(batch).grads;
    let half = to_half(learner.model(), FloatDType::F16, &[]);
    let half = half.optimize(&mut burns_adam(), 0.1.into(), grads);
    let error = amp.run_result().unwrap_err();
    is_error(&error, "HalfPrecisionParameter", ["MasterWeights"]);
    assert_eq!(half.scaler().counters().steps(), 1);
    metric.update(&(), &metadata).unwrap();
    assert!(metric.value().is_none());
}

/// What is not measured is not NaN on the dashboard.
#[test]
fn metrics_of_a_disabled_scaler_are_numbers() {
    let amp = MixedPrecision::f32();
    let figures = [amp.loss_scale_metric(), amp.gradient_norm_metric()];
    let counts = [amp.zero_gradients_metric(), amp.skipped_steps_metric()];
    for metric in [figures, counts].concat() {
        assert_eq!(metric.final_value().current(), 0.0);
    }
}

/// A flight recorder is one line in a run.
#[test]
fn one_line_records_a_learner_and_the_report_reads_both() {
    let (amp, folder) = (MixedPrecision::f16(), temp_dir());
    let recorder = FlightRecorder::new(folder.path(), &amp).unwrap();
    let model = net().with_output(Arc::new(|net, batch| {
        let forward = |x| probed("net", x, |x| net.forward(x));
        net.output(autocast(batch.features.clone(), forward), batch)
    }));
    let learner = amp.learner(model, sgd(&amp), lr());
    Run::of(4).train(&folder, &amp, learner).finished();

    let flight: Value = json(recorder.write().unwrap().with_extension("json"));
    assert_eq!(flight["step"], 24);
    let steps = flight["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 21);
    for step in steps {
        // Validation passes the probe too, and has no gradients.
        assert_eq!(step["probes"].as_array().unwrap().len(), 1);
        assert_eq!(step["probes"][0]["name"], "net");
    }

    let page = folder.path().join("report.html");
    report(&[folder.path()], &page).unwrap();
    let page = fs::read_to_string(page).unwrap();
    says(&page, ["Valid Loss", "Gradient Norm", "Step Time"]);
    says(&page, ["This is a run without skips"]);
}
