//! The command line: see `gpt --help`.

use burn::tensor::Device;
use clap::Parser;
use gpt::{
    Result,
    lost::{lost, lost_words},
    model::{Gpt, Size},
    report::{self, Summary},
    text::{SONNETS, Starts, Text},
    training::{Run, Settings, Trainer},
};
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Tokens that the network sees at once.
const CONTEXT: u64 = 32;

/// Trains one GPT on Shakespeare's sonnets from one seed: in f32, in f16, and in f16 with loss scaling.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The runs, with commas between them
    #[arg(long, value_delimiter = ',', default_value = "f32,f16,f16-scaled")]
    precision: Vec<Run>,
    /// Steps of each run
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    steps: u64,
    /// Tokens of a batch: the loss is the mean over them
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u64).range(32..=1_048_576))]
    batch_tokens: u64,
    /// Values of a token in the network
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(2..=1024))]
    width: u64,
    /// Blocks of attention and feed-forward network
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    layers: u64,
    /// Adam's learning rate at the first step
    #[arg(long, default_value_t = 0.01)]
    learning_rate: f64,
    /// Where the runs begin: the same seed gives the same numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Log every step of each run to a folder in this one, for `burn-amp-report`
    #[arg(long, value_name = "FOLDER")]
    logs: Option<PathBuf>,
    /// Only measure what f16 loses of the gradients, before training
    #[arg(long)]
    only_gradients: bool,
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
    if !args.width.is_multiple_of(2) {
        return Err("--width is to be even: there are two heads".into());
    }
    if !args.batch_tokens.is_multiple_of(CONTEXT) {
        return Err(format!("--batch-tokens is to be a multiple of {CONTEXT}").into());
    }
    let settings = Settings {
        steps: args.steps as usize,
        batch_tokens: args.batch_tokens as usize,
        size: Size {
            context: CONTEXT as usize,
            width: args.width as usize,
            heads: 2,
            layers: args.layers as usize,
            tied: false,
        },
        learning_rate: args.learning_rate,
        seed: args.seed,
    };
    let device = Device::flex().autodiff();
    let text = Text::new(SONNETS);
    let sizes = [text.words.len(), text.train.len(), text.held_out.len()];
    let [words, train, held_out] = sizes;
    show(&format!(
        "{words} words; {train} tokens to train on, {held_out} held out"
    ));
    let before = settings.network(&text, &device);
    show_lost("before training", &before, &text, &settings)?;
    if args.only_gradients {
        return Ok(());
    }

    let mut summaries = Vec::new();
    let mut after = None;
    for run in &args.precision {
        let mut trainer = Trainer::new(*run, settings, &text, &device)?;
        if let Some(folder) = &args.logs {
            trainer = trainer.with_logs(&folder.join(run.name()))?;
        }
        for step in 1..=settings.steps {
            trainer.step(&text)?;
            let loss = trainer.losses.last().copied().unwrap_or(f32::NAN);
            eprint!("\r{:<18} step {step}: loss {loss:.3} ", run.name());
        }
        eprintln!();
        let held_out_loss = trainer.held_out_loss(&text);
        summaries.push(Summary::new(&trainer, held_out_loss));
        if *run == Run::F32 {
            after = Some(trainer.model);
        }
    }
    if let Some(after) = after {
        show_lost("after training in f32", &after, &text, &settings)?;
    }
    show(&format!("\n{}", report::runs(&summaries)));
    Ok(())
}

/// What f16 loses of one batch's gradients.
fn show_lost(when: &str, model: &Gpt, text: &Text, settings: &Settings) -> Result<()> {
    let batch = settings.batch(&mut Starts::new(settings.seed), text);
    let of = |run| lost(model, run, text, &batch, settings);
    let table = report::losses(&of(Run::F16)?, &of(Run::F16Scaled)?);
    let (words, probability) = lost_words(model, text, &batch, settings);
    show(&format!(
        "\nGradients of a batch of {} tokens, {when}:\n{table}\n\
         At the logits, f16 without scale loses {:.1} % of the values: words that have {:.1} % of the probability",
        settings.batch_tokens,
        100.0 * words,
        100.0 * probability,
    ));
    Ok(())
}

/// A reader that has gone away is no reason to fail.
fn show(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
