//! The statistics of the originals, step by step.

use super::{Guard, GuardState, LOSS, NORM, Usual, Verdict};
use serde::Deserialize;
use serde_json::Value;
use std::{fs, path::Path};

#[derive(Deserialize)]
struct File {
    traces: Vec<serde_json::Map<String, Value>>,
}

/// Every trace in the files of a prefix, with a name for messages.
fn traces(prefix: &str) -> Vec<(String, serde_json::Map<String, Value>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = names.filter(|file| {
        let name = file.file_name().into_string().unwrap();
        name.starts_with(&format!("{prefix}.")) && name.ends_with(".json")
    });
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(file.path()).unwrap();
        let content: File = serde_json::from_str(&text).unwrap();
        for trace in content.traces {
            found.push((trace["id"].as_str().unwrap().to_string(), trace));
        }
    }
    assert!(!found.is_empty(), "no traces of {prefix}");
    found
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.parse().unwrap()),
        value => Some(value.as_f64().unwrap()),
    }
}

fn column(trace: &serde_json::Map<String, Value>, name: &str) -> Vec<Option<f64>> {
    let values = trace[name].as_array();
    values.map_or_else(Vec::new, |values| values.iter().map(number).collect())
}

fn count(value: &Value) -> u32 {
    value.as_u64().unwrap().try_into().unwrap()
}

#[track_caller]
fn close(ours: Option<f64>, theirs: Option<f64>, relative: f64, absolute: f64, at: &str) {
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        assert_eq!(ours, theirs, "{at}");
        return;
    };
    let same = ours == theirs
        || (ours.is_nan() && theirs.is_nan())
        || (ours - theirs).abs() <= (relative * theirs.abs()).max(absolute);
    assert!(same, "{at}: {ours} for {theirs}");
}

#[test]
fn parity_zclip() {
    for (id, trace) in traces("zclip") {
        let params = &trace["params"];
        let float = |name: &str| params[name].as_f64().unwrap();
        let percentile = params["mode"] == "percentile";
        let to_mean = !percentile && params["clip_option"] == "mean";
        let max_norm = number(&params["max_grad_norm"]);
        let guard = Guard::ZClip {
            alpha: float("alpha"),
            z_thresh: float("z_thresh"),
            eps: if percentile { 0.0 } else { float("eps") },
            warmup_steps: count(&params["warmup_steps"]),
            falloff: match (percentile, to_mean) {
                (true, _) => 0.0,
                (_, true) => f64::INFINITY,
                _ => 1.0,
            },
            clip_factor: match percentile || to_mean {
                true => 1.0,
                false => float("clip_factor"),
            },
            skip_update_on_spike: params["skip_update_on_spike"] == true,
            original: true,
        };
        let mut state = GuardState::new(guard).unwrap();
        let [norms, limits, after, means, vars] =
            ["norm", "clip_val", "grad_after", "mean", "var"].map(|name| column(&trace, name));
        for (step, norm) in norms.iter().map(|norm| norm.unwrap()).enumerate() {
            let at = format!("{id}, step {step}");
            let limit = state.clone().limit(norm).map(|(limit, _)| limit);
            close(limit, limits[step], 1e-12, 0.0, &format!("{at}, limit"));
            let verdict = state.judge(None, norm);
            let average = state.average;
            let mean = average.map(|average| average.mean);
            close(mean, means[step], 1e-12, 0.0, &format!("{at}, mean"));
            let var = average.map(|average| average.var);
            close(var, vars[step], 1e-9, 0.0, &format!("{at}, var"));
            // As `GradientClip::GlobalNorm` beside a guard: the smaller of both coefficients.
            let clip = max_norm.map_or(1.0, |max| (max / (norm + 1e-6)).min(1.0));
            let factor = match verdict {
                Verdict::Clip { factor, .. } => factor.min(clip),
                Verdict::Reject { .. } => 0.0,
                Verdict::Apply | Verdict::Wait => clip,
            };
            let grad = f64::from((norm * factor) as f32);
            close(Some(grad), after[step], 2e-7, 0.0, &at);
        }
    }
}

#[test]
fn parity_olmo_skipstep() {
    for (id, trace) in traces("olmo_skipstep") {
        let params = &trace["params"];
        let length = count(&params["rolling_interval_length"]);
        let guard = Guard::SkipStep {
            rolling_interval_length: length,
            sigma_factor: params["sigma_factor"].as_f64().unwrap(),
            original: true,
        };
        let mut state = GuardState::new(guard).unwrap();
        let kinds = [
            (LOSS, "loss", "loss_mean", "loss_std"),
            (NORM, "grad_norm", "grad_norm_mean", "grad_norm_std"),
        ];
        let factors = column(&trace, "step_factor");
        for (step, factor) in factors.iter().enumerate() {
            let at = format!("{id}, step {step}");
            let mut held = false;
            for (kind, name, mean_name, std_name) in kinds {
                let values = column(&trace, name);
                let Some(value) = values.get(step).copied().flatten() else {
                    continue;
                };
                let series = match kind {
                    LOSS => &mut state.losses,
                    _ => &mut state.norms,
                };
                held |= series.reject(&guard, kind, value).is_some();
                let (means, stds) = (column(&trace, mean_name), column(&trace, std_name));
                let Some(their_mean) = means[step] else {
                    continue;
                };
                let Usual { mean, std } = series.before();
                if !their_mean.is_finite() {
                    // By the position of the infinity it is infinite or NaN.
                    assert!(!mean.is_finite(), "{at}, {mean_name}: {mean}");
                    continue;
                }
                let at = format!("{at}, {name}");
                close(Some(mean), Some(their_mean), 1e-6, 0.0, &at);
                close(Some(std), stds[step], 1e-4, 1e-6, &at);
            }
            assert_eq!(if held { 0.0 } else { 1.0 }, factor.unwrap(), "{at}");
        }
    }
}

#[test]
fn parity_llmc_outlier() {
    for (id, trace) in traces("llmc_outlier") {
        let params = &trace["params"];
        let float = |name: &str| params[name].as_f64().unwrap();
        let window = count(&params["window"]);
        let guard = Guard::Outlier {
            window,
            skip_update_lossz: float("skip_update_lossz"),
            skip_update_gradz: float("skip_update_gradz"),
            original: true,
        };
        // Both thresholds may be off there.
        let mut state = GuardState::new(guard).unwrap();
        let [losses, norms, z_losses, z_norms, sums, squares] = [
            "loss",
            "grad_norm",
            "zloss",
            "zgrad",
            "grad_sum",
            "grad_sum_sq",
        ]
        .map(|name| column(&trace, name));
        let actions = trace["action"].as_array().unwrap();
        for (step, action) in actions.iter().enumerate() {
            let at = format!("{id}, step {step}");
            let (loss, norm) = (losses[step].unwrap(), norms[step].unwrap());
            let z = state.clone().losses.z_score(loss, window, true);
            close(Some(z), z_losses[step], 0.0, 0.0, &format!("{at}, loss"));
            let z = state.clone().norms.z_score(norm, window, true);
            close(Some(z), z_norms[step], 0.0, 0.0, &format!("{at}, norm"));
            let by_loss = state.clone().losses.reject(&guard, LOSS, loss);
            let verdict = state.judge(Some(loss), norm);
            let series = &state.norms;
            close(Some(series.sum), sums[step], 0.0, 0.0, &at);
            close(Some(series.sum_sq), squares[step], 0.0, 0.0, &at);
            let expected = match (verdict, by_loss) {
                (Verdict::Reject { .. }, Some(_)) => "skip_loss",
                (Verdict::Reject { .. }, None) => "skip_grad",
                _ => "step",
            };
            assert_eq!(action.as_str().unwrap(), expected, "{at}");
        }
    }
}
