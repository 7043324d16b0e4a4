//! The table and the JSON file.

use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Result,
    training::{History, Run},
};

/// The numbers of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How it computed.
    pub name: String,
    /// The share of the test samples that it gets right, from 0 to 1.
    pub test_accuracy: f64,
    /// The loss before the last step.
    pub final_loss: f32,
    /// The share of gradient values that were exactly zero, averaged over all steps.
    pub zero_gradient_share: f64,
    /// Steps skipped because of an overflow.
    pub skipped_steps: u64,
    /// The loss scale of the last step; 1 without scaling.
    pub final_scale: f32,
    /// Forward, backward and step, averaged over all steps.
    pub seconds_per_step: f64,
}

impl Summary {
    /// Sums up a run.
    pub fn new(run: Run, history: &History, test_accuracy: f64) -> Self {
        let steps = history.loss.len().max(1) as f64;
        Self {
            name: run.name().to_string(),
            test_accuracy,
            final_loss: history.loss.last().copied().unwrap_or(f32::NAN),
            zero_gradient_share: history.zero_share.iter().sum::<f64>() / steps,
            skipped_steps: history.skipped_steps,
            final_scale: history.scale.last().copied().unwrap_or(1.0),
            seconds_per_step: history.seconds / steps,
        }
    }
}

/// The runs as a table for the terminal.
pub fn table(runs: &[Summary]) -> String {
    let mut rows = vec![
        [
            "run",
            "test accuracy",
            "final loss",
            "zero gradients",
            "skipped steps",
            "final scale",
            "time per step",
        ]
        .map(String::from),
    ];
    rows.extend(runs.iter().map(|run| {
        [
            run.name.clone(),
            format!("{:.2} %", 100.0 * run.test_accuracy),
            format!("{:.5}", run.final_loss),
            format!("{:.1} %", 100.0 * run.zero_gradient_share),
            run.skipped_steps.to_string(),
            format!("2^{:.0}", run.final_scale.log2()),
            format!("{:.1} ms", 1e3 * run.seconds_per_step),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &[String; 7]| {
        let first = format!("{:<1$}", row[0], widths[0]);
        let cells = (1..row.len()).map(|column| format!("{:>1$}", row[column], widths[column]));
        std::iter::once(first)
            .chain(cells)
            .collect::<Vec<_>>()
            .join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Writes `{"runs": [..]}`.
///
/// # Errors
///
/// If the file cannot be written; names it.
pub fn write_json(runs: &[Summary], path: &Path) -> Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        runs: &'a [Summary],
    }
    write(path, &serde_json::to_string_pretty(&Report { runs })?)
}

/// Writes beside the file and renames, so that a reader never sees half of it. A link is followed.
///
/// # Errors
///
/// If the file cannot be written; names it.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let beside = beside(&target);
    fs::write(&beside, text)
        .and_then(|()| fs::rename(&beside, &target))
        .map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

/// Checks that [`write()`] will find a place for a file.
///
/// # Errors
///
/// If the path is no regular file, or nothing can be written beside it; names it.
pub fn check_writable(path: &Path) -> Result<()> {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if target.exists() && !target.is_file() {
        return Err(format!("cannot write {}: it is not a regular file", path.display()).into());
    }
    let beside = beside(&target);
    fs::write(&beside, "")
        .and_then(|()| fs::remove_file(&beside))
        .map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    beside.into()
}
