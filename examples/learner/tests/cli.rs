//! The program itself: its files, its resume, its errors.

#[path = "../../digits/tests/program/mod.rs"]
mod program;

use burn_pack::Reader;
use program::prints;
use std::{fs, path::Path, process::Command};

fn learner(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_learner"));
    command.arg("--folder").arg(folder).args(arguments);
    command.args(["--no-tui", "--epochs", "12"]);
    command
}

/// Names and values, without the parameters' ids, which are random.
fn tensors(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let reader = Reader::from_file(folder.join("checkpoint/model-12.bpk")).unwrap();
    let tensors = reader.into_tensors().unwrap().into_iter();
    let tensors = tensors.map(|tensor| {
        let bytes = tensor.to_bytes().unwrap().to_vec();
        (tensor.name, bytes)
    });
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort();
    tensors
}

/// Of the last epoch.
fn last_value(folder: &Path, metric: &str) -> f64 {
    let path = folder.join(metric.replace('/', "/epoch-12/") + ".log");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let last = text.lines().last().unwrap();
    last.trim_end_matches(",final").parse().unwrap()
}

/// Twelve epochs are few, to be quick: chance is 10 %, the end of sixty 95 %.
#[test]
fn an_f16_run_learns_and_a_resumed_one_is_the_same() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let printed = prints(&mut learner(folder, &[]));
    assert!(printed.contains("228 steps"), "{printed}");
    assert!(last_value(folder, "valid/Accuracy") > 40.0);
    for name in ["Skipped_Steps", "Gradient_Norm", "Zero_Gradients"] {
        assert!(last_value(folder, &format!("train/{name}")).is_finite());
    }
    assert!(last_value(folder, "train/Loss_Scale") > 65536.0);

    // From the checkpoint of epoch 8, with what came after it gone.
    let whole = tensors(folder);
    fs::remove_file(folder.join("checkpoint/model-12.bpk")).unwrap();
    let resumed = prints(&mut learner(folder, &["--resume", "8"]));
    assert!(resumed.contains("228 steps"), "{resumed}");
    assert!(whole == tensors(folder));
}

#[test]
fn other_precisions_run_without_a_scale() {
    for precision in ["f32", "bf16"] {
        let folder = tempfile::tempdir().unwrap();
        prints(&mut learner(folder.path(), &["--precision", precision]));
        let scale = folder.path().join("train/epoch-12/Loss_Scale.log");
        assert!(!scale.exists(), "{precision}");
        assert!(last_value(folder.path(), "valid/Accuracy") > 40.0);
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut cases: Vec<(&[&str], &str)> = vec![
        (&["--resume", "3"], "model-3.bpk"),
        (&["--resume", "12"], "--epochs"),
        (&["--precision", "f8"], "possible values"),
    ];
    if !cfg!(feature = "rocm") {
        cases.push((&["--backend", "rocm"], "--features rocm"));
    }
    program::refuses(|arguments| learner(folder.path(), arguments), &cases);
}
