//! Rows of the tables and of the JSON file.

use std::path::Path;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use crate::{Times, sets::Set};

/// Ratios are this row's time over the other's; absent if it was not measured.
#[derive(Serialize)]
pub struct Row {
    backend: String,
    set: &'static str,
    dtype: &'static str,
    op: &'static str,
    seconds: f64,
    /// Of the fastest run: on a busy machine it says more than the median does.
    least_seconds: f64,
    bytes: u64,
    gb_per_s: f64,
    /// To an out-of-place copy of the same gradients, for casts and optimizers of as many bytes as they move, in this run.
    copy_ratio: Option<f64>,
    /// To the same job in Burn's operations, in this run.
    composed_ratio: Option<f64>,
    /// To torch's unscaling, which measures no norm, or to its fused optimizer.
    torch_ratio: Option<f64>,
    /// To torch's unscaling followed by its clipping by norm.
    torch_clip_ratio: Option<f64>,
    launches: Option<u32>,
    reads: u32,
}

impl Row {
    pub fn of(
        backend: &str,
        set: &Set,
        dtype: DType,
        times: &[Times],
        torch: Option<&Torch>,
    ) -> Vec<Row> {
        let seconds = |job: &str| {
            times
                .iter()
                .find(|t| t.job == job)
                .map(|t| median(&t.seconds))
        };
        let (dtype, size) = match dtype {
            DType::F16 => ("f16", 2),
            DType::BF16 => ("bf16", 2),
            _ => ("f32", 4),
        };
        let row = |times: &Times| {
            let own = median(&times.seconds);
            // What has to be moved: composed operations move it more than once.
            let (bytes, composed) = match times.job {
                // Gradient, parameter and velocity; with Adam both moments. All but the gradient are also written.
                "sgd" => (size + 16, None),
                "adam" | "adamw" => (size + 24, None),
                // Unscaled, and then multiplied.
                "clip" => (4 * size, None),
                "unscale_in_place" => (2 * size, seconds("composed")),
                "unscale" => (size + 4, seconds("composed")),
                "inspect" => (size, seconds("composed_inspect")),
                "histogram" => (size, None),
                // One side is f32, the other half.
                "scaled_cast" => (6, seconds("composed_cast")),
                "composed_cast" => (6, None),
                "composed" => (size + 4, None),
                "composed_inspect" => (size, None),
                _ => (2 * size, None),
            };
            let (alike, with_clip) = match times.job {
                "unscale_in_place" | "unscale" => (Some("unscale"), Some("unscale_clip")),
                "clip" => (None, Some("unscale_clip")),
                "sgd" | "adam" | "adamw" => (Some(times.job), None),
                _ => (None, None),
            };
            let torch = |op: Option<&str>| {
                Some(own / torch?.seconds(set.name, dtype, op?, set.elements())?)
            };
            // A copy moves `2 * size`. What moves others than the gradients is compared with a copy of as many bytes.
            let copied = match times.job {
                "scaled_cast" | "composed_cast" | "sgd" | "adam" | "adamw" => {
                    bytes as f64 / (2 * size) as f64
                }
                _ => 1.0,
            };
            let bytes = bytes * set.elements() as u64;
            Row {
                backend: backend.to_owned(),
                set: set.name,
                dtype,
                op: times.job,
                seconds: own,
                least_seconds: times.seconds.iter().copied().fold(f64::INFINITY, f64::min),
                bytes,
                gb_per_s: bytes as f64 / own / 1e9,
                copy_ratio: seconds("copy")
                    .filter(|_| times.job != "copy")
                    .map(|other| own / (other * copied)),
                composed_ratio: composed.map(|other| own / other),
                torch_ratio: torch(alike),
                torch_clip_ratio: torch(with_clip),
                launches: times.launches,
                reads: times.reads,
            }
        };
        times.iter().map(row).collect()
    }

    pub fn print(&self) {
        let ratio =
            |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.3}"));
        println!(
            "{:6} {:17} {:>10.1} {:>10.3} {:>7.1} {:>7} {:>9} {:>7} {:>11} {:>8} {:>5}",
            self.dtype,
            self.op,
            self.bytes as f64 / 1e6,
            self.seconds * 1e3,
            self.gb_per_s,
            ratio(self.copy_ratio),
            ratio(self.composed_ratio),
            ratio(self.torch_ratio),
            ratio(self.torch_clip_ratio),
            self.launches
                .map_or_else(|| "-".to_owned(), |count| count.to_string()),
            self.reads,
        );
    }
}

pub fn header() {
    println!(
        "{:6} {:17} {:>10} {:>10} {:>7} {:>7} {:>9} {:>7} {:>11} {:>8} {:>5}",
        "dtype",
        "op",
        "MB",
        "ms",
        "GB/s",
        "/copy",
        "/composed",
        "/torch",
        "/torch clip",
        "launches",
        "reads"
    );
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

/// What torch_peer.py prints.
#[derive(Deserialize)]
pub struct Torch {
    /// `cpu` or `cuda`, which is what torch calls ROCm too.
    device: String,
    rows: Vec<TorchRow>,
}

#[derive(Deserialize)]
struct TorchRow {
    set: String,
    dtype: String,
    op: String,
    elements: usize,
    seconds: f64,
}

impl Torch {
    pub fn load(file: &Path) -> Result<Self, String> {
        let error = |reason: String| format!("{}: {reason}", file.display());
        let text = std::fs::read_to_string(file).map_err(|e| error(e.to_string()))?;
        serde_json::from_str(&text).map_err(|e| error(e.to_string()))
    }

    /// Refuses times of another device than the backend's: they say nothing about it.
    pub fn check(&self, backend: &str) -> Result<(), String> {
        let device = match backend {
            "flex" | "cpu" => Some("cpu"),
            "cuda" | "rocm" => Some("cuda"),
            _ => None,
        };
        match device == Some(self.device.as_str()) {
            true => Ok(()),
            false => Err(format!(
                "torch ran on {}, which is not the device of {backend}",
                self.device
            )),
        }
    }

    fn seconds(&self, set: &str, dtype: &str, op: &str, elements: usize) -> Option<f64> {
        let same = |row: &&TorchRow| {
            row.set == set && row.dtype == dtype && row.op == op && row.elements == elements
        };
        self.rows.iter().find(same).map(|row| row.seconds)
    }
}

#[derive(Serialize)]
pub struct File<'a> {
    pub rows: &'a [Row],
}
