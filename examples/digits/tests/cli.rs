//! The program as a user runs it: real processes, real files.

use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

fn digits(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
    command.current_dir(folder).args(args);
    command
}

fn run(folder: &TempDir, args: &[&str]) -> Output {
    digits(folder, args).output().unwrap()
}

fn ok(output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}

/// The error that a failed program has printed.
fn error(output: &Output) -> String {
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!error.contains("panicked"), "{error}");
    error
}

/// The runs of a report, their times left out: those differ from one machine to the next.
fn numbers(path: &Path) -> Vec<Value> {
    let report: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut runs = report["runs"].as_array().unwrap().clone();
    for run in &mut runs {
        let time = run.as_object_mut().unwrap().remove("seconds_per_step");
        assert!(time.unwrap().as_f64().unwrap() > 0.0);
    }
    runs
}

#[test]
fn writes_table_report_and_picture() {
    let folder = TempDir::new().unwrap();
    let output = run(&folder, &["--epochs", "3", "--json", "report.json"]);
    ok(&output);
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(table.lines().count(), 4, "{table}");

    let runs = numbers(&folder.path().join("report.json"));
    let names: Vec<_> = runs
        .iter()
        .map(|run| run["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["f32", "f16", "f16 + loss scaling"]);
    for run in &runs {
        let keys: Vec<_> = run
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected = [
            "final_loss",
            "final_scale",
            "name",
            "skipped_steps",
            "test_accuracy",
            "zero_gradient_share",
        ];
        assert_eq!(keys, expected);
        assert!(table.contains(run["name"].as_str().unwrap()));
    }
    // The same network from the same seed.
    let zeros = |run: usize| runs[run]["zero_gradient_share"].as_f64().unwrap();
    assert_eq!(zeros(0), 0.0);
    assert!(zeros(1) > 0.2);
    assert!(zeros(2) < 0.001);

    let svg = fs::read_to_string(folder.path().join("digits.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for name in names {
        assert!(svg.contains(name), "no curve for {name}");
    }
    // Two of the runs and the scale, in whole lines; the f32 run in dashes.
    assert!(svg.matches("<polyline").count() >= 4 + 8);
    // The page shows through.
    assert!(!svg.contains("#FFFFFF") && !svg.contains("#000000"));
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let folder = TempDir::new().unwrap();
    let report = |file: &str, seed: &str| {
        ok(&run(
            &folder,
            &["--epochs", "2", "--seed", seed, "--json", file],
        ));
        numbers(&folder.path().join(file))
    };
    let first = report("a.json", "7");
    assert_eq!(first, report("b.json", "7"));
    assert_ne!(first, report("c.json", "8"));
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = TempDir::new().unwrap();
    let help = run(&folder, &["--help"]);
    ok(&help);
    let help = String::from_utf8(help.stdout).unwrap();
    for option in [
        "--seed",
        "--epochs",
        "--json",
        "--svg",
        "--checkpoint",
        "--resume",
        "--logs",
    ] {
        assert!(help.contains(option), "{help}");
    }
    assert!(error(&run(&folder, &["--epochs", "0"])).contains("1..=1000000"));
    assert!(error(&run(&folder, &["--epochs", "many"])).contains("--epochs"));
    let nowhere = ["--epochs", "1", "--json", "nowhere/report.json"];
    assert!(error(&run(&folder, &nowhere)).contains("nowhere/report.json"));
    let missing = error(&run(&folder, &["--resume", "missing.bpk"]));
    assert!(missing.contains("missing.bpk"), "{missing}");
    fs::write(folder.path().join("text"), "no checkpoint").unwrap();
    assert!(error(&run(&folder, &["--resume", "text"])).contains("text"));
    if !cfg!(feature = "report") {
        assert!(error(&run(&folder, &["--logs", "runs"])).contains("--features report"));
    }
}

#[cfg(feature = "report")]
#[test]
fn logs_each_step_of_each_run() {
    let folder = TempDir::new().unwrap();
    ok(&run(&folder, &["--epochs", "2", "--logs", "runs"]));
    for name in ["f32", "f16", "f16 + loss scaling"] {
        let steps = folder.path().join("runs").join(name).join("steps.jsonl");
        let steps = fs::read_to_string(&steps).unwrap();
        assert_eq!(steps.matches("\"loss\":").count(), 2, "{name}: {steps}");
    }
}

/// Stopped in the third run and resumed: the same numbers as without the stop.
#[test]
#[cfg(unix)]
fn a_stopped_program_resumes_with_the_same_numbers() {
    let folder = TempDir::new().unwrap();
    let epochs = ["--epochs", "24"];
    let args = |more: &[&'static str]| [&epochs[..], more].concat();
    // Side by side with the one that is stopped.
    let straight = digits(
        &folder,
        &args(&["--json", "straight.json", "--svg", "a.svg"]),
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();

    let state = folder.path().join("state");
    let mut child = digits(
        &folder,
        &args(&["--checkpoint", "state", "--json", "no.json"]),
    )
    .spawn()
    .unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    // Until the last run has a checkpoint of its own.
    while !fs::read(&state).is_ok_and(|bytes| contains(&bytes, br#""current":["F16Scaled""#)) {
        assert!(
            child.try_wait().unwrap().is_none(),
            "done before it could be stopped"
        );
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
    // Not SIGINT: a shell that runs the tests in the background has it ignored.
    let id = child.id().to_string();
    Command::new("kill").args(["-TERM", &id]).status().unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!folder.path().join("no.json").exists());

    let wrong = error(&run(&folder, &["--resume", "state", "--seed", "5"]));
    assert!(wrong.contains("--seed 0"), "{wrong}");
    ok(&run(
        &folder,
        &["--resume", "state", "--json", "resumed.json"],
    ));
    ok(&straight.wait_with_output().unwrap());
    let report = |name: &str| numbers(&folder.path().join(name));
    assert_eq!(report("resumed.json"), report("straight.json"));
}

#[cfg(unix)]
fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// What the README promises of the whole job. Minutes without optimization: run it with `--release -- --ignored`.
#[test]
#[ignore = "minutes in a debug build"]
fn the_whole_job_keeps_its_promises() {
    let folder = TempDir::new().unwrap();
    let start = Instant::now();
    ok(&run(&folder, &["--json", "report.json"]));
    assert!(start.elapsed() < Duration::from_secs(180));
    let runs = numbers(&folder.path().join("report.json"));
    let accuracy = |run: usize| runs[run]["test_accuracy"].as_f64().unwrap();
    let (f32, f16, scaled) = (accuracy(0), accuracy(1), accuracy(2));
    assert!(
        (scaled - f32).abs() <= 0.01,
        "f32 {f32}, f16 with scaling {scaled}"
    );
    assert!(scaled >= f16 + 0.03, "f16 {f16}, with scaling {scaled}");
    assert!(runs[2]["skipped_steps"].as_u64().unwrap() > 0);
}
