//! The program as a user runs it: real processes, real files.

mod program;

use burn::tensor::Device;
use digits::{
    checkpoint::{self, Progress},
    data::Digits,
    report::Summary,
    training::{Run, Trainer},
};
use program::{prints, refuses};
use serde_json::Value;
use std::{fs, process::Command};
use tempfile::TempDir;

fn digits(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
    command.current_dir(folder).args(args);
    command
}

/// The runs of a report, their times left out: those differ from one machine to the next.
fn numbers(folder: &TempDir, args: &[&str]) -> Vec<Value> {
    prints(digits(folder, args).args(["--json", "report.json"]));
    let report = fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let mut runs = report["runs"].as_array().unwrap().clone();
    for run in &mut runs {
        let time = run.as_object_mut().unwrap().remove("seconds_per_step");
        assert!(time.unwrap().as_f64().unwrap() > 0.0);
    }
    runs
}

const NAMES: [&str; 3] = ["f32", "f16", "f16 + loss scaling"];

#[test]
fn writes_table_report_and_picture() {
    let folder = TempDir::new().unwrap();
    let table = prints(&mut digits(&folder, &["--epochs", "3"]));
    assert_eq!(table.lines().count(), 4, "{table}");
    let runs = numbers(&folder, &["--epochs", "3"]);
    for (run, name) in runs.iter().zip(NAMES) {
        let keys: Vec<_> = run.as_object().unwrap().keys().collect();
        let expected =
            "final_loss final_scale name skipped_steps test_accuracy zero_gradient_share";
        assert!(keys.iter().copied().eq(expected.split(' ')), "{keys:?}");
        assert!(run["name"] == name && table.contains(name), "{table}");
    }
    // The same network from the same seed.
    let zeros = [0, 1, 2].map(|run: usize| runs[run]["zero_gradient_share"].as_f64().unwrap());
    assert!(
        zeros[0] == 0.0 && zeros[1] > 0.2 && zeros[2] < 0.001,
        "{zeros:?}"
    );

    let svg = fs::read_to_string(folder.path().join("digits.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(NAMES.iter().all(|name| svg.contains(name)), "no curve");
    // Two of the runs and the scale, in whole lines; the f32 run in dashes.
    assert!(svg.matches("<polyline").count() >= 4 + 8);
    // The page shows through.
    assert!(!svg.contains("#FFFFFF") && !svg.contains("#000000"));
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let folder = TempDir::new().unwrap();
    let [first, again, other] =
        ["7", "7", "8"].map(|seed| numbers(&folder, &["--epochs", "2", "--seed", seed]));
    assert!(first == again && first != other);
}

#[test]
fn wrong_arguments_are_refused() {
    let folder = TempDir::new().unwrap();
    let help = prints(&mut digits(&folder, &["--help"]));
    let options = "--seed --epochs --json --svg --checkpoint --resume --logs";
    assert!(
        options.split(' ').all(|option| help.contains(option)),
        "{help}"
    );
    fs::write(folder.path().join("text"), "no checkpoint").unwrap();
    const NOWHERE: &str = "nowhere/report.json";
    let mut cases: Vec<(&[&str], &str)> = vec![
        (&["--epochs", "0"], "1..=1000000"),
        (&["--epochs", "many"], "--epochs"),
        (&["--epochs", "1", "--json", NOWHERE], NOWHERE),
        (&["--resume", "missing.bpk"], "missing.bpk"),
        (&["--resume", "text"], "text"),
    ];
    if !cfg!(feature = "report") {
        cases.push((&["--logs", "runs"], "--features report"));
    }
    refuses(|args| digits(&folder, args), &cases);
}

#[cfg(feature = "report")]
#[test]
fn logs_each_step_of_each_run() {
    let folder = TempDir::new().unwrap();
    prints(&mut digits(&folder, &["--epochs", "2", "--logs", "runs"]));
    for name in NAMES {
        let steps = folder.path().join("runs").join(name).join("steps.jsonl");
        let steps = fs::read_to_string(&steps).unwrap();
        assert_eq!(steps.matches("\"loss\":").count(), 2, "{name}: {steps}");
    }
}

/// Stopped in the third run: what it has kept is resumed with the same numbers as without the stop.
#[test]
fn a_stopped_program_resumes_with_the_same_numbers() {
    let folder = TempDir::new().unwrap();
    let args = ["--epochs", "24", "--checkpoint", "state"];
    let straight = numbers(&folder, &args);
    let device = Device::flex();
    let data = Digits::load(&device).unwrap();
    let mut progress = Progress {
        seed: 0,
        epochs: 24,
        done: Vec::new(),
        current: None,
    };
    let state = folder.path().join("stopped");
    for run in Run::ALL {
        let mut trainer = Trainer::new(run, 0, 24, &device).unwrap();
        let steps = if run == Run::F16Scaled { 20 } else { 24 };
        (0..steps).for_each(|_| trainer.step(&data).unwrap());
        if run == Run::F16Scaled {
            checkpoint::save(&state, progress.clone(), Some(&mut trainer)).unwrap();
            continue;
        }
        let summary = Summary::new(run, &trainer.history, trainer.test_accuracy(&data));
        progress.done.push((summary, trainer.history));
    }
    let wrong: &[&str] = &["--resume", "stopped", "--seed", "5"];
    refuses(|args| digits(&folder, args), &[(wrong, "--seed 0")]);
    assert_eq!(numbers(&folder, &["--resume", "stopped"]), straight);
    // The last thing that a program keeps is that all is done.
    assert_eq!(numbers(&folder, &["--resume", "state"]), straight);
}

/// What the README promises of the whole job. Minutes without optimization: run it with `--release -- --ignored`.
#[test]
#[ignore = "minutes in a debug build"]
fn the_whole_job_keeps_its_promises() {
    let folder = TempDir::new().unwrap();
    let runs = numbers(&folder, &[]);
    let accuracy = |run: usize| runs[run]["test_accuracy"].as_f64().unwrap();
    let [f32, f16, scaled] = [0, 1, 2].map(accuracy);
    let kept = (scaled - f32).abs() <= 0.01 && scaled >= f16 + 0.03;
    assert!(kept, "f32 {f32}, f16 {f16}, with scaling {scaled}");
    assert!(runs[2]["skipped_steps"].as_u64().unwrap() > 0);
}
