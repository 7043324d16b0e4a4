//! The command line: see `programs --help`.

use burn::tensor::{Device, FloatDType};
use clap::{Parser, ValueEnum};
use programs::{Options, Result, cnn, gpt, regression, transformer, wgan};
use std::{path::PathBuf, process::ExitCode};

/// Five programs of the kinds that Burn's users write, in f32 and in half precision.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Which one
    #[arg(value_enum)]
    program: Program,
    /// What it computes in; the plain f32 program if left out
    #[arg(long, value_enum)]
    precision: Option<Precision>,
    /// Passes over the training data
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    epochs: Option<u32>,
    /// Where the run begins: the same seed gives the same run
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where the model and the metrics go; a folder among the temporary files if left out
    #[arg(long)]
    folder: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Program {
    /// A convolutional network with BatchNorm and early stopping, in a Learner
    Cnn,
    /// A Transformer with a warm-up of the learning rate, in a Learner
    Transformer,
    /// A regression, in a loop
    Regression,
    /// A Wasserstein GAN with two optimizers, in a loop
    Wgan,
    /// A character GPT with gradient accumulation, in a loop
    Gpt,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Precision {
    F32,
    F16,
    Bf16,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    let name = format!("{:?}", args.program).to_lowercase();
    let temporary = || std::env::temp_dir().join("burn-amp-programs").join(name);
    let options = Options {
        precision: args.precision.map(|precision| match precision {
            Precision::F32 => FloatDType::F32,
            Precision::F16 => FloatDType::F16,
            Precision::Bf16 => FloatDType::BF16,
        }),
        epochs: args.epochs.map(|epochs| epochs as usize),
        seed: args.seed,
        folder: args.folder.unwrap_or_else(temporary),
        device: Device::flex(),
    };
    std::fs::create_dir_all(&options.folder)?;
    match args.program {
        Program::Cnn => cnn::run(&options)?,
        Program::Transformer => transformer::run(&options)?,
        Program::Regression => regression::run(&options)?,
        Program::Wgan => wgan::run(&options)?,
        Program::Gpt => gpt::run(&options)?,
    }
    println!("the model is in {}", options.folder.display());
    Ok(())
}
