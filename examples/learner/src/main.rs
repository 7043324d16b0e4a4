//! The command line: see `learner --help`.

use burn::tensor::FloatDType;
use clap::{Parser, ValueEnum};
use digits::backend::Backend;
use learner::{
    Result,
    training::{Settings, train},
};
use std::{path::PathBuf, process::ExitCode};

/// Trains a network on handwritten digits with Burn's Learner: dashboard, metrics, checkpoints.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where metric files, log and checkpoints go
    #[arg(long, value_name = "FOLDER", default_value = "digits-run")]
    folder: PathBuf,
    /// Epochs in all
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    epochs: u32,
    /// Where the run begins: the same seed gives the same run
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Go on from the checkpoint of this epoch; give the same --folder, --epochs, --seed and --precision as before
    #[arg(long, value_name = "EPOCH", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    resume: Option<u32>,
    /// The device
    #[arg(long, value_enum, default_value = "flex")]
    backend: Backend,
    /// What the network computes in; there is a loss scale in f16
    #[arg(long, value_enum, default_value = "f16")]
    precision: Precision,
    /// No dashboard, lines of text instead
    #[arg(long)]
    no_tui: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Precision {
    F32,
    F16,
    Bf16,
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
    if args.resume.is_some_and(|epoch| epoch >= args.epochs) {
        return Err(format!("--resume must be less than --epochs, {}", args.epochs).into());
    }
    let settings = Settings {
        folder: args.folder.clone(),
        seed: args.seed,
        epochs: args.epochs as usize,
        resume: args.resume.map(|epoch| epoch as usize),
        precision: match args.precision {
            Precision::F32 => FloatDType::F32,
            Precision::F16 => FloatDType::F16,
            Precision::Bf16 => FloatDType::BF16,
        },
        dashboard: !args.no_tui,
    };
    let (model, interrupted) = train(&settings, &args.backend.device()?)?;
    if let Some(stop) = interrupted {
        let reason = stop.reason.unwrap_or_else(|| "on request".to_string());
        println!("stopped early: {reason}");
    }
    let scaler = model.scaler();
    println!(
        "{} steps, {} of them skipped, loss scale {}; files in {}",
        scaler.counters().steps(),
        scaler.counters().skipped(),
        f64::from(scaler.loss_scale()),
        settings.folder.display()
    );
    Ok(())
}
