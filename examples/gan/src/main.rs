//! The command line: see `gan --help`.

use burn::tensor::Device;
use clap::Parser;
use digits::data::Digits;
use gan::{
    Result,
    report::{Summary, distance, drawing, table},
    training::{Run, Trainer},
};
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Teaches a network to draw digits: in f32, and in f16 with one loss scale for both optimizers.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Where the runs begin: the same seed gives the same numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Steps of each run
    #[arg(long, default_value_t = 800, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
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
    let device = Device::flex();
    let digits = Digits::load(&device)?;
    let real = &digits.test.images;
    let [count, _] = real.dims();
    let mut summaries = Vec::new();
    let mut last = None;
    for run in Run::ALL {
        let mut trainer = Trainer::new(run, args.seed, &device)?;
        let before = distance(trainer.draw(count), real.clone());
        for _ in 0..args.steps {
            trainer.step(&digits)?;
        }
        let after = distance(trainer.draw(count), real.clone());
        summaries.push(Summary::new(run, [before, after], &trainer));
        last = Some(trainer.draw(6));
    }
    // A reader that has gone away is no reason to fail.
    let mut out = io::stdout();
    let _ = writeln!(out, "{}", table(&summaries));
    if let Some(images) = last {
        let _ = writeln!(out, "\n{}", drawing(images));
    }
    Ok(())
}
