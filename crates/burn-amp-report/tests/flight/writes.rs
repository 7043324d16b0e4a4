use burn_amp_report::FlightRecorder;
use burn_amp_tests::{prelude::*, says, stored};
use tempfile::TempDir;

use crate::training::{Training, gradients, step, steps, training};

/// A training whose recorder writes to a folder.
struct Flight {
    folder: TempDir,
    training: Training,
    recorder: FlightRecorder,
}

impl Flight {
    fn under(config: GradScalerConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let training = training(&f16_under(config));
        let recorder = FlightRecorder::new(folder.path(), &training.amp).unwrap();
        Self {
            folder,
            training,
            recorder,
        }
    }

    fn new() -> Self {
        Self::under(GradScalerConfig::new())
    }

    fn written(&self) -> usize {
        self.recorder.written().len()
    }

    /// What was written then, and its page.
    fn page(&self, at: usize) -> (Value, String) {
        page(&self.recorder.written()[at])
    }
}

fn page(page: &Path) -> (Value, String) {
    let text = fs::read_to_string(page).unwrap();
    (burn_amp_tests::json(page.with_extension("json")), text)
}

fn array(json: &Value) -> &[Value] {
    json.as_array().unwrap()
}

/// Until it is asked to: then gradients at probes are unscaled, by the scale of the step itself, wherever it came from.
#[test]
fn a_clean_run_writes_nothing_and_is_the_same_bit_for_bit() {
    let mut plain = training(&MixedPrecision::f16());
    let mut flight = Flight::new();
    for training in [&mut plain, &mut flight.training] {
        let scaler = training.optim.scaler_mut();
        scaler.set_loss_scale(1024.0).unwrap();
        steps(training, 30);
    }
    assert_eq!(stored(&plain.model), stored(&flight.training.model));
    let files = fs::read_dir(flight.folder.path()).unwrap().count();
    assert_eq!((flight.written(), files), (0, 1), "steps.jsonl alone");

    let (found, page) = page(&flight.recorder.write().unwrap());
    assert_eq!(found["step"], 30);
    assert!(found["first"].is_null());
    let advice = "Nothing is wrong: none of the last 21 steps was skipped.";
    assert_eq!(found["advice"], advice);
    let steps = array(&found["steps"]);
    assert_eq!(steps.len(), 21);
    for (step, number) in steps.iter().zip(10..) {
        assert_eq!(step["step"], number);
        assert_eq!(step["loss_scale"], 1024.0);
        let probes = array(&step["probes"]);
        let names: Vec<_> = probes.iter().map(|probe| &probe["name"]).collect();
        assert_eq!(names, ["first", "gain", "squares", "second"]);
        let largest = |probe: &Value| ["value", "gradient"].map(|of| probe[of]["max_abs"].as_f64());
        let mut all = probes.iter().flat_map(largest);
        assert!(all.all(|max| max > Some(0.0)), "{step}");
        // The mean of 32 squares: twice the output, by 32.
        let [value, gradient] = largest(&probes[3]).map(Option::unwrap);
        let error = (gradient - value / 16.0).abs();
        assert!(error < 1e-3 * gradient, "{value} {gradient}");
    }
    says(&page, ["21 steps, of which 0 were skipped."]);
}

/// Steps with these gains and factors of their losses; and the error of the last.
fn flown(steps: &[[f64; 2]]) -> (Flight, Result<(), AmpError>) {
    let skips = GradScalerConfig::new().with_max_consecutive_skips(Some(3));
    let mut flight = Flight::under(skips);
    let mut last = Ok(());
    for [gain, factor] in steps {
        last = step(&mut flight.training, *gain, *factor);
    }
    (flight, last)
}

const GOOD: [f64; 2] = [1.0; 2];

#[test]
fn the_first_tensor_that_is_not_finite_is_named_on_the_way_forward() {
    let bad = [1e4, 1.0];
    // One skip may be a single bad batch, and a row of skips is written once.
    assert_eq!(flown(&[GOOD, bad, GOOD, bad]).0.written(), 0);
    let (flight, _) = flown(&[GOOD, GOOD, bad, bad, GOOD, bad]);
    assert_eq!(flight.written(), 1);
    let (found, page) = flight.page(0);
    assert_eq!(found["step"], 4);
    assert_eq!(found["why"], "two steps in a row were skipped");
    let first = &found["first"];
    assert_eq!([&first["probe"], &first["way"]], ["squares", "forward"]);
    assert!(first["max_abs_before"].as_f64() > Some(0.0));
    says(&found["advice"], ["no loss scale helps"]);
    // All parameters are hit, the largest first.
    let overflows = array(&found["steps"][3]["overflows"]);
    assert!(overflows[0]["values"].as_u64() >= overflows[1]["values"].as_u64());
    says(&page, ["<th>gradient values that are not finite</th>"]);
}

/// Finite where it comes from the loss, and not behind the gain.
#[test]
fn the_first_gradient_that_is_not_finite_is_named_on_the_way_back() {
    let (flight, _) = flown(&[GOOD, [150.0, 4e-4], [150.0, 4e-4]]);
    let (found, _) = flight.page(0);
    let first = &found["first"];
    assert_eq!([&first["probe"], &first["way"]], ["gain", "backward"]);
    let steps = array(&found["steps"]).iter();
    let scales = steps.map(|step| &step["loss_scale"]);
    assert!(scales.eq([65536.0, 65536.0, 32768.0].iter()), "{found}");
}

/// And a program that goes on has been told.
#[test]
fn the_end_of_a_run_is_written() {
    let bad = [1.0, f64::INFINITY];
    let (mut flight, ended) = flown(&[bad; 4]);
    let error = ended.unwrap_err();
    is_error(&error, "LossNotFinite", []);
    assert_eq!(flight.written(), 2);
    let (found, _) = flight.page(1);
    says(found["why"].as_str().unwrap(), [&*error.to_string()]);
    says(&found["advice"], ["the loss scale is not the cause"]);
    assert!(step(&mut flight.training, bad[0], bad[1]).is_err());
    assert_eq!(flight.written(), 2);
}

#[test]
fn a_step_that_is_refused_is_not_called_right() {
    let mut flight = Flight::new();
    let refused = flight.training.try_step(f64::NAN, GradientsParams::new());
    let error = refused.unwrap_err().to_string();
    let advice = flight.page(0).0["advice"].to_string();
    says(&advice, ["The last step failed", &error]);
    assert!(!advice.contains("Nothing is wrong"));
}

#[test]
fn a_step_that_the_guard_holds_back_is_written() {
    let mut flight = Flight::under(at_scale(1024.0));
    let training = &mut flight.training;
    training.optim = training.optim.clone().with_hook(Guard::skip_step());
    let factors = (0..200).map(|number| 1.0 + 1e-3 * f64::from(number % 3));
    (factors.chain([50.0])).for_each(|factor| step(training, 1.0, factor).unwrap());
    assert_eq!(training.optim.scaler().counters().guarded(), 1);
    let (found, page) = flight.page(0);
    assert_eq!(found["why"], "a hook rejected a step");
    says(&found["advice"], ["gradient norm"]);
    says(&page, ["of which 1 were skipped"]);
}

#[test]
fn a_detached_recorder_sees_nothing() {
    let mut flight = Flight::new();
    let amp = flight.training.amp.clone();
    steps(&mut flight.training, 1);
    let other = FlightRecorder::new(flight.folder.path().join("other"), &amp).unwrap();
    // The second time there is nothing to detach, and another one stays.
    flight.recorder.clone().detach(&amp);
    flight.recorder.clone().detach(&amp);
    steps(&mut flight.training, 1);
    for recorder in [flight.recorder, other] {
        assert_eq!(page(&recorder.write().unwrap()).0["step"], 1);
    }
}

#[test]
fn a_run_that_was_killed_goes_on_in_the_same_log() {
    let mut flight = Flight::new();
    let log = flight.folder.path().join("steps.jsonl");
    steps(&mut flight.training, 3);
    flight.recorder.write().unwrap();
    let amp = flight.training.amp.clone();
    flight.recorder.detach(&amp);
    let text = fs::read_to_string(&log).unwrap();
    // Cut off inside a character.
    let cut = [&text.as_bytes()[..text.len() - 20], b"\xc3"].concat();
    fs::write(&log, cut).unwrap();

    let recorder = FlightRecorder::new(flight.folder.path(), &amp).unwrap();
    steps(&mut flight.training, 1);
    // The third line was cut off.
    assert!(recorder.write().unwrap().ends_with("flight-3.html"));
    let bytes = fs::read(&log).unwrap();
    let lines = bytes.split(|byte| *byte == b'\n');
    let whole = lines.filter(|line| serde_json::from_slice::<Value>(line).is_ok());
    assert_eq!(whole.count(), 3);
}

/// With two networks in an iteration, which is one step.
#[test]
fn a_scaler_that_steps_by_hand_is_seen() {
    let flight = Flight::new();
    let amp = &flight.training.amp;
    let (other, mut sgd) = (training(amp), SgdConfig::new().init());
    let mut scaler = GradScaler::from(amp);
    for gain in [1.0, 1e4, 1e4] {
        for net in [&flight.training, &other] {
            let grads = scaler.scaled(gradients(net, gain, 1.0)).unwrap();
            let grads = scaler.unscale(grads, &net.model).unwrap();
            scaler.step(&mut sgd, 0.01, net.model.clone(), grads);
        }
        scaler.update().unwrap();
    }
    assert_eq!(flight.page(0).0["step"], 3);
}

/// Those of two optimizers in one iteration are one step, and no row of skips.
#[test]
fn an_iteration_of_two_optimizers_is_one_step() {
    let mut flight = Flight::new();
    let mut second = training(&flight.training.amp);
    // At last; the third time the first one's alone is finite.
    for (factors, count) in [([1e9; 2], 0), ([1.0; 2], 0), ([1.0, 1e9], 0), ([1e9; 2], 1)] {
        step(&mut flight.training, 1.0, factors[0]).unwrap();
        step(&mut second, 1.0, factors[1]).unwrap();
        assert_eq!(flight.written(), count, "{factors:?}");
    }
    let (found, _) = flight.page(0);
    assert_eq!(found["step"], 4);
    let outcomes = array(&found["steps"]).iter().map(|step| &step["outcome"]);
    assert!(outcomes.eq(["skipped", "stepped", "skipped", "skipped"].iter()));
    let log = fs::read_to_string(flight.folder.path().join("steps.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 4);
}
