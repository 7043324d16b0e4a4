use burn_amp::{AmpError, GradScalerConfig, Guard, MixedPrecision};
use burn_amp_report::FlightRecorder;
use serde_json::Value;
use std::{fs, path::Path};

use crate::training::Training;

fn json(page: &Path) -> Value {
    let text = fs::read_to_string(page.with_extension("json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_clean_run_writes_nothing_and_is_the_same_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let mut plain = Training::new(MixedPrecision::f16());
    let mut recorded = Training::new(MixedPrecision::f16());
    let recorder = FlightRecorder::new(folder.path(), &recorded.amp).unwrap();
    for _ in 0..30 {
        plain.step(1.0, 1.0).unwrap();
        recorded.step(1.0, 1.0).unwrap();
    }
    assert_eq!(plain.bits(), recorded.bits());
    assert!(recorder.written().is_empty());
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "steps.jsonl alone"
    );

    let page = recorder.write().unwrap();
    let flight = json(&page);
    assert_eq!(flight["step"], 30);
    assert_eq!(flight["first"], Value::Null);
    assert_eq!(
        flight["advice"],
        "Nothing is wrong: none of the last 21 steps was skipped."
    );
    let steps = flight["steps"].as_array().unwrap();
    assert_eq!(
        (steps.len(), &steps[0]["step"], &steps[20]["step"]),
        (21, &10.into(), &30.into())
    );
    for step in steps {
        let probes = step["probes"].as_array().unwrap();
        let names: Vec<_> = probes
            .iter()
            .map(|probe| probe["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["first", "gain", "squares", "second"]);
        assert!(
            probes
                .iter()
                .all(|probe| probe["value"]["max_abs"].as_f64().unwrap() > 0.0)
        );
        assert!(
            probes
                .iter()
                .all(|probe| probe["gradient"]["max_abs"].as_f64().unwrap() > 0.0)
        );
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("this is a run without skips so far"));
}

#[test]
fn gradients_at_probes_are_unscaled() {
    let folder = tempfile::tempdir().unwrap();
    let mut training = Training::new(MixedPrecision::f16());
    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    training.step(1.0, 1.0).unwrap();
    let flight = json(&recorder.write().unwrap());
    let last = &flight["steps"][0]["probes"][3];
    // The mean of 32 squares: twice the output, by 32.
    let (value, gradient) = (
        last["value"]["max_abs"].as_f64().unwrap(),
        last["gradient"]["max_abs"].as_f64().unwrap(),
    );
    assert!(
        (gradient - value / 16.0).abs() < 1e-3 * gradient,
        "{value} {gradient}"
    );
}

#[test]
fn the_first_tensor_that_is_not_finite_is_named_on_the_way_forward() {
    let folder = tempfile::tempdir().unwrap();
    let mut training = Training::new(MixedPrecision::f16());
    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    for _ in 0..5 {
        training.step(1.0, 1.0).unwrap();
    }
    training.step(1e4, 1.0).unwrap();
    assert!(
        recorder.written().is_empty(),
        "one skip may be a single bad batch"
    );
    training.step(1e4, 1.0).unwrap();
    training.step(1e4, 1.0).unwrap();
    assert_eq!(
        recorder.written().len(),
        1,
        "a row of skips is written once"
    );
    let flight = json(&recorder.written()[0]);
    assert_eq!(
        (&flight["step"], &flight["why"]),
        (&7.into(), &"two steps in a row were skipped".into())
    );
    assert_eq!(
        (&flight["first"]["probe"], &flight["first"]["way"]),
        (&"squares".into(), &"forward".into())
    );
    assert!(flight["first"]["max_abs_before"].as_f64().unwrap() > 0.0);
    assert!(
        flight["advice"]
            .as_str()
            .unwrap()
            .contains("no loss scale helps")
    );
    // All parameters are hit, the largest first.
    let overflows = flight["steps"][6]["overflows"].as_array().unwrap();
    assert!(overflows[0]["values"].as_u64() >= overflows[1]["values"].as_u64());
}

#[test]
fn the_first_gradient_that_is_not_finite_is_named_on_the_way_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut training = Training::new(MixedPrecision::f16());
    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    training.step(1.0, 1.0).unwrap();
    // Finite where it comes from the loss, and not behind the gain.
    training.step(150.0, 1e-4).unwrap();
    training.step(150.0, 1e-4).unwrap();
    let flight = json(&recorder.written()[0]);
    assert_eq!(
        (&flight["first"]["probe"], &flight["first"]["way"]),
        (&"gain".into(), &"backward".into()),
        "{flight:#}"
    );
    let scales: Vec<_> = (flight["steps"].as_array().unwrap().iter())
        .map(|step| step["loss_scale"].as_f64().unwrap())
        .collect();
    assert_eq!(scales, [65536.0, 65536.0, 32768.0]);
}

#[test]
fn the_end_of_a_run_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let config = GradScalerConfig::new().with_max_consecutive_skips(Some(3));
    let mut training = Training::new(MixedPrecision::f16().with_scaler(config).unwrap());
    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    let error = (0..10)
        .find_map(|_| training.step(1.0, f64::INFINITY).err())
        .unwrap();
    assert!(matches!(error, AmpError::LossNotFinite { .. }));
    let written = recorder.written();
    assert_eq!(written.len(), 2);
    let flight = json(&written[1]);
    assert!(flight["why"].as_str().unwrap().contains(&error.to_string()));
    assert!(
        flight["advice"]
            .as_str()
            .unwrap()
            .contains("the loss scale is not the cause")
    );
    assert!(training.step(1.0, f64::INFINITY).is_err());
    assert_eq!(
        recorder.written().len(),
        2,
        "a program that goes on has been told"
    );
}

#[test]
fn a_step_that_the_guard_holds_back_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let config = GradScalerConfig::new().with_init_scale(1024.0);
    let mut training = Training::new(MixedPrecision::f16().with_scaler(config).unwrap());
    training.optim = training.optim.with_guard(Guard::skip_step()).unwrap();
    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    let mut factor = 1.0;
    for step in 0..200 {
        factor = 1.0 + 1e-3 * f64::from(step % 3);
        training.step(1.0, factor).unwrap();
    }
    training.step(1.0, factor * 50.0).unwrap();
    assert_eq!(training.optim.scaler().counters().guarded(), 1);
    let flight = json(&recorder.written()[0]);
    assert_eq!(flight["why"], "the guard held a step back");
    assert!(flight["advice"].as_str().unwrap().contains("gradient norm"));
}

#[test]
fn a_detached_recorder_is_told_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut training = Training::new(MixedPrecision::f16());
    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    training.step(1.0, 1.0).unwrap();
    recorder.clone().detach(&training.amp);
    training.step(1.0, 1.0).unwrap();
    assert_eq!(json(&recorder.write().unwrap())["step"], 1);

    let other = FlightRecorder::new(folder.path().join("other"), &training.amp).unwrap();
    recorder.detach(&training.amp);
    training.step(1.0, 1.0).unwrap();
    assert_eq!(
        json(&other.write().unwrap())["step"],
        1,
        "another one stays"
    );
}

#[test]
fn a_run_that_was_killed_goes_on_in_the_same_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("steps.jsonl");
    let mut training = Training::new(MixedPrecision::f16());
    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    for _ in 0..3 {
        training.step(1.0, 1.0).unwrap();
    }
    recorder.write().unwrap();
    recorder.detach(&training.amp);
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, &text[..text.len() - 20]).unwrap();

    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    training.step(1.0, 1.0).unwrap();
    let page = recorder.write().unwrap();
    assert!(
        page.ends_with("flight-3.html"),
        "the third line was cut off"
    );
    let text = fs::read_to_string(&log).unwrap();
    let whole = text
        .lines()
        .filter(|line| serde_json::from_str::<Value>(line).is_ok());
    assert_eq!(whole.count(), 3);
}
