//! Our guards beside ZClip, OLMo-core's and llm.c's.

use super::*;
use serde::de::DeserializeOwned;

/// A step of a trace: the loss, if there is one, and the norm.
type Step = (Option<f64>, f64);

/// A value of a trace at a step.
fn at(trace: &Value, step: usize, name: &str) -> Option<f64> {
    optional(&trace[name][step])
}

/// The steps of a trace with these columns. A norm that is not there is one of which the guard knows nothing.
fn steps(trace: &Value, loss: &str, norm: &str) -> Vec<Step> {
    let column = [norm, loss].map(|name| trace[name].as_array().map_or(0, Vec::len));
    let steps = 0..column.into_iter().max().unwrap();
    let step = |step| (at(trace, step, loss), at(trace, step, norm).unwrap_or(1.0));
    steps.map(step).collect()
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
fn follows(trace: &Value, guard: Guard, steps: &[Step], rejects: impl Fn(usize) -> bool) -> usize {
    let Ok(factors) = guard.replay(steps.iter().copied()) else {
        return 0;
    };
    let is_bad =
        |(loss, norm): &Step| !norm.is_finite() || loss.is_some_and(|loss| !loss.is_finite());
    let end = steps.iter().position(is_bad).unwrap_or(steps.len());
    let first = (0..end).find(|step| rejects(*step));
    let same = first.unwrap_or(end);
    assert!(
        factors[..same].iter().all(|factor| *factor == 1.0),
        "{}",
        trace["id"]
    );
    // The usual values differ: else their deviation is 0, NaN, or what is left of a sum.
    let differ = |value: fn(&Step) -> Option<f64>| {
        let first = first.unwrap_or(0);
        steps[..first]
            .windows(2)
            .any(|pair| value(&pair[0]) != value(&pair[1]))
    };
    if let Some(first) = first
        && differ(|(loss, _)| *loss)
        && differ(|(_, norm)| Some(*norm))
    {
        assert_eq!(factors[first], 0.0, "{}", trace["id"]);
    }
    same
}

/// Ours are these rules where their bugs do not show: ZClip's until a norm is not finite, the others until the first spike, which blinds them.
#[test]
fn parity_of_guards_until_the_bugs_of_the_originals_show() {
    for (_, trace) in traces::<Value>("zclip") {
        let steps = steps(&trace, "none", "norm");
        let factors = Guard::ZClip(zclip(&trace))
            .replay(steps.iter().copied())
            .unwrap();
        let is_finite = |step: &&(usize, &Step)| step.1.1.is_finite();
        for (step, (_, norm)) in steps.iter().enumerate().take_while(|step| is_finite(&step)) {
            let limit = at(&trace, step, "clip_val").filter(|limit| norm > limit);
            let theirs = limit.map_or(1.0, |limit| limit / (norm + 1e-6));
            let same = (factors[step] - theirs).abs() <= 1e-12 * theirs;
            assert!(
                same,
                "{}, step {step}: {} for {theirs}",
                trace["id"], factors[step]
            );
        }
    }
    let mut compared = 0;
    for (_, trace) in traces::<Value>("olmo_skipstep") {
        let mut steps = steps(&trace, "loss", "grad_norm");
        if trace["grad_norm"].is_null() {
            steps
                .iter_mut()
                .enumerate()
                .for_each(|(index, step)| step.1 = 1.0 + (index % 2) as f64);
        }
        let rejects = |step: usize| at(&trace, step, "step_factor") == Some(0.0);
        compared += follows(
            &trace,
            Guard::SkipStep(settings(&trace, &[])),
            &steps,
            rejects,
        );
    }
    for (_, trace) in traces::<Value>("llmc_outlier") {
        let rejects = |step: usize| trace["action"][step] != "step";
        let steps = steps(&trace, "loss", "grad_norm");
        compared += follows(
            &trace,
            Guard::Outlier(settings(&trace, &["grad_clip"])),
            &steps,
            rejects,
        );
    }
    assert!(compared > 500, "{compared}");
}
