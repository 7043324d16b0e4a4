//! Our guards beside ZClip, OLMo-core's and llm.c's.

use super::*;
use serde::de::DeserializeOwned;

/// A step of a trace: the loss, if there is one, and the norm.
type Step = (Option<f64>, f64);

/// A value of a trace at a step.
fn at(trace: &Value, step: usize, name: &str) -> Option<f64> {
    optional(&trace[name][step])
}

/// The steps of a trace with the first of these columns, and the second if it is there. Norms of which the guard knows nothing differ, as usual ones do.
fn steps(trace: &Value, norm: &str) -> Vec<Step> {
    let columns = [&trace["loss"], &trace[norm]].map(Value::as_array);
    let count = columns.into_iter().flatten().map(Vec::len).max().unwrap();
    let norm = |step| at(trace, step, norm).unwrap_or(1.0 + (step % 2) as f64);
    let step = |step| (at(trace, step, "loss"), norm(step));
    (0..count).map(step).collect()
}

/// Those of a trace's parameters that are the guard's settings, by the same names.
fn settings<T: DeserializeOwned>(trace: &Value, others: &[&str]) -> T {
    let mut params = trace["params"].clone();
    let named = params.as_object_mut().unwrap();
    named.retain(|name, _| !others.contains(&name.as_str()));
    serde_json::from_value(params).unwrap()
}

/// Its `mode` and its `clip_option` are one setting here.
fn zclip(trace: &Value) -> ZClip {
    let params = &trace["params"];
    let own: ZClip = settings(trace, &["max_grad_norm", "mode", "clip_option"]);
    if params["mode"] == "percentile" {
        own.with_eps(0.0).with_falloff(0.0).with_clip_factor(1.0)
    } else if params["clip_option"] == "mean" {
        own.with_falloff(f64::INFINITY).with_clip_factor(1.0)
    } else {
        own
    }
}

/// Compares the factors of ours with those of a trace, up to the first value that is not finite, or the first rejection, which is ours too. Returns how many were compared.
fn follows(trace: &Value, guard: Guard, rejects: impl Fn(usize) -> bool) -> usize {
    let steps = steps(trace, "grad_norm");
    let Ok(factors) = guard.replay(steps.iter().copied()) else {
        return 0;
    };
    let is_good = |(loss, norm): &&Step| norm.is_finite() && loss.is_none_or(f64::is_finite);
    let end = steps.iter().take_while(is_good).count();
    let same = (0..end).take_while(|step| !rejects(*step)).count();
    let mut accepted = factors[..same].iter();
    assert!(accepted.all(|factor| *factor == 1.0), "{}", trace["id"]);
    // The usual values differ: else their deviation is 0, NaN, or what is left of a sum.
    let usual = &steps[..same];
    let losses_differ = usual.iter().any(|step| step.0 != usual[0].0);
    let norms_differ = usual.iter().any(|step| step.1 != usual[0].1);
    if same < end && losses_differ && norms_differ {
        assert_eq!(factors[same], 0.0, "{}", trace["id"]);
    }
    same
}

/// Ours are these rules where their bugs do not show: ZClip's until a norm is not finite, the others until the first spike, which blinds them.
#[test]
fn parity_of_guards_until_the_bugs_of_the_originals_show() {
    for (_, trace) in traces::<Value>("zclip") {
        let steps = steps(&trace, "norm");
        let factors = Guard::ZClip(zclip(&trace)).replay(steps.iter().copied());
        let norms = steps.iter().map(|(_, norm)| *norm);
        let finite = norms.take_while(|norm| norm.is_finite());
        for (step, (norm, ours)) in finite.zip(factors.unwrap()).enumerate() {
            let limit = at(&trace, step, "clip_val").filter(|limit| norm > *limit);
            let theirs = limit.map_or(1.0, |limit| limit / (norm + 1e-6));
            let (same, id) = ((ours - theirs).abs() <= 1e-12 * theirs, &trace["id"]);
            assert!(same, "{id}, step {step}: {ours} for {theirs}");
        }
    }
    let mut compared = 0;
    for (_, trace) in traces::<Value>("olmo_skipstep") {
        let rejects = |step| at(&trace, step, "step_factor") == Some(0.0);
        compared += follows(&trace, Guard::SkipStep(settings(&trace, &[])), rejects);
    }
    for (_, trace) in traces::<Value>("llmc_outlier") {
        let rejects = |step: usize| trace["action"][step] != "step";
        let outlier = Guard::Outlier(settings(&trace, &["grad_clip"]));
        compared += follows(&trace, outlier, rejects);
    }
    assert!(compared > 500, "{compared}");
}
