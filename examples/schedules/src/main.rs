//! The command line: see `schedules --help`.

use burn::tensor::Device;
use clap::Parser;
use schedules::{
    Result,
    choices::{self, Choice},
    program::{DigitsProgram, GptProgram, Program},
    report,
    training::{History, Optimizer, Settings, train, train_gan, train_with_spikes},
};
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Compares every schedule of the loss scale on three programs, and every guard against five planted spikes.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Steps of each run
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(60..=100_000))]
    steps: u64,
    /// Finite steps in a row before a scale grows by PyTorch's rule. Short, since runs are
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    growth_interval: u32,
    /// Where the runs begin: the same seed gives the same numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Only the programs whose name contains this
    #[arg(long, default_value = "")]
    only: String,
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
    let settings = Settings {
        steps: args.steps as usize,
        seed: args.seed,
    };
    let digits = DigitsProgram::new(&device)?;
    compare(&digits, settings, args)?;
    compare(&GptProgram::new(settings, &device), settings, args)?;
    if "gan".contains(&args.only) {
        compare_schedules("gan", args, |choice| train_gan(&digits.0, choice, settings))?;
    }
    Ok(())
}

fn compare_schedules(
    program: &str,
    args: &Args,
    train: impl Fn(&Choice) -> Result<History>,
) -> Result<()> {
    let mut runs = Vec::new();
    for choice in choices::schedules(args.growth_interval) {
        progress(program, choice.name);
        runs.push((choice.name, train(&choice)?));
    }
    show(&report::schedules(program, &runs));
    Ok(())
}

fn compare<P: Program>(program: &P, settings: Settings, args: &Args) -> Result<()> {
    if !program.name().contains(&args.only) {
        return Ok(());
    }
    compare_schedules(program.name(), args, |choice| {
        train(program, choice, settings)
    })?;

    let spikes = choices::spikes(settings.steps);
    for optimizer in [Optimizer::Adam, Optimizer::Descent] {
        if optimizer == Optimizer::Descent && program.descent_rate().is_none() {
            continue;
        }
        let run = |guard, spikes| train_with_spikes(program, optimizer, guard, spikes, settings);
        progress(program.name(), "without spikes");
        let mut runs = vec![("without spikes", run(None, &[])?)];
        for (name, guard) in choices::guards() {
            progress(program.name(), name);
            runs.push((name, run(guard, &spikes)?));
        }
        let title = format!("{}, {}", program.name(), optimizer.name());
        show(&report::guards(&title, &runs, &spikes));
    }
    Ok(())
}

fn progress(program: &str, run: &str) {
    eprint!("\r{:<60}\r", format!("{program}: {run} "));
}

/// A reader that has gone away is no reason to fail.
fn show(text: &str) {
    eprint!("\r{:<60}\r", "");
    let _ = writeln!(io::stdout(), "{text}\n");
}
