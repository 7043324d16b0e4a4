//! Writes the report of one run, or of several beside each other.

use clap::Parser;
use std::{path::PathBuf, process::ExitCode};

/// Reads what Burn's Learner and the flight recorder of burn-amp have left, and writes one HTML page.
#[derive(Parser)]
struct Options {
    /// Folders of runs; they are shown beside each other
    #[arg(required = true)]
    folders: Vec<PathBuf>,
    /// The page [default: report.html in the first folder]
    #[arg(long)]
    page: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Options { mut folders, page } = Options::parse();
    // A pattern like `runs/*` finds pages beside the runs.
    if folders.iter().any(|path| path.is_dir()) {
        for file in folders.extract_if(.., |path| path.is_file()) {
            eprintln!("{} is left out: it is a file", file.display());
        }
    }
    let page = page.unwrap_or_else(|| folders[0].join("report.html"));
    match burn_amp_report::report(&folders, &page) {
        Ok(()) => {
            println!("{}", page.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
