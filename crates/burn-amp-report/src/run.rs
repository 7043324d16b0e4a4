//! The report of a whole run, or of several beside each other.

mod logs;

use minijinja::{Value, context};
use std::{collections::BTreeSet, path::Path, path::PathBuf};

use crate::chart::{self, Line, Scale};
use crate::{error::ReportError, file, page};
use logs::{Logs, Series};

/// Reads what runs have left in their folders, and writes one page that shows them beside each other.
///
/// A folder holds what Burn's `Learner` logs (`train/epoch-1/Loss.log` and so on, the metrics of [`MixedPrecision::training`] among them), or
/// the `steps.jsonl` of a [`FlightRecorder`](crate::FlightRecorder), or both. The page has losses, the loss scale with its skips, norms, shares of zeros, step
/// times, every other metric that is there, and the exponents of gradients over time, if the recorder has counted them. It needs no network.
///
/// [`MixedPrecision::training`]: burn_amp_core::MixedPrecision
///
/// # Errors
///
/// [`ReportError::File`]: a folder holds no run or cannot be read, or the page cannot be written.
pub fn report(folders: &[impl AsRef<Path>], page: impl AsRef<Path>) -> Result<(), ReportError> {
    let folders: Vec<&Path> = folders.iter().map(AsRef::as_ref).collect();
    let runs = folders.iter().map(|folder| Logs::read(folder));
    let mut runs = runs.collect::<Result<Vec<_>, _>>()?;
    for (run, name) in runs.iter_mut().zip(names(&folders)) {
        run.name = name;
    }
    file::write(page.as_ref(), &render(&runs))
}

/// The folders' names, with as many of the folders around them as tell them apart.
fn names(folders: &[&Path]) -> Vec<String> {
    let whole = |path: &&Path| path.canonicalize().unwrap_or_else(|_| path.into());
    let paths: Vec<PathBuf> = folders.iter().map(whole).collect();
    let count = |parts| BTreeSet::from_iter(paths.iter().map(|path| end(path, parts))).len();
    let parts = (1..).find(|parts| count(*parts) == count(usize::MAX));
    let ends = paths.iter().map(|path| end(path, parts.unwrap_or(1)));
    ends.map(|end| end.display().to_string()).collect()
}

/// The last parts of a path; all of it if it has no more.
fn end(path: &Path, parts: usize) -> &Path {
    let around = path.ancestors().nth(parts);
    let end = around.and_then(|around| path.strip_prefix(around).ok());
    end.unwrap_or(path)
}

/// Points of a line: more would make the page large and show no more.
const POINTS: usize = 1000;

fn render(runs: &[Logs]) -> String {
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.series.keys()).collect();
    let mut names = Vec::from_iter(names);
    // What is looked at first.
    let rank = |name: &str| match name {
        name if name.contains("Loss Scale") => 1,
        name if name.contains("Loss") => 0,
        name if name.contains("Accuracy") => 2,
        name if name.contains("Gradient Norm") => 3,
        name if name.contains("Zero Gradients") => 4,
        name if name.contains("Step Time") => 5,
        _ => 6,
    };
    names.sort_by_key(|name| rank(name));
    let charts: Vec<String> = names.iter().filter_map(|name| draw(name, runs)).collect();
    let heats: Vec<_> = (runs.iter())
        .filter(|run| !run.exponents.is_empty())
        .map(|run| {
            let scale = |step: f64| run.scale_at(step).log2();
            let name = &run.name;
            let title = format!("{name}: share of gradient values by exponent, unscaled");
            chart::heat(&title, &run.exponents, scale)
        })
        .collect();
    let rows: Vec<Value> = runs.iter().map(row).collect();
    let context = context! {
        title => match runs {
            [run] => format!("Run {}", run.name),
            _ => "Runs beside each other".to_string(),
        },
        has_skips => runs.iter().any(|run| !run.skips.is_empty()),
        without_skips => without_skips(runs),
        unread => runs.iter().filter_map(unread).collect::<Vec<_>>(),
        rows,
        charts,
        heats,
    };
    page::render("run.html", context)
}

/// The runs that have logged that no step was skipped.
fn without_skips(runs: &[Logs]) -> Option<String> {
    let is_clean = |run: &&Logs| run.knows_skips && run.skips.is_empty() && !run.may_miss_skips;
    let clean = runs.iter().filter(is_clean);
    let names: Vec<_> = clean.map(|run| run.name.as_str()).collect();
    match (names.len(), runs.len()) {
        (0, _) => None,
        (1, 1) => Some("This is a run without skips.".to_string()),
        _ => Some(format!("Runs without skips: {}.", names.join(", "))),
    }
}

/// Describes what cannot be read of a run, if there is something.
fn unread(run: &Logs) -> Option<String> {
    let what = (!run.unread.is_empty()).then(|| run.unread.join(", "))?;
    let skips = if run.may_miss_skips {
        " Skips may be among them."
    } else {
        ""
    };
    Some(format!("{}: {what} cannot be read.{skips}", run.name))
}

fn draw(name: &str, runs: &[Logs]) -> Option<String> {
    let with: Vec<_> = (runs.iter().enumerate())
        .filter_map(|(color, run)| Some((color, run, run.series.get(name)?)))
        .collect();
    let lines: Vec<Line> = (with.iter())
        .map(|(color, run, series)| Line {
            name: run.name.clone(),
            color: *color,
            // What the others are compared with.
            is_dashed: *color == 0 && runs.len() > 1,
            points: thinned(series),
        })
        .collect();
    let scale = match name.contains("Loss Scale") {
        true => Scale::Binary,
        false if is_spread(&lines) => Scale::Log,
        false => Scale::Linear,
    };
    let skips: Vec<f64> = match scale {
        Scale::Binary => (with.iter())
            .flat_map(|(_, run, _)| run.skips.clone())
            .collect(),
        _ => Vec::new(),
    };
    chart::lines(name, unit(name), scale, &lines, &skips)
}

/// The unit of a series; none for a number without, and for what is not known.
fn unit(name: &str) -> &'static str {
    match name {
        "Zero Gradients" => return "%",
        "Step Time, ms" => return "ms",
        _ => {}
    }
    // Burn's metrics, which do not log theirs.
    let metric = name.strip_prefix("Train ");
    let metric = metric.or(name.strip_prefix("Valid ")).unwrap_or_default();
    let begins = |names: &[&str]| names.iter().any(|name| metric.starts_with(name));
    match metric {
        _ if begins(&SHARES) => "%",
        "Iteration Speed" => "iter/sec",
        _ => "",
    }
}

/// The beginnings of the names of Burn's metrics that are in percent.
const SHARES: [&str; 6] = [
    "Accuracy",
    "Top-K Accuracy",
    "Precision",
    "Recall",
    "Hamming Score",
    "CPU Usage",
];

/// Tells whether all values are above zero, and some far above others.
fn is_spread(lines: &[Line]) -> bool {
    let points = lines.iter().flat_map(|line| &line.points);
    let finite = points
        .map(|(_, value)| *value)
        .filter(|value| value.is_finite());
    let (low, high) = finite.fold((f64::MAX, 0f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    low > 0.0 && high > 20.0 * low
}

/// Thins points to as many as can be seen: the first of every so many, so that what is shown was measured.
fn thinned(series: &Series) -> Vec<(f64, f64)> {
    let every = series.len().div_ceil(POINTS).max(1);
    series.iter().copied().step_by(every).collect()
}

/// The figures of one run.
fn row(run: &Logs) -> Value {
    let last_of = |series: &Series| series.last().map(|(_, value)| *value);
    let last = |part: &str| {
        let mut series = run.series.iter().filter(|(name, _)| name.contains(part));
        series.find_map(|(_, series)| last_of(series))
    };
    let loss = |split: &str| {
        let mut names = [format!("{split} Loss"), format!("{split} loss")].into_iter();
        names.find_map(|name| last_of(run.series.get(&name)?))
    };
    let seconds = run.series.get("Step Time, ms").map(|series| {
        let mut times: Vec<f64> = series.iter().map(|(_, time)| *time).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    });
    context! {
        name => run.name,
        steps => run.steps,
        skipped => match (run.knows_skips, run.skips.len()) {
            (false, _) => "not logged".to_string(),
            (true, skips) if run.may_miss_skips => format!("at least {skips}"),
            (true, 0) => "none".to_string(),
            (true, skips) => skips.to_string(),
        },
        train => loss("Train").map(page::tiny),
        valid => loss("Valid").map(page::tiny),
        scale => last("Loss Scale").map(page::power),
        zeros => last("Zero Gradients"),
        time => seconds.flatten().map(|time| format!("{time:.1}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn folders_of_one_name_are_told_apart() {
        let names = |folders: [&str; 2]| super::names(&folders.map(Path::new));
        assert_eq!(names(["/a/f16", "/b/f32"]), ["f16", "f32"]);
        assert_eq!(names(["/a/run", "/b/run"]), ["a/run", "b/run"]);
        assert_eq!(names(["/a/run", "/a/run"]), ["run"; 2]);
    }
}
