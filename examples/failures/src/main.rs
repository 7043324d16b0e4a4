//! The command line of the three failures.

use clap::Parser;
use failures::{Failure, Result, STEPS, run};
use std::path::PathBuf;

/// Three half-precision runs that fail, and how the audit and the flight recorder explain them
#[derive(Parser)]
struct Options {
    /// What is wrong with the run
    failure: Failure,
    /// Begin with this loss scale, as the audit advises
    #[arg(long)]
    scale: Option<f64>,
    /// Where pages and logs go [default: failures-run/<FAILURE>]
    #[arg(long)]
    folder: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let folder = options.folder.unwrap_or_else(|| {
        let name = format!("{:?}", options.failure).to_lowercase();
        PathBuf::from("failures-run").join(name)
    });
    let outcome = run(options.failure, options.scale, STEPS, &folder)?;
    let [first, last] = [outcome.losses.first(), outcome.losses.last()];
    println!(
        "{} steps, {} of them skipped; loss {:.4} at first, {:.4} at last",
        outcome.losses.len(),
        outcome.skipped,
        first.unwrap_or(&f32::NAN),
        last.unwrap_or(&f32::NAN),
    );
    if let Some(error) = &outcome.error {
        println!("ended: {error}");
    }
    println!(
        "\naudit of the first step, {}:\n\n{}",
        folder.join("audit.html").display(),
        outcome.audit
    );
    for flight in &outcome.flights {
        println!("flight recorder: {}", flight.display());
    }
    Ok(())
}
