//! What a run has left in its folder.

use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, fs, io};

use crate::error::ReportError;
use crate::flight::{Recorded, read_steps};

/// Series that a metric and a flight recorder know alike.
const LOSS_SCALE: &str = "Loss Scale";
const NORM: &str = "Gradient Norm";
const ZEROS: &str = "Zero Gradients";
const STEP_TIME: &str = "Step Time, ms";

/// Values at steps.
pub(crate) type Series = Vec<(f64, f64)>;

/// Values and their weights: none of a line that cannot be read, so that the others keep their places.
type Values = Vec<Option<(f64, f64)>>;

/// One run.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// The name of its folder, with what tells it from the others.
    pub(crate) name: String,
    pub(crate) steps: u64,
    /// The metrics by name: "Train Loss", "Valid Loss", "Loss Scale".
    pub(crate) series: BTreeMap<String, Series>,
    /// The steps that were skipped.
    pub(crate) skips: Vec<f64>,
    pub(crate) knows_skips: bool,
    /// Set where a step may have been skipped that cannot be read.
    pub(crate) may_miss_skips: bool,
    /// A description of what cannot be read.
    pub(crate) unread: Vec<String>,
    /// Counts by exponent.
    pub(crate) exponents: Vec<(f64, Vec<(i32, u64)>)>,
}

impl Logs {
    /// Reads the logs of a folder, without a name.
    pub(crate) fn read(folder: &Path) -> Result<Self, ReportError> {
        let mut logs = Self::default();
        if !folder.is_dir() {
            return Err(ReportError::file(folder, "there is no such folder"));
        }
        logs.read_learner(folder)?;
        let recorded = read_steps(&folder.join("steps.jsonl"))?;
        if !recorded.steps.is_empty() {
            logs.take(recorded);
        }
        if logs.series.is_empty() {
            let reason =
                "holds no run: neither the logs of a Learner (train/epoch-1/) nor steps.jsonl";
            return Err(ReportError::file(folder, reason));
        }
        logs.steps = logs.steps.max(logs.last_train_step());
        Ok(logs)
    }

    fn last_train_step(&self) -> u64 {
        let series = self.series.iter();
        let train = series.filter(|(name, _)| !name.starts_with("Valid"));
        let lasts = train.filter_map(|(_, series)| series.last());
        lasts.map(|(step, _)| *step as u64).max().unwrap_or(0)
    }

    fn add(&mut self, name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) {
        self.series.entry(name.into()).or_default().extend(points);
    }

    /// The metrics of an epoch of training, of so many batches, after so many of those before.
    fn add_epoch(&mut self, mut metrics: BTreeMap<String, Values>, before: usize, batches: usize) {
        let steps = |count| places(count, batches).map(|at| before as f64 + at);
        let place = |values: Values| {
            let points = steps(values.len()).zip(values);
            points.filter_map(|(step, value)| Some((step, value?.0)))
        };
        let skipped = metrics.remove("Skipped Steps");
        self.knows_skips |= skipped.is_some();
        let skipped = skipped.unwrap_or_default();
        let is_sure = skipped.iter().all(Option::is_some);
        self.may_miss_skips |= !is_sure;
        let is_skip = |value: &Option<(f64, f64)>| value.is_some_and(|(skipped, _)| skipped > 0.0);
        let (skips, taken): (Vec<_>, Vec<_>) = steps(skipped.len())
            .zip(skipped)
            .partition(|(_, value)| is_skip(value));
        self.skips.extend(skips.into_iter().map(|(step, _)| step));
        for (name, values) in metrics {
            match name.as_str() {
                // Which steps have one, nobody can say.
                NORM if !is_sure && values.len() != taken.len() => {}
                // Burn writes no line where there is no norm: in a step that is skipped.
                NORM if values.len() <= taken.len() => {
                    let norms = taken.iter().zip(values);
                    let known =
                        |((step, _), norm): (&(f64, _), Option<(f64, f64)>)| Some((*step, norm?.0));
                    self.add(name, norms.filter_map(known));
                }
                LOSS_SCALE | NORM | ZEROS => self.add(name, place(values)),
                _ => self.add(format!("Train {name}"), place(values)),
            }
        }
    }

    /// The metrics of a `Learner`: a file for each, of each epoch and split. Those of a validation are shown where their epoch ends.
    fn read_learner(&mut self, folder: &Path) -> Result<(), ReportError> {
        let mut ends = BTreeMap::new();
        let mut step = 0;
        for (epoch, files) in epochs(&folder.join("train"))? {
            let mut metrics = BTreeMap::new();
            for (name, path) in files {
                metrics.insert(name, self.values(folder, &path)?);
            }
            let longest = metrics.values().map(Vec::len).max().unwrap_or(0);
            self.add_epoch(metrics, step, longest);
            step += longest;
            ends.insert(epoch, step);
        }
        for (epoch, files) in epochs(&folder.join("valid"))? {
            let at = ends.get(&epoch).copied().unwrap_or(epoch);
            for (name, path) in files {
                let values = self.values(folder, &path)?;
                let values: Vec<_> = values.into_iter().flatten().collect();
                let sum: f64 = values.iter().map(|(value, weight)| value * weight).sum();
                let count: f64 = values.iter().map(|(_, weight)| weight).sum();
                if count > 0.0 {
                    self.add(format!("Valid {name}"), [(at as f64, sum / count)]);
                }
            }
        }
        Ok(())
    }

    /// Values and their weights. The last line of an epoch, its summary, is none of a step. A file that has text is not that of a number.
    fn values(&mut self, folder: &Path, path: &Path) -> Result<Values, ReportError> {
        let bytes = fs::read(path).map_err(|error| ReportError::file(path, error))?;
        let text = String::from_utf8_lossy(&bytes);
        let steps = text.lines().filter(|line| !line.ends_with(",final"));
        let values: Values = steps.map(value).collect();
        let unread = values.iter().filter(|value| value.is_none()).count();
        if unread == values.len() {
            return Ok(Values::new());
        }
        if unread > 0 {
            let file = path.strip_prefix(folder).unwrap_or(path).display();
            let lines = if unread == 1 { "line" } else { "lines" };
            self.unread.push(format!("{unread} {lines} of `{file}`"));
        }
        Ok(values)
    }

    /// The steps of a flight recorder, which know more of each than a metric: a series of theirs replaces a metric's.
    fn take(&mut self, Recorded { steps, missing }: Recorded) {
        self.knows_skips = true;
        self.may_miss_skips = missing > 0;
        if missing > 0 {
            let steps = if missing == 1 { "step" } else { "steps" };
            self.unread
                .push(format!("{missing} {steps} in `steps.jsonl`"));
        }
        self.skips.clear();
        let mut all = std::mem::take(&mut self.series);
        for line in steps {
            let step = line.step as f64;
            self.steps = self.steps.max(line.step);
            if line.is_skipped() {
                self.skips.push(step);
            }
            let norm = line.norm.filter(|_| line.outcome == "stepped");
            let of_step = [
                (LOSS_SCALE, line.loss_scale),
                (NORM, norm),
                (ZEROS, line.zero_share.map(|share| 100.0 * share)),
                (STEP_TIME, line.seconds.map(|seconds| 1e3 * seconds)),
            ];
            for (name, value) in of_step {
                if let Some(value) = value {
                    self.add(name, [(step, value)]);
                }
            }
            for (name, value) in line.notes {
                let name = match name.as_str() {
                    "loss" => "Train Loss".to_string(),
                    _ => name,
                };
                self.add(name, [(step, value.unwrap_or(f64::NAN))]);
            }
            if !line.exponents.is_empty() {
                self.exponents.push((step, line.exponents));
            }
        }
        all.append(&mut self.series);
        self.series = all;
    }

    /// The loss scale of a step; 1 if it is not known.
    pub(crate) fn scale_at(&self, step: f64) -> f64 {
        let scales = self.series.get(LOSS_SCALE).map_or(&[][..], Vec::as_slice);
        let after = scales.partition_point(|(at, _)| *at <= step);
        let found = after.checked_sub(1).and_then(|index| scales.get(index));
        found.or(scales.first()).map_or(1.0, |(_, scale)| *scale)
    }
}

/// The folders of epochs, by number, and the files of each with the names of their metrics.
fn epochs(folder: &Path) -> Result<BTreeMap<usize, Vec<(String, PathBuf)>>, ReportError> {
    let mut epochs = BTreeMap::new();
    for path in entries(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = name.strip_prefix("epoch-");
        let Some(epoch) = number.and_then(|number| number.parse().ok()) else {
            continue;
        };
        let mut files = entries(&path)?;
        files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
        files.sort();
        let files = files.into_iter().map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            (name.replace('_', " "), path)
        });
        epochs.insert(epoch, files.collect());
    }
    Ok(epochs)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect()),
    };
    entries.map_err(|error| ReportError::file(folder, error))
}

/// A value and its weight; none of a line that cannot be read.
fn value(line: &str) -> Option<(f64, f64)> {
    let (value, weight) = line.split_once(',').unwrap_or((line, "1"));
    Some((value.parse().ok()?, weight.parse().ok()?))
}

/// The batches of an epoch at which the lines of a metric were written: where the gradients of several are accumulated, at the last of them. A
/// metric that has fewer lines for another reason is spread over the epoch.
fn places(lines: usize, batches: usize) -> impl Iterator<Item = f64> {
    let every = batches.div_ceil(lines.max(1)).max(1);
    let accumulates = batches.div_ceil(every) == lines;
    (1..=lines).map(move |line| match accumulates {
        true => (line * every).min(batches) as f64,
        false => (line * batches / lines) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::{Logs, Recorded};

    #[test]
    fn a_metric_without_a_line_for_each_batch_stands_at_its_steps() {
        let metrics = [
            ("Loss Scale", &[8.0; 6][..]),
            ("Skipped Steps", &[0.0, 100.0, 0.0]),
            ("Gradient Norm", &[5.0, 6.0]),
        ];
        let weighted = |values: &[f64]| values.iter().map(|value| Some((*value, 1.0))).collect();
        let metrics = metrics.map(|(name, values)| (name.to_string(), weighted(values)));
        let mut logs = Logs::default();
        logs.add_epoch(metrics.into(), 10, 6);
        assert_eq!(logs.skips, [14.0]);
        assert_eq!(logs.series["Gradient Norm"], [(12.0, 5.0), (16.0, 6.0)]);
    }

    #[test]
    fn a_window_ends_at_its_last_batch_and_other_lines_are_spread() {
        let places = |lines, batches| Vec::from_iter(super::places(lines, batches));
        assert_eq!(places(3, 10), [4.0, 8.0, 10.0]);
        assert_eq!(places(4, 4), [1.0, 2.0, 3.0, 4.0]);
        let [first, .., last] = places(51, 100)[..] else {
            panic!()
        };
        assert_eq!((first, last), (1.0, 100.0));
        assert!(places(0, 5).is_empty());
    }

    #[test]
    fn what_a_recorder_has_noted_replaces_a_metric() {
        let mut logs = Logs::default();
        logs.add("Train Loss", [(1.0, 9.0), (2.0, 9.0)]);
        let step = r#"{"step":1,"outcome":"guarded","notes":{"loss":3.0}}"#;
        let steps = vec![serde_json::from_str(step).unwrap()];
        logs.take(Recorded { steps, missing: 0 });
        assert_eq!(logs.series["Train Loss"], [(1.0, 3.0)]);
        // As in the metric of a `Learner`.
        assert_eq!(logs.skips, [1.0]);
    }
}
