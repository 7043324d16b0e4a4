use burn_amp_report::FlightRecorder;
use burn_amp_tests::{prelude::*, says, stored};
use tempfile::TempDir;

use crate::training::{Training, gradients, step, steps, training};

/// A training whose recorder writes to a folder.
fn recorded(config: GradScalerConfig) -> (TempDir, Training, FlightRecorder) {
    let folder = tempfile::tempdir().unwrap();
    let training = training(&MixedPrecision::f16().with_scaler(config).unwrap());
    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    (folder, training, recorder)
}

fn in_f16() -> (TempDir, Training, FlightRecorder) {
    recorded(GradScalerConfig::new())
}

fn json(page: &Path) -> Value {
    burn_amp_tests::json(page.with_extension("json"))
}

/// Where the first value is that is not finite.
fn first(flight: &Value) -> [&str; 2] {
    ["probe", "way"].map(|field| flight["first"][field].as_str().unwrap())
}

#[test]
fn a_clean_run_writes_nothing_and_is_the_same_bit_for_bit() {
    let mut plain = training(&MixedPrecision::f16());
    let (folder, mut recorded, recorder) = in_f16();
    steps(&mut plain, 30);
    steps(&mut recorded, 30);
    assert_eq!(stored(&plain.model), stored(&recorded.model));
    assert!(recorder.written().is_empty());
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1, "steps.jsonl alone");

    let page = recorder.write().unwrap();
    let flight = json(&page);
    assert_eq!(flight["step"], 30);
    assert_eq!(flight["first"], Value::Null);
    let advice = "Nothing is wrong: none of the last 21 steps was skipped.";
    assert_eq!(flight["advice"], advice);
    let steps = flight["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 21);
    for (step, number) in steps.iter().zip(10..) {
        assert_eq!(step["step"], number);
        let probes = step["probes"].as_array().unwrap();
        let names: Vec<_> = probes.iter().map(|probe| &probe["name"]).collect();
        assert_eq!(names, ["first", "gain", "squares", "second"]);
        for probe in probes {
            let largest = ["value", "gradient"].map(|of| probe[of]["max_abs"].as_f64());
            assert!(largest.iter().all(|max| *max > Some(0.0)), "{probe}");
        }
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("21 steps, of which 0 were skipped."));
}

#[test]
fn gradients_at_probes_are_unscaled() {
    let (_folder, mut training, recorder) = in_f16();
    // The scale of the step itself, wherever it came from.
    let scaler = training.optim.scaler_mut();
    scaler.set_loss_scale(1024.0).unwrap();
    steps(&mut training, 1);
    let flight = json(&recorder.write().unwrap());
    assert_eq!(flight["steps"][0]["loss_scale"], 1024.0);
    let last = &flight["steps"][0]["probes"][3];
    // The mean of 32 squares: twice the output, by 32.
    let [value, gradient] = ["value", "gradient"].map(|of| last[of]["max_abs"].as_f64().unwrap());
    let error = (gradient - value / 16.0).abs();
    assert!(error < 1e-3 * gradient, "{value} {gradient}");
}

#[test]
fn the_first_tensor_that_is_not_finite_is_named_on_the_way_forward() {
    let (_folder, mut training, recorder) = in_f16();
    steps(&mut training, 5);
    step(&mut training, 1e4, 1.0).unwrap();
    // One skip may be a single bad batch.
    assert!(recorder.written().is_empty());
    step(&mut training, 1e4, 1.0).unwrap();
    step(&mut training, 1e4, 1.0).unwrap();
    let written = recorder.written();
    assert_eq!(written.len(), 1, "a row of skips is written once");
    let flight = json(&written[0]);
    assert_eq!(flight["step"], 7);
    assert_eq!(flight["why"], "two steps in a row were skipped");
    assert_eq!(first(&flight), ["squares", "forward"]);
    assert!(flight["first"]["max_abs_before"].as_f64().unwrap() > 0.0);
    says(&flight["advice"], ["no loss scale helps"]);
    // All parameters are hit, the largest first.
    let overflows = flight["steps"][6]["overflows"].as_array().unwrap();
    assert!(overflows[0]["values"].as_u64() >= overflows[1]["values"].as_u64());
    let page = fs::read_to_string(&recorder.written()[0]).unwrap();
    assert!(page.contains("<th>gradient values that are not finite</th>"));
}

#[test]
fn the_first_gradient_that_is_not_finite_is_named_on_the_way_back() {
    let (_folder, mut training, recorder) = in_f16();
    steps(&mut training, 1);
    // Finite where it comes from the loss, and not behind the gain.
    step(&mut training, 150.0, 4e-4).unwrap();
    step(&mut training, 150.0, 4e-4).unwrap();
    let flight = json(&recorder.written()[0]);
    assert_eq!(first(&flight), ["gain", "backward"]);
    let steps = flight["steps"].as_array().unwrap().iter();
    let scales: Vec<_> = steps.map(|step| &step["loss_scale"]).collect();
    assert_eq!(scales, [65536.0, 65536.0, 32768.0]);
}

#[test]
fn the_end_of_a_run_is_written() {
    let config = GradScalerConfig::new().with_max_consecutive_skips(Some(3));
    let (_folder, mut training, recorder) = recorded(config);
    let mut errors = (0..10).filter_map(|_| step(&mut training, 1.0, f64::INFINITY).err());
    let error = errors.next().unwrap();
    assert!(matches!(error, AmpError::LossNotFinite { .. }));
    let written = recorder.written();
    assert_eq!(written.len(), 2);
    let flight = json(&written[1]);
    says(flight["why"].as_str().unwrap(), [&*error.to_string()]);
    says(&flight["advice"], ["the loss scale is not the cause"]);
    // A program that goes on has been told.
    assert!(step(&mut training, 1.0, f64::INFINITY).is_err());
    assert_eq!(recorder.written().len(), 2);
}

#[test]
fn a_step_that_is_refused_is_not_called_right() {
    let (_folder, mut training, recorder) = in_f16();
    let refused = training.try_step(f64::NAN, GradientsParams::new());
    let error = refused.unwrap_err().to_string();
    let advice = &json(&recorder.written()[0])["advice"];
    says(advice, ["The last step failed", &error]);
    assert!(!advice.to_string().contains("Nothing is wrong"));
}

#[test]
fn a_step_that_the_guard_holds_back_is_written() {
    let (_folder, mut training, recorder) = recorded(at_scale(1024.0));
    training.optim = training.optim.with_hook(Guard::skip_step());
    let mut factor = 1.0;
    for number in 0..200 {
        factor = 1.0 + 1e-3 * f64::from(number % 3);
        step(&mut training, 1.0, factor).unwrap();
    }
    step(&mut training, 1.0, factor * 50.0).unwrap();
    assert_eq!(training.optim.scaler().counters().guarded(), 1);
    let flight = json(&recorder.written()[0]);
    assert_eq!(flight["why"], "a hook rejected a step");
    says(&flight["advice"], ["gradient norm"]);
    let page = fs::read_to_string(&recorder.written()[0]).unwrap();
    assert!(page.contains("of which 1 were skipped"));
}

#[test]
fn a_detached_recorder_sees_nothing() {
    let (folder, mut training, recorder) = in_f16();
    steps(&mut training, 1);
    recorder.clone().detach(&training.amp);
    steps(&mut training, 1);
    assert_eq!(json(&recorder.write().unwrap())["step"], 1);

    let other = FlightRecorder::new(folder.path().join("other"), &training.amp).unwrap();
    recorder.detach(&training.amp);
    steps(&mut training, 1);
    // Another one stays.
    assert_eq!(json(&other.write().unwrap())["step"], 1);
}

#[test]
fn a_run_that_was_killed_goes_on_in_the_same_log() {
    let (folder, mut training, recorder) = in_f16();
    let log = folder.path().join("steps.jsonl");
    steps(&mut training, 3);
    recorder.write().unwrap();
    recorder.detach(&training.amp);
    let text = fs::read_to_string(&log).unwrap();
    // Cut off inside a character.
    let cut = [&text.as_bytes()[..text.len() - 20], b"\xc3"].concat();
    fs::write(&log, cut).unwrap();

    let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
    steps(&mut training, 1);
    // The third line was cut off.
    assert!(recorder.write().unwrap().ends_with("flight-3.html"));
    let bytes = fs::read(&log).unwrap();
    let lines = bytes.split(|byte| *byte == b'\n');
    let lines = lines.map(serde_json::from_slice::<Value>);
    assert_eq!(lines.filter(Result::is_ok).count(), 3);
}

/// With two networks in an iteration, which is one step.
#[test]
fn a_scaler_that_steps_by_hand_is_seen() {
    let (_folder, first_net, recorder) = in_f16();
    let (other, mut sgd) = (training(&first_net.amp), SgdConfig::new().init());
    let mut scaler = GradScaler::from(&first_net.amp);
    for gain in [1.0, 1e4, 1e4] {
        for net in [&first_net, &other] {
            let grads = scaler.scaled(gradients(net, gain, 1.0)).unwrap();
            let grads = scaler.unscale(grads, &net.model).unwrap();
            scaler.step(&mut sgd, 0.01, net.model.clone(), grads);
        }
        scaler.update().unwrap();
    }
    let flight = json(&recorder.written()[0]);
    assert_eq!(flight["step"], 3);
}

/// Those of two optimizers in one iteration are one step, and no row of skips.
#[test]
fn an_iteration_of_two_optimizers_is_one_step() {
    let (folder, mut first, recorder) = in_f16();
    let mut second = training(&first.amp);
    let mut iteration = |first_factor, second_factor| {
        step(&mut first, 1.0, first_factor).unwrap();
        step(&mut second, 1.0, second_factor).unwrap();
        recorder.written().len()
    };
    assert_eq!(iteration(1e9, 1e9), 0);
    assert_eq!(iteration(1.0, 1.0), 0);
    assert_eq!(iteration(1.0, 1e9), 0, "the first one's alone is finite");
    assert_eq!(iteration(1e9, 1e9), 1);
    let flight = json(&recorder.written()[0]);
    assert_eq!(flight["step"], 4);
    let outcomes = flight["steps"].as_array().unwrap().iter();
    let outcomes: Vec<_> = outcomes
        .map(|step| step["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["skipped", "stepped", "skipped", "skipped"]);
    let log = fs::read_to_string(folder.path().join("steps.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 4);
}
