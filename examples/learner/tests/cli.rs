//! The program itself: its files, its resume, its errors.

use burn_pack::Reader;
use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

fn learner(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_learner"))
        .arg("--folder")
        .arg(folder)
        .args(["--no-tui", "--epochs", "12"])
        .args(arguments)
        .output()
        .unwrap()
}

fn run(folder: &Path, arguments: &[&str]) -> String {
    let output = learner(folder, arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    stdout
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Names and values, without the parameters' ids, which are random.
fn tensors(file: &Path) -> Vec<(String, Vec<u8>)> {
    let tensors = Reader::from_file(file).unwrap().into_tensors().unwrap();
    let mut tensors: Vec<_> = tensors
        .into_iter()
        .map(|tensor| {
            let bytes = tensor.to_bytes().unwrap().to_vec();
            (tensor.name, bytes)
        })
        .collect();
    tensors.sort();
    tensors
}

fn last_value(folder: &Path, split: &str, epoch: usize, name: &str) -> f64 {
    let path = folder.join(format!("{split}/epoch-{epoch}/{name}.log"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let last = text.lines().last().unwrap();
    last.trim_end_matches(",final").parse().unwrap()
}

/// Twelve epochs are few, to be quick: chance is 10 %, the end of sixty 95 %.
#[test]
fn an_f16_run_learns_and_a_resumed_one_is_the_same() {
    let whole = tempfile::tempdir().unwrap();
    let stdout = run(whole.path(), &[]);
    assert!(stdout.contains("228 steps"), "{stdout}");
    let accuracy = last_value(whole.path(), "valid", 12, "Accuracy");
    assert!(accuracy > 40.0, "{accuracy} %");
    for name in [
        "Loss_Scale",
        "Skipped_Steps",
        "Gradient_Norm",
        "Zero_Gradients",
    ] {
        assert!(last_value(whole.path(), "train", 12, name).is_finite());
    }
    assert!(last_value(whole.path(), "train", 12, "Loss_Scale") > 65536.0);

    // From the checkpoint of epoch 8, with what came after it gone.
    let parts = tempfile::tempdir().unwrap();
    run(parts.path(), &[]);
    let model = |folder: &Path| folder.join("checkpoint/model-12.bpk");
    fs::remove_file(model(parts.path())).unwrap();
    let resumed = run(parts.path(), &["--resume", "8"]);
    assert!(resumed.contains("228 steps"), "{resumed}");
    assert!(tensors(&model(whole.path())) == tensors(&model(parts.path())));
}

#[test]
fn other_precisions_run_without_a_scale() {
    for precision in ["f32", "bf16"] {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), &["--precision", precision]);
        let scale = folder.path().join("train/epoch-12/Loss_Scale.log");
        assert!(!scale.exists(), "{precision}");
        let accuracy = last_value(folder.path(), "valid", 12, "Accuracy");
        assert!(accuracy > 40.0, "{precision}: {accuracy} %");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let error = |arguments: &[&str]| {
        let output = learner(folder.path(), arguments);
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let missing = error(&["--resume", "3"]);
    assert!(missing.contains("model-3.bpk"), "{missing}");
    assert!(!missing.contains("panicked"), "{missing}");
    assert!(error(&["--resume", "12"]).contains("--epochs"));
    assert!(error(&["--precision", "f8"]).contains("possible values"));
    if !cfg!(feature = "rocm") {
        assert!(error(&["--backend", "rocm"]).contains("--features rocm"));
    }
}
