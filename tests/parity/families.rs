//! The schedules of others: how each of their traces is read as a table.

use std::iter::once;

use super::*;
use crate::table::{Event, Row, rows, run};

/// Separated by ` > `: a prefix, and a kind where it has several; the columns of which one says that a step overflows; what is known
/// after a step; the place of the settings, and their names. There is our name and, where theirs is another, `=` and theirs: for a setting also a
/// place in the trace that begins with `/`, or a number. `#` is each region that has a schedule.
const FAMILIES: &str = "
torch_scale_traces > events > scale=expected/scale growth_tracker=expected/growth_tracker
 > config init_scale growth_factor backoff_factor growth_interval

deepspeed_traces > overflow > scale=expected/scale hysteresis=expected/hysteresis
 > config init_scale growth_interval=scale_window min_scale raise_error_at_min_scale
consecutive_hysteresis hysteresis=delayed_shift

deepspeed_dynamic > overflow > scale hysteresis
 > params init_scale growth_interval=scale_window min_scale raise_error_at_min_scale
consecutive_hysteresis growth_factor=scale_factor hysteresis

megatron_traces > overflow > scale=expected/scale growth_tracker=expected/growth_tracker
hysteresis=expected/hysteresis_tracker
 > config init_scale=initial_scale growth_factor backoff_factor growth_interval min_scale hysteresis

fairscale_layerwise > found_inf/# > scale/# growth_tracker/#
 > params init_scale=/init_scale/# growth_factor backoff_factor growth_interval min_scale max_scale

openseq2seq_backoff:scale_read_first > nonfinite amax_is_inf > scale=scale_read_first
 > params init_scale=/init_scale min_scale=scale_min max_scale=scale_max
growth_factor=step_factor growth_interval=step_window

openseq2seq_backoff:scale_increment_first > nonfinite amax_is_inf > scale=scale_increment_first
 > params init_scale=/init_scale min_scale=scale_min max_scale=scale_max
growth_factor=step_factor growth_interval=step_window

openseq2seq_logmax > nonfinite > scale
 > params init_scale=/init_scale min_scale=scale_min max_scale=scale_max

popart_als:trace > scaled_down > used=scale_used scale=scale_after
 > params init_scale=init_loss_scale schedule/NearTop/share=threshold
schedule/NearTop/period=update_period schedule/NearTop/edge=0.125

own_schedules:cap_only > cap_at > used=cap_at/1
 > params init_scale=1.2676506002282294e30 growth_interval=4294967295
warmup_scale=c0 warmup_levels=levels warmup_steps=warmup

own_schedules:warmup_cap > found_inf
 > used=used_feed stored=stored_after_feed growth_tracker=tracker_after_feed
 > params init_scale growth_factor backoff_factor growth_interval
warmup_scale=c0 warmup_levels=levels warmup_steps=warmup

own_schedules:warmup_cap_changes > overflow_steps > used=changes/3
 > params init_scale growth_factor backoff_factor growth_interval
warmup_scale=c0 warmup_levels=levels warmup_steps=warmup

own_schedules:adaptive_interval > found_inf
 > scale growth_interval=interval growths=growths_in_a_row growth_tracker=tracker
 > params init_scale growth_factor backoff_factor growth_interval
schedule/AdaptiveInterval/min_interval=interval_min
schedule/AdaptiveInterval/max_interval=interval_max

own_schedules:adaptive_interval_changes > overflow_steps
 > scale=changes/1 growth_interval=changes/2 growths=changes/3 growth_tracker=changes/4
 > params init_scale growth_factor backoff_factor growth_interval
schedule/AdaptiveInterval/min_interval=interval_min
schedule/AdaptiveInterval/max_interval=interval_max
";

/// Where a schedule begins, and what happens to it.
type Table = (LossScale, Vec<Row>);

fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.trim().split("\n\n")
}

/// The prefix of a family, and the kind of its traces.
fn name(family: &str) -> (&str, Option<&str>) {
    let name = family.split_whitespace().next().unwrap();
    let parts = name.split_once(':');
    parts.map_or((name, None), |(prefix, kind)| (prefix, Some(kind)))
}

/// The tables of a trace of this prefix: of each of its families, and of each region that is scaled.
fn tables(prefix: &str, trace: &Value) -> Vec<Table> {
    let is_scaled = |module: &usize| trace["scale_layer"].get(module) != Some(&json!(false));
    let modules = 0..trace["modules"].as_array().map_or(1, Vec::len);
    let modules: Vec<_> = modules.filter(is_scaled).collect();
    let kind = trace["kind"].as_str();
    let is_it =
        |family: &&str| name(family).0 == prefix && (kind.is_none() || name(family).1 == kind);
    let tables = families().filter(is_it).flat_map(|family| {
        let of_module = |module: &usize| table(&family.replace('#', &module.to_string()), trace);
        modules.iter().filter_map(of_module).collect::<Vec<_>>()
    });
    tables.collect()
}

/// The first. PyTorch's ends at the event with `"stuck": true`, where ours departs.
pub fn table_of(prefix: &str, trace: &Value) -> Table {
    tables(prefix, trace).remove(0)
}

fn table(family: &str, trace: &Value) -> Option<Table> {
    let fields: Vec<&str> = family.split(" > ").collect();
    let [name, overflows, known, names] = fields.try_into().unwrap();
    let (mut config, mut rows) = (settings(trace, names), rows(trace, overflows.trim(), known));
    match name.trim() {
        // It may begin outside of its bounds.
        "fairscale_layerwise" => {
            config.min_scale = config.min_scale.map(|min| min.min(config.init_scale));
            config.max_scale = config.max_scale.map(|max| max.max(config.init_scale));
        }
        "openseq2seq_logmax" => config.init_scale = config.init_scale.max(config.min_scale?),
        "deepspeed_dynamic" => {
            let window = config.growth_interval;
            config.growth_interval += 1;
            // It starts below the floor, or is no f32.
            if config.init_scale < config.min_scale? || config.init_scale > f64::from(f32::MAX) {
                return None;
            }
            rows = with_longer_intervals(rows, window, config.init_scale);
        }
        backoff if backoff.starts_with("openseq2seq_backoff") => {
            // Of f32, as there.
            config.growth_factor = f64::from(config.growth_factor as f32);
            config.backoff_factor = 1.0 / config.growth_factor;
            // Where it increments its counter first, the first growth comes one step earlier.
            let tracker = u32::from(backoff.ends_with("increment_first"));
            let set = Event::Set("/growth_tracker".to_string(), tracker.into());
            rows.insert(0, (set, Vec::new()));
        }
        "torch_scale_traces" => {
            let mut events = list(&trace["events"]).iter();
            let departure = events.position(|event| event["stuck"] == true);
            rows.truncate(departure.unwrap_or(rows.len()));
        }
        _ => {}
    }
    Some((config.schedule().unwrap(), rows))
}

/// Settings as they are named in `FAMILIES`.
pub fn settings(trace: &Value, names: &str) -> GradScalerConfig {
    let (place, names) = names.trim().split_once(' ').unwrap();
    let mut settings = json!({});
    for name in names.split_whitespace() {
        let (ours, theirs) = name.split_once('=').unwrap_or((name, name));
        let given = trace[place].get(theirs).or(trace.pointer(theirs)).cloned();
        let value = given.or_else(|| theirs.parse().ok());
        let places = ours.split('/');
        let setting = places.fold(&mut settings, |at, part| &mut at[part]);
        *setting = value.unwrap_or_else(|| panic!("no {theirs}"));
    }
    serde_json::from_value(settings).unwrap()
}

/// DeepSpeed's scale grows after `window` + 1 finite steps from the start or an overflow, and after `window` from then on.
fn with_longer_intervals(rows: Vec<Row>, window: u32, mut before: f64) -> Vec<Row> {
    let rows = rows.into_iter().flat_map(|row| {
        let overflow = row.0.is_overflow();
        let scale = row.1.first().map_or(0.0, |known| known.1);
        let moves = overflow || scale > before;
        before = scale;
        let interval = (window + u32::from(overflow)).into();
        let set = Event::Set("/config/growth_interval".to_string(), interval);
        once(row).chain(moves.then_some((set, Vec::new())))
    });
    rows.collect()
}

/// FairScale's `unscale` leaves out modules that had an overflow in the step before, so that the optimizer then steps with gradients that are still
/// scaled. That is nowhere here: `rescaled` takes factors back where gradients leave a region.
#[test]
fn parity_of_schedules() {
    let mut prefixes: BTreeSet<_> = families().map(|family| name(family).0).collect();
    // It departs from its original: see `departures.rs`.
    prefixes.remove("openseq2seq_logmax");
    for prefix in prefixes {
        let (mut compared, traces) = (0, traces::<Value>(prefix));
        for (name, trace) in &traces {
            println!("{name}, {}", trace["id"]);
            // Bit for bit, but where others compute in floats that ours is not in: FairScale in f64.
            let is_in_f64 = prefix == "fairscale_layerwise" && !are_powers_of_two(trace);
            let tolerance = if is_in_f64 { 1e-5 } else { 0.0 };
            for (start, rows) in tables(prefix, trace) {
                compared += run(start, &rows, tolerance);
            }
        }
        println!("{prefix}: {compared} numbers in {} traces", traces.len());
        assert!(compared > 0, "{prefix}");
    }
}

fn are_powers_of_two(trace: &Value) -> bool {
    let factors = ["growth_factor", "backoff_factor"].map(|name| number(&trace["params"][name]));
    factors.iter().all(|factor| factor.log2().fract() == 0.0)
}
