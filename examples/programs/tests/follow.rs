//! The programs as a user runs them: f16 with scaling follows f32, and bf16 runs. Few steps, so that a debug build does them.

#[path = "../../digits/tests/program/mod.rs"]
mod program;

use burn::{
    module::Module,
    nn::loss::{MseLoss, Reduction},
    tensor::Device,
};
use programs::{cnn, regression};
use std::{fs, path::PathBuf, process::Command};
use tempfile::TempDir;

fn programs(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_programs"));
    command.args(args);
    command
}

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
        let mut command = programs(&[program, "--epochs", &epochs.to_string(), "--folder"]);
        command.arg(folder.path());
        if let Some(precision) = precision {
            command.args(["--precision", precision]);
        }
        let printed = program::prints(&mut command);
        assert!(folder.path().join("model.bpk").exists());
        Self { folder, printed }
    }

    /// What a loop prints for each epoch: the last number is that of the validation.
    fn printed_numbers(&self) -> Vec<Vec<f64>> {
        let lines = self.printed.lines();
        let epochs = lines.filter(|line| line.starts_with("epoch"));
        let number = |word: &str| word.trim_end_matches(',').parse().ok();
        let numbers = epochs.map(|line| line.split_whitespace().skip(2).filter_map(number));
        numbers.map(Iterator::collect).collect()
    }

    /// What a Learner logs for each epoch: loss of the training, accuracy and loss of the validation.
    fn logged_numbers(&self) -> Vec<Vec<f64>> {
        let epochs = fs::read_dir(self.folder.path().join("valid")).unwrap();
        let epoch = |epoch: usize| {
            let metrics = ["train/Loss", "valid/Accuracy", "valid/Loss"].map(|metric| {
                let (split, name) = metric.split_once('/').unwrap();
                self.mean(&format!("{split}/epoch-{epoch}/{name}"))
            });
            metrics.to_vec()
        };
        (1..=epochs.count()).map(epoch).collect()
    }

    /// The mean of a log, whose lines are `value,samples`; a last one may have the mean.
    fn mean(&self, log: &str) -> f64 {
        let path = self.folder.path().join(log.to_string() + ".log");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (mut sum, mut count) = (0.0, 0.0);
        for (value, samples) in text.lines().filter_map(|line| line.split_once(',')) {
            if let (Ok(value), Ok(samples)) = (value.parse::<f64>(), samples.parse::<f64>()) {
                sum += value * samples;
                count += samples;
            }
        }
        sum / count
    }

    /// The file is one of the plain model.
    fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }
}

/// The plain program and that in half precision, in f32, f16 and bf16.
///
/// In f32 it computes what the plain program does, to the last digit. In f16 and bf16 every number is at most `margin` away
/// from those, as a share of them. Returns the runs, and the last number of the plain one's first epoch, and of its last.
fn follow(
    program: &str,
    epochs: usize,
    margin: f64,
    numbers: impl Fn(&Run) -> Vec<Vec<f64>>,
) -> ([Run; 4], [f64; 2]) {
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
    let ends = [&plain[0], &plain[epochs - 1]].map(|epoch| *epoch.last().unwrap());
    (runs, ends)
}

#[test]
fn a_regression_in_a_loop() {
    let (runs, [first, last]) = follow("regression", 3, 0.02, Run::printed_numbers);
    assert!(last < 0.8 * first, "{first}, {last}");
    // Validation was in f32.
    let device = Device::flex();
    let config = regression::TrainingConfig::new();
    for run in &runs {
        let model = regression::model::ModelConfig::new().init(&device);
        let model = model.load_file(run.model());
        let (_, valid) = regression::data::loaders(&config, &device);
        let losses = valid.iter().map(|batch| {
            let batch = batch.unwrap();
            let output = model.forward(batch.inputs);
            let loss = MseLoss::new().forward(output, batch.targets, Reduction::Mean);
            f64::from(loss.into_scalar::<f32>())
        });
        let losses: Vec<f64> = losses.collect();
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        let printed = *run.printed_numbers()[2].last().unwrap();
        assert!((loss - printed).abs() < 2e-6, "{loss}, {printed} printed");
    }
}

/// The critic learns to tell first.
#[test]
fn a_wgan_in_a_loop() {
    let (_, [first, last]) = follow("wgan", 2, 0.08, Run::printed_numbers);
    assert!(first > 0.0 && last > first, "{first}, {last}");
}

/// Thirteen characters, if nothing were learned.
#[test]
fn a_gpt_in_a_loop() {
    let (runs, [_, loss]) = follow("gpt", 1, 0.005, Run::printed_numbers);
    assert!(loss < 0.85 * 13_f64.ln(), "{loss}");
    assert!(runs[0].printed.lines().any(|line| line.starts_with("3+4=")));
}

#[test]
fn a_cnn_in_a_learner() {
    let (runs, [first, last]) = follow("cnn", 2, 0.03, Run::logged_numbers);
    assert!(last < 0.8 * first, "{first}, {last}");
    // Its running statistics are in the file.
    for run in &runs {
        let model = cnn::plain::model::ModelConfig::new().init(&Device::flex());
        let model = model.load_file(run.model());
        let [_, _, test] = cnn::data::loaders(&cnn::TrainingConfig::new()).unwrap();
        let right = test.iter().map(|batch| {
            let batch = batch.unwrap();
            let [count] = batch.targets.dims();
            let guesses = model.forward(batch.images).argmax(1).reshape([count]);
            let right = guesses.equal(batch.targets).int().sum();
            right.into_scalar::<i32>()
        });
        let accuracy = 100.0 * f64::from(right.sum::<i32>()) / test.num_items() as f64;
        let evaluated = run.mean("test/digits/Accuracy");
        // The evaluator computes in half precision, this does not: two of 299 images may be read otherwise.
        let near = (accuracy - evaluated).abs() < 0.7 && accuracy > 50.0;
        assert!(near, "{accuracy}, {evaluated}");
    }
}

/// The rate is warmed up, the same in all.
#[test]
fn a_transformer_in_a_learner() {
    let (runs, [first, last]) = follow("transformer", 2, 0.02, Run::logged_numbers);
    assert!(last < 0.9 * first, "{first}, {last}");
    let rate = |run: &Run| [1, 2].map(|at| run.mean(&format!("train/epoch-{at}/Learning_Rate")));
    let rates = runs.each_ref().map(rate);
    assert!(rates.iter().all(|of| *of == rates[0]), "{rates:?}");
}

#[test]
fn wrong_arguments_are_refused() {
    let cases: [(&[&str], &str); 3] = [
        (&["what"], "what"),
        (&["gpt", "--precision", "f8"], "f8"),
        (&["gpt", "--epochs", "0"], "--epochs"),
    ];
    program::refuses(programs, &cases);
}
