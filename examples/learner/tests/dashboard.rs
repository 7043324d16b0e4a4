//! The dashboard, in a terminal of its own: `script` (of util-linux) gives the program one.
#![cfg(all(target_os = "linux", feature = "tui"))]

use burn::{
    lr_scheduler::constant::ConstantLr, optim::AdamConfig, tensor::Device,
    train::SupervisedTraining,
};
use burn_amp::{GradScalerConfig, MixedPrecision, train::LearnerExt};
use learner::{data::loaders, model::Classifier};
use std::path::Path;
use std::process::{Command, Stdio};

const FOLDER: &str = "BURN_AMP_TEST_FOLDER";
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// What a command writes to a terminal of 120 by 40.
fn in_a_terminal(command: &str, folder: &Path) -> String {
    let command = format!("stty cols 120 rows 40; {command}");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    script.env(FOLDER, folder).env("TERM", "xterm-256color");
    let output = script.stdin(Stdio::null()).output();
    let output = output.expect("`script` of util-linux");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn the_dashboard_shows_the_metrics_and_leaves_the_terminal_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_learner");
    let command = format!("{program} --epochs 20 --folder {}", folder.path().display());
    let text = in_a_terminal(&command, folder.path());
    let (shown, after) = between(&text);
    for name in ["Accuracy", "Loss Scale", "Skipped Steps", "Gradient Norm"] {
        assert!(shown.contains(name), "no {name} in the dashboard");
    }
    assert!(after.contains("380 steps"), "{after}");
    for name in ["Loss Scale", "Skipped Steps", "Zero Gradients"] {
        let row = format!("| Train | {name} ");
        assert!(after.contains(&row), "no {name} in the summary: {after}");
    }
}

/// At a floor of 2^100 the first step overflows, and there is no lower scale.
#[test]
#[ignore = "runs in a terminal of its own"]
fn child_is_exhausted_at_once() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return println!("skipped: not in a terminal of its own");
    };
    let scale = 2_f64.powi(100);
    let config = GradScalerConfig::new().with_min_scale(Some(scale));
    let config = config.with_init_scale(scale);
    let config = config.with_raise_error_at_min_scale(true);
    let amp = MixedPrecision::f16().with_scaler(config).unwrap();
    let model = Classifier::new(&Device::flex().autodiff());
    let adam = AdamConfig::new().init();
    let learner = amp.learner(model, adam, ConstantLr::new(0.01)).unwrap();
    let (train, valid) = loaders(0).unwrap();
    let training = SupervisedTraining::new(folder, train, valid).num_epochs(1);
    let result = amp.training(training).launch(learner);
    drop(result.renderer);
    println!("THE ERROR IS: {}", amp.run_result().unwrap_err());
}

#[test]
fn an_exhausted_run_gives_the_terminal_back_and_its_message_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let child = "child_is_exhausted_at_once --exact --ignored --nocapture";
    let command = format!("{} {child}", program.display());
    let text = in_a_terminal(&command, folder.path());
    let (_, after) = between(&text);
    assert!(after.contains("THE ERROR IS:"), "{after}");
    assert!(after.contains("loss scale exhausted"), "{after}");
    assert!(!text.contains("panicked"), "{text}");
}

/// What was written to the dashboard's screen, and what came after the terminal was given back.
fn between(text: &str) -> (&str, &str) {
    let (_, shown) = text.split_once(ENTER).expect("the dashboard's screen");
    shown.rsplit_once(LEAVE).expect("the screen before it")
}
