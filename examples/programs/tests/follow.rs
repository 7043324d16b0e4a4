//! The programs as a user runs them: f16 with scaling follows f32, and bf16 runs. Few steps, so that a debug build does them.

use burn::{
    module::Module,
    nn::loss::{MseLoss, Reduction},
    tensor::Device,
};
use programs::{cnn, regression};
use std::{fs, path::Path, process::Command};
use tempfile::TempDir;

/// One run of a program.
struct Run {
    folder: TempDir,
    /// What it printed.
    printed: String,
}

impl Run {
    /// Without a precision, of the plain program.
    fn new(program: &str, epochs: usize, precision: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_programs"));
        command.args([program, "--epochs", &epochs.to_string()]);
        command.arg("--folder").arg(folder.path());
        if let Some(precision) = precision {
            command.args(["--precision", precision]);
        }
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program}: {printed}\n{error}");
        assert!(folder.path().join("model.bpk").exists());
        Self { folder, printed }
    }

    /// What a loop prints for each epoch: the last number is that of the validation.
    fn printed_numbers(&self) -> Vec<Vec<f64>> {
        let epochs = self
            .printed
            .lines()
            .filter(|line| line.starts_with("epoch"));
        let number = |word: &str| word.trim_end_matches(',').parse().ok();
        epochs
            .map(|line| line.split_whitespace().skip(2).filter_map(number).collect())
            .collect()
    }

    /// What a Learner logs for each epoch: loss of the training, accuracy and loss of the validation.
    fn logged_numbers(&self) -> Vec<Vec<f64>> {
        let metrics = ["train/Loss", "valid/Accuracy", "valid/Loss"];
        let epoch = |epoch: usize| {
            let metric = |name: &str| {
                let path = name.replace('/', &format!("/epoch-{epoch}/"));
                mean_of_log(&self.folder.path().join(path + ".log"))
            };
            metrics.iter().map(|name| metric(name)).collect()
        };
        let count = fs::read_dir(self.folder.path().join("valid"))
            .unwrap()
            .count();
        (1..=count).map(epoch).collect()
    }
}

/// Lines are `value,samples`; a last one may have the mean.
fn mean_of_log(path: &Path) -> f64 {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (mut sum, mut count) = (0.0, 0.0);
    for (value, samples) in text.lines().filter_map(|line| line.split_once(',')) {
        if let (Ok(value), Ok(samples)) = (value.parse::<f64>(), samples.parse::<f64>()) {
            sum += value * samples;
            count += samples;
        }
    }
    sum / count
}

/// The plain program and that in half precision, in f32, f16 and bf16.
///
/// In f32 it computes what the plain program does, to the last digit. In f16 and bf16 every number is at most `margin` away
/// from those, as a share of them. Returns the runs and the plain numbers.
fn follow(
    program: &str,
    epochs: usize,
    margin: f64,
    numbers: impl Fn(&Run) -> Vec<Vec<f64>>,
) -> (Vec<Run>, Vec<Vec<f64>>) {
    let precisions = [None, Some("f32"), Some("f16"), Some("bf16")];
    let runs = precisions.map(|precision| Run::new(program, epochs, precision));
    let [plain, f32, f16, bf16] = runs.each_ref().map(numbers);
    println!("{program}: {plain:?}, f16 {f16:?}, bf16 {bf16:?}");
    assert_eq!(plain.len(), epochs);
    assert_eq!(f32, plain);
    for half in [f16, bf16] {
        // Else nothing was computed in half precision.
        assert_ne!(half, plain);
        assert_eq!(half.len(), epochs);
        for (half, plain) in half.iter().flatten().zip(plain.iter().flatten()) {
            let away = (half - plain).abs() / plain.abs();
            assert!(away <= margin, "{program}: {half}, and {plain} in f32");
        }
    }
    (runs.into(), plain)
}

/// The last number of the first epoch, and that of the last.
fn ends(numbers: &[Vec<f64>]) -> [f64; 2] {
    let last = |epoch: Option<&Vec<f64>>| *epoch.unwrap().last().unwrap();
    [last(numbers.first()), last(numbers.last())]
}

#[test]
fn a_regression_in_a_loop() {
    let (runs, losses) = follow("regression", 3, 0.02, Run::printed_numbers);
    let [first, last] = ends(&losses);
    assert!(last < 0.8 * first, "{losses:?}");

    // Validation was in f32, and the file is one of the plain model.
    for run in &runs {
        let device = Device::flex();
        let model = regression::model::ModelConfig::new().init(&device);
        let model = model.load_file(run.folder.path().join("model"));
        let config = regression::TrainingConfig::new();
        let (_, valid) = regression::data::loaders(&config, &device);
        let losses = valid.iter().map(|batch| {
            let batch = batch.unwrap();
            let output = model.forward(batch.inputs);
            let loss = MseLoss::new().forward(output, batch.targets, Reduction::Mean);
            f64::from(loss.into_scalar::<f32>())
        });
        let losses: Vec<f64> = losses.collect();
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        let [_, printed] = ends(&run.printed_numbers());
        assert!(
            (loss - printed).abs() < 2e-6,
            "{loss}, and {printed} printed"
        );
    }
}

#[test]
fn a_wgan_in_a_loop() {
    let (_, distances) = follow("wgan", 2, 0.08, Run::printed_numbers);
    // The critic learns to tell first.
    let [first, last] = ends(&distances);
    assert!(first > 0.0 && last > first, "{distances:?}");
}

#[test]
fn a_gpt_in_a_loop() {
    let (runs, losses) = follow("gpt", 1, 0.005, Run::printed_numbers);
    // Thirteen characters, if nothing were learned.
    let [_, loss] = ends(&losses);
    assert!(loss < 0.85 * 13_f64.ln(), "{loss}");
    assert!(runs[0].printed.lines().any(|line| line.starts_with("3+4=")));
}

#[test]
fn a_cnn_in_a_learner() {
    let (runs, numbers) = follow("cnn", 2, 0.03, Run::logged_numbers);
    let [first, last] = ends(&numbers);
    assert!(last < 0.8 * first, "{numbers:?}");

    // The file is one of the plain model, its running statistics included.
    for run in &runs {
        let device = Device::flex();
        let model = cnn::plain::model::ModelConfig::new().init(&device);
        let model = model.load_file(run.folder.path().join("model"));
        let [_, _, test] = cnn::data::loaders(&cnn::TrainingConfig::new()).unwrap();
        let right = test.iter().map(|batch| {
            let batch = batch.unwrap();
            let [count] = batch.targets.dims();
            let guesses = model.forward(batch.images).argmax(1).reshape([count]);
            guesses
                .equal(batch.targets)
                .int()
                .sum()
                .into_scalar::<i32>()
        });
        let accuracy = 100.0 * f64::from(right.sum::<i32>()) / test.num_items() as f64;
        let evaluated = mean_of_log(&run.folder.path().join("test/digits/Accuracy.log"));
        // The evaluator computes in half precision, this does not: two of 299 images may be read otherwise.
        assert!(
            (accuracy - evaluated).abs() < 0.7,
            "{accuracy}, {evaluated}"
        );
        assert!(accuracy > 50.0, "{accuracy}");
    }
}

#[test]
fn a_transformer_in_a_learner() {
    let (runs, numbers) = follow("transformer", 2, 0.02, Run::logged_numbers);
    let [first, last] = ends(&numbers);
    assert!(last < 0.9 * first, "{numbers:?}");
    let rate = |run: &Run, epoch: usize| {
        let path = format!("train/epoch-{epoch}/Learning_Rate.log");
        mean_of_log(&run.folder.path().join(path))
    };
    // Warmed up: the rate is the same in all, and rises.
    for run in &runs {
        assert_eq!(
            [1, 2].map(|epoch| rate(run, epoch)),
            [1, 2].map(|epoch| rate(&runs[0], epoch))
        );
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let program = env!("CARGO_BIN_EXE_programs");
    for args in [
        &["what"][..],
        &["gpt", "--precision", "f8"],
        &["gpt", "--epochs", "0"],
    ] {
        let output = Command::new(program).args(args).output().unwrap();
        assert!(!output.status.success());
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    }
}
