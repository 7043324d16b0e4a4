//! Warm-up and the adaptive growth interval: traces of their definitions, made outside of this crate.

use super::*;

const FACTORS: &str = "init_scale growth_factor backoff_factor growth_interval ";
const WARMUP: &str = "warmup_scale=c0 warmup_levels=levels warmup_steps=warmup";

fn start(trace: &Value) -> LossScale {
    let params = &trace["params"];
    let warmup = params.get("warmup").map_or("", |_| WARMUP);
    let mut config = settings(params, &[FACTORS, warmup].concat());
    let interval = |name: &str| params[name].as_u64().map(|steps| steps as u32);
    if let Some(min_interval) = interval("interval_min") {
        config.schedule = Schedule::AdaptiveInterval {
            min_interval,
            max_interval: interval("interval_max").unwrap(),
        };
    }
    config.schedule().unwrap()
}

/// What a trace has of a step.
fn of_step<const N: usize>(trace: &Value, fields: [&str; N], step: usize) -> [f64; N] {
    fields.map(|field| trace[field][step].as_f64().unwrap())
}

/// The scale, the growth interval, the growths in a row, the tracker.
fn state(scale: &LossScale) -> [f64; 4] {
    let state = serde_json::to_value(scale).unwrap();
    let growths = &state["state"]["AdaptiveInterval"]["growths_in_a_row"];
    let [interval, tracker] = [scale.growth_interval(), scale.growth_tracker()].map(f64::from);
    let growths = growths.as_f64().unwrap();
    [scale.scale().into(), interval, growths, tracker]
}

fn cap_only(trace: &Value, name: &str) {
    let init_scale = 2f64.powi(100);
    let config = settings(&trace["params"], WARMUP).with_growth_interval(u32::MAX);
    let config = config.with_init_scale(init_scale);
    let (mut scale, mut at) = (config.schedule().unwrap(), 0);
    for change in list(&trace["cap_at"]) {
        while change[0] != at {
            scale = scale.adjust(StepOutcome::Stepped);
            at += 1;
        }
        let expected = change[1].as_f64().unwrap_or(init_scale);
        assert_eq!(f64::from(scale.scale()), expected, "{name}, step {at}");
    }
}

/// A trace that has each step.
fn each_step(trace: &Value, name: &str) {
    let mut scale = start(trace);
    for (step, found_inf) in list(&trace["found_inf"]).iter().enumerate() {
        let (at, used) = (format!("{name}, step {step}"), scale.scale());
        scale = scale.adjust(outcome(*found_inf == 1));
        if trace["kind"] == "adaptive_interval" {
            let fields = ["scale", "interval", "growths_in_a_row", "tracker"];
            assert_eq!(state(&scale), of_step(trace, fields, step), "{at}");
        } else {
            // The scale that the warm-up holds down.
            let stored = &serde_json::to_value(&scale).unwrap()["scale"];
            let tracker = scale.growth_tracker().into();
            let found = [used.into(), stored.as_f64().unwrap(), tracker];
            let fields = ["used_feed", "stored_after_feed", "tracker_after_feed"];
            assert_eq!(found, of_step(trace, fields, step), "{at}");
        }
    }
}

/// Of a trace that has those steps alone at which something changes: a step, whether it overflows, and the change.
fn changes(trace: &Value) -> impl Iterator<Item = (usize, bool, Option<&Value>)> {
    let mut changes = list(&trace["changes"]).iter().peekable();
    let mut overflows = list(&trace["overflow_steps"]).iter().peekable();
    (0..trace["n_steps"].as_u64().unwrap() as usize).map(move |step| {
        let overflow = overflows.next_if(|at| **at == step).is_some();
        (step, overflow, changes.next_if(|change| change[0] == step))
    })
}

fn warmup_cap_changes(trace: &Value, name: &str) {
    let (mut scale, mut expected, mut seen) = (start(trace), 0.0, 0);
    for (step, overflow, change) in changes(trace) {
        if let Some(change) = change {
            expected = change[3].as_f64().unwrap();
            seen += 1;
        }
        assert_eq!(f64::from(scale.scale()), expected, "{name}, step {step}");
        scale = scale.adjust(outcome(overflow));
    }
    assert_eq!(seen, list(&trace["changes"]).len());
}

fn adaptive_interval_changes(trace: &Value, name: &str) {
    let mut scale = start(trace);
    for (step, overflow, change) in changes(trace) {
        let shown = |scale: &LossScale| (scale.scale(), scale.growth_interval());
        let before = shown(&scale);
        scale = scale.adjust(outcome(overflow));
        match change {
            Some(change) => assert_eq!(state(&scale)[..], list(change)[1..], "{name}, step {step}"),
            None => assert_eq!(shown(&scale), before, "{name}, step {step}"),
        }
    }
    assert_eq!(state(&scale)[..], *list(&trace["final"]), "{name}");
}

#[test]
fn parity_own_schedules() {
    let mut seen = BTreeSet::new();
    for (name, trace) in traces::<Value>("own_schedules") {
        let kind = trace["kind"].as_str().unwrap();
        let check = match kind {
            "cap_only" => cap_only,
            "warmup_cap" | "adaptive_interval" => each_step,
            "warmup_cap_changes" => warmup_cap_changes,
            "adaptive_interval_changes" => adaptive_interval_changes,
            other => panic!("{name}: unknown kind {other}"),
        };
        check(&trace, &format!("{name}, {}", trace["id"]));
        seen.insert(kind.to_string());
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
}
