//! The statistics of the originals, step by step.

use super::{Guard, GuardState, Kind, Usual, Verdict};
use burn_amp_tests::{number, optional, traces};
use serde_json::Value;

/// What a trace has in this column at a step.
fn at(trace: &Value, step: usize, name: &str) -> Option<f64> {
    optional(&trace[name][step])
}

/// Asserts that ours is the trace's value, but for this share of it, or for so much.
#[track_caller]
fn close(trace: &Value, step: usize, name: &str, ours: Option<f64>, but: [f64; 2]) {
    let (theirs, [relative, absolute]) = (at(trace, step, name), but);
    let same = match (ours, theirs) {
        (Some(ours), Some(theirs)) => {
            ours == theirs
                || (ours.is_nan() && theirs.is_nan())
                || (ours - theirs).abs() <= (relative * theirs.abs()).max(absolute)
        }
        _ => ours == theirs,
    };
    let id = &trace["id"];
    assert!(same, "{id}, step {step}, {name}: {ours:?} for {theirs:?}");
}

#[test]
fn parity_zclip() {
    for (_, trace) in traces::<Value>("zclip") {
        let params = &trace["params"];
        let float = |name: &str| params[name].as_f64().unwrap();
        let percentile = params["mode"] == "percentile";
        let to_mean = !percentile && params["clip_option"] == "mean";
        let max_norm = optional(&params["max_grad_norm"]);
        let guard = Guard::ZClip {
            alpha: float("alpha"),
            z_thresh: float("z_thresh"),
            eps: if percentile { 0.0 } else { float("eps") },
            warmup_steps: params["warmup_steps"].as_u64().unwrap() as u32,
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
        let norms = trace["norm"].as_array().unwrap().iter().map(number);
        for (step, norm) in norms.enumerate() {
            let limit = state.clone().limit(norm).map(|(limit, _)| limit);
            let verdict = state.judge(None, norm);
            // As `GradientClip::GlobalNorm` beside a guard: the smaller of both coefficients.
            let clip = max_norm.map_or(1.0, |max| (max / (norm + 1e-6)).min(1.0));
            let factor = match verdict {
                Verdict::Clip { factor, .. } => factor.min(clip),
                Verdict::Reject { .. } => 0.0,
                Verdict::Apply | Verdict::Wait => clip,
            };
            let grad = f64::from((norm * factor) as f32);
            for (name, ours, relative) in [
                ("clip_val", limit, 1e-12),
                ("mean", state.average.map(|average| average.mean), 1e-12),
                ("var", state.average.map(|average| average.var), 1e-9),
                ("grad_after", Some(grad), 2e-7),
            ] {
                close(&trace, step, name, ours, [relative, 0.0]);
            }
        }
    }
}

#[test]
fn parity_olmo_skipstep() {
    for (id, trace) in traces::<Value>("olmo_skipstep") {
        let params = &trace["params"];
        let guard = Guard::SkipStep {
            rolling_interval_length: params["rolling_interval_length"].as_u64().unwrap() as u32,
            sigma_factor: params["sigma_factor"].as_f64().unwrap(),
            original: true,
        };
        let mut state = GuardState::new(guard).unwrap();
        let factors = trace["step_factor"].as_array().unwrap();
        for (step, factor) in factors.iter().map(number).enumerate() {
            let mut held = false;
            for (kind, series, name) in [
                (Kind::Loss, &mut state.losses, "loss"),
                (Kind::Norm, &mut state.norms, "grad_norm"),
            ] {
                let Some(value) = at(&trace, step, name) else {
                    continue;
                };
                held |= series.reject(&guard, kind, value).is_some();
                let [mean_name, std_name] = ["mean", "std"].map(|of| format!("{name}_{of}"));
                let Usual { mean, std } = series.before();
                match at(&trace, step, &mean_name) {
                    None => {}
                    Some(theirs) if theirs.is_finite() => {
                        close(&trace, step, &mean_name, Some(mean), [1e-6, 0.0]);
                        close(&trace, step, &std_name, Some(std), [1e-4, 1e-6]);
                    }
                    // By the position of the infinity it is infinite or NaN.
                    _ => assert!(!mean.is_finite(), "{id}, step {step}, {name}: {mean}"),
                }
            }
            assert_eq!(held, factor == 0.0, "{id}, step {step}");
        }
    }
}

#[test]
fn parity_llmc_outlier() {
    for (id, trace) in traces::<Value>("llmc_outlier") {
        let params = &trace["params"];
        let float = |name: &str| params[name].as_f64().unwrap();
        let window = params["window"].as_u64().unwrap() as u32;
        let guard = Guard::Outlier {
            window,
            skip_update_lossz: float("skip_update_lossz"),
            skip_update_gradz: float("skip_update_gradz"),
            original: true,
        };
        // Both thresholds may be off there.
        let mut state = GuardState::new(guard).unwrap();
        for (step, action) in trace["action"].as_array().unwrap().iter().enumerate() {
            let [loss, norm] = ["loss", "grad_norm"].map(|name| at(&trace, step, name).unwrap());
            let z_loss = state.clone().losses.z_score(loss, window, true);
            let z_norm = state.clone().norms.z_score(norm, window, true);
            let by_loss = state.clone().losses.reject(&guard, Kind::Loss, loss);
            let verdict = state.judge(Some(loss), norm);
            for (name, ours) in [
                ("zloss", z_loss),
                ("zgrad", z_norm),
                ("grad_sum", state.norms.sum),
                ("grad_sum_sq", state.norms.sum_sq),
            ] {
                close(&trace, step, name, Some(ours), [0.0; 2]);
            }
            let expected = match (verdict, by_loss) {
                (Verdict::Reject { .. }, Some(_)) => "skip_loss",
                (Verdict::Reject { .. }, None) => "skip_grad",
                _ => "step",
            };
            assert_eq!(action.as_str().unwrap(), expected, "{id}, step {step}");
        }
    }
}
