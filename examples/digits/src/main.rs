//! The command line: see `digits --help`.

use burn::tensor::Device;
use burn_amp::MixedPrecision;
use clap::Parser;
use digits::{
    Result,
    backend::Backend,
    checkpoint::{self, Progress},
    data::Digits,
    plot::write_svg,
    report::{Summary, check_writable, table, write_json},
    training::{Run, Trainer},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

const SEED: u64 = 0;
const EPOCHS: u64 = 300;
/// Steps between checkpoints.
const CHECKPOINT_INTERVAL: usize = 20;

/// Trains one network on handwritten digits from one seed, three times: in f32, in f16, and in f16 with loss scaling.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where the runs begin: the same seed gives the same numbers [default: 0]
    #[arg(long)]
    seed: Option<u64>,
    /// Steps of each run, each on all training samples [default: 300]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    epochs: Option<u64>,
    /// Write the table's numbers to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw losses and loss scale to this file
    #[arg(long, value_name = "FILE", default_value = "digits.svg")]
    svg: PathBuf,
    /// Keep the state in this file, written every 20 steps, to be resumed from after a stop
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Go on from a checkpoint
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Log every step of each run to a folder in this one, for `burn-amp-report`: needs the feature `report`
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    /// Where to train: all but flex need the feature of their name
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    backend: Backend,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    check_outputs(args)?;
    let device = args.backend.device()?;
    MixedPrecision::f16().check_device(&device)?;
    let digits = Digits::load(&device)?;
    let (mut progress, mut trainer) = begin(args, &device)?;
    while progress.done.len() < Run::ALL.len() {
        let run = Run::ALL[progress.done.len()];
        let mut current = match trainer.take() {
            Some(trainer) => trainer,
            None => Trainer::new(run, progress.seed, progress.epochs, &device)?,
        };
        if let Some(folder) = &args.logs {
            current = with_logs(current, &folder.join(run.name()))?;
        }
        train(&mut current, &digits, &progress, args)?;
        let accuracy = current.test_accuracy(&digits);
        let summary = Summary::new(run, &current.history, accuracy);
        progress.done.push((summary, current.history));
        if let Some(path) = &args.checkpoint {
            checkpoint::save(path, progress.clone(), None)?;
        }
    }
    let summaries: Vec<Summary> = progress.done.iter().map(|(s, _)| s.clone()).collect();
    // A reader that has gone away is no reason to fail: the files are still to be written.
    let _ = writeln!(io::stdout(), "{}", table(&summaries));
    if let Some(path) = &args.json {
        write_json(&summaries, path)?;
    }
    write_svg(&progress.done, &args.svg)
}

/// Logs every step of a run to a folder, for the report.
#[cfg(feature = "report")]
fn with_logs(run: Trainer, folder: &Path) -> Result<Trainer> {
    /// Steps between two columns of the report's heat map.
    const EXPONENTS_EVERY: u32 = 5;
    let recorder = burn_amp_report::FlightRecorder::new(folder, run.amp())?;
    let recorder = recorder.with_exponents_every(EXPONENTS_EVERY);
    Ok(run.with_watch(move |loss, status| {
        recorder.note("loss", loss.into());
        if let Some(status) = status {
            recorder.note("Gradient Norm", status.norm());
            recorder.note("Zero Gradients", 100.0 * status.zero_share());
        }
    }))
}

#[cfg(not(feature = "report"))]
fn with_logs(_run: Trainer, _folder: &Path) -> Result<Trainer> {
    Err(
        "`--logs` needs the feature `report`: cargo run --release -p digits --features report"
            .into(),
    )
}

/// Better now than after the training.
fn check_outputs(args: &Args) -> Result<()> {
    if args.json.as_ref() == Some(&args.svg) {
        return Err(format!("--json and --svg are the same file, {}", args.svg.display()).into());
    }
    for path in [
        Some(&args.svg),
        args.json.as_ref(),
        args.checkpoint.as_ref(),
    ] {
        path.map_or(Ok(()), |path| check_writable(path))?;
    }
    Ok(())
}

/// A new start, or the state in the checkpoint.
fn begin(args: &Args, device: &Device) -> Result<(Progress, Option<Trainer>)> {
    let Some(path) = &args.resume else {
        let progress = Progress {
            seed: args.seed.unwrap_or(SEED),
            epochs: args.epochs.unwrap_or(EPOCHS) as usize,
            done: Vec::new(),
            current: None,
        };
        return Ok((progress, None));
    };
    let (progress, trainer) = checkpoint::load(path, device)?;
    if args.seed.is_some_and(|seed| seed != progress.seed) {
        return Err(format!("the checkpoint has --seed {}", progress.seed).into());
    }
    if args
        .epochs
        .is_some_and(|epochs| epochs as usize != progress.epochs)
    {
        return Err(format!("the checkpoint has --epochs {}", progress.epochs).into());
    }
    Ok((progress, trainer))
}

fn train(trainer: &mut Trainer, digits: &Digits, progress: &Progress, args: &Args) -> Result<()> {
    let style = ProgressStyle::with_template("{prefix:<18} {bar:40} {pos:>4}/{len} {msg}")?;
    let bar = ProgressBar::new(progress.epochs as u64).with_style(style);
    bar.set_prefix(trainer.run().name());
    bar.set_position(trainer.steps() as u64);
    while !trainer.is_done() {
        trainer.step(digits)?;
        let loss = trainer.history.loss.last().copied().unwrap_or(f32::NAN);
        bar.set_message(format!("loss {loss:.5}"));
        bar.inc(1);
        if let Some(path) = &args.checkpoint
            && trainer.steps().is_multiple_of(CHECKPOINT_INTERVAL)
        {
            checkpoint::save(path, progress.clone(), Some(trainer))?;
        }
    }
    bar.finish();
    Ok(())
}
