//! A trace as a table: what each step has shown to a schedule, and what that is then. One runner for all families.

use super::*;

/// What happens to a schedule.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step is taken or skipped, after gradients that were measured or not.
    Seen(Evidence),
    /// An overflow at the floor, where the run ends by its settings.
    Ends,
    /// The stored state has another value in this place.
    Set(String, Value),
    /// It is stored, and read again.
    Resume,
}

/// An event, and the numbers that are known then.
pub type Row = (Event, Vec<(String, f64)>);

/// What a schedule is by its name in a row. `used` is the scale before the event, and `stored` the one that a warm-up may hold down.
fn shown(name: &str, before: &LossScale, schedule: &LossScale) -> f64 {
    let stored = || serde_json::to_value(schedule).unwrap();
    match name {
        "used" => before.scale().into(),
        "scale" => schedule.scale().into(),
        "stored" => number(&stored()["scale"]),
        "growth_tracker" => schedule.growth_tracker().into(),
        "hysteresis" => schedule.hysteresis_tracker().into(),
        "growth_interval" => schedule.growth_interval().into(),
        "growths" => stored()["growths_in_a_row"].as_f64().unwrap_or(0.0),
        other => panic!("unknown: {other}"),
    }
}

/// What stands for the scale where a warm-up holds down none.
const NO_CAP: f64 = 1.2676506002282294e30;

/// What a column has at each step: its name, and the place in each cell. Some traces list those steps alone at which something changes.
fn cells(trace: &Value, column: &str, steps: usize) -> Vec<Option<f64>> {
    let (name, place) = column.split_at(column.find('/').unwrap_or(column.len()));
    let (column, mut cells) = (list(&trace[name]), vec![None; steps]);
    let is_listed = ["cap_at", "changes", "overflow_steps"].contains(&name);
    // Where DeepSpeed ends a run, its last step is known of no more.
    let is_whole = column.len() == steps || !trace["raises"].is_null();
    assert!(is_listed || is_whole, "{name}");
    for (step, cell) in column.iter().enumerate() {
        let listed = cell.as_u64().or(cell[0].as_u64()).filter(|_| is_listed);
        cells[listed.map_or(step, |step| step as usize)] = match cell.pointer(place) {
            Some(Value::Null) => is_listed.then_some(NO_CAP),
            Some(Value::Bool(flag)) => Some(u8::from(*flag).into()),
            Some(Value::Number(_)) if name == "overflow_steps" => Some(1.0),
            Some(value @ (Value::Number(_) | Value::String(_))) => Some(number(value)),
            _ => None,
        };
    }
    cells
}

/// The rows of a trace. A step overflows where one of these columns says so.
pub fn rows(trace: &Value, overflows: &str, known: &str) -> Vec<Row> {
    let first = list(&trace[overflows.split([' ', '/']).next().unwrap()]);
    let caps = trace["cap_at"].as_array();
    let capped = caps.and_then(|caps| Some(caps.last()?[0].as_u64()? + 1));
    let listed = trace["n_steps"].as_u64().or(capped);
    let steps = listed.map_or(first.len(), |steps| steps as usize);
    let columns = overflows.split(' ');
    let overflows: Vec<_> = columns.map(|column| cells(trace, column, steps)).collect();
    let known = known.split_whitespace().map(|column| {
        let (ours, theirs) = column.split_once('=').unwrap_or((column, column));
        let (ours, mut cells) = (ours.split('/').next().unwrap(), cells(trace, theirs, steps));
        // Of these, each change is listed.
        let stays = ["used", "scale", "growth_interval"].contains(&ours);
        for step in (1..steps).filter(|_| stays && theirs.starts_with("changes")) {
            cells[step] = cells[step].or(cells[step - 1]);
        }
        (ours.to_string(), cells)
    });
    let mut known: Vec<_> = known.collect();
    for (index, (_, cells)) in known.iter_mut().enumerate() {
        cells[steps - 1] = trace["final"].get(index).map(number).or(cells[steps - 1]);
    }
    let row = |step: usize| {
        let overflow = overflows.iter().any(|cells| cells[step] == Some(1.0));
        let known = known
            .iter()
            .filter_map(|(name, cells)| Some((name.clone(), cells[step]?)));
        (happens(trace, step, overflow), known.collect())
    };
    (0..steps).map(row).collect()
}

/// What happens at a step, with what it has measured.
fn happens(trace: &Value, step: usize, overflow: bool) -> Event {
    if !trace["expected"][step]["error"].is_null() || trace["raises"]["step"] == step {
        return Event::Ends;
    }
    let event = &trace["events"][step];
    let set = |place: &str, value: &Value| Event::Set(place.to_string(), value.clone());
    match (event["op"].as_str(), event.get("new_scale")) {
        (Some("set"), _) => {
            let field = event["field"].as_str().unwrap();
            return set(&format!("/config/{field}"), &event["value"]);
        }
        (Some("resume"), _) => return Event::Resume,
        (Some("step"), Some(scale)) => return set("/scale", scale),
        (Some("step"), None) => return Event::Seen(evidence(event["grads"] != "finite", None)),
        _ => {}
    }
    let none = GradientStatus::default();
    if let Some(amax) = trace["amax"].get(step).map(number) {
        let overflow = overflow || amax.is_infinite();
        return Event::Seen(evidence(overflow, Some(&none.with_max_abs(amax))));
    }
    let counts = ["count_below", "count_above"].map(|counts| {
        let counts = trace[counts][step].as_array()?.iter();
        Some(counts.map(|count| count.as_u64().unwrap()).sum::<u64>())
    });
    let status = match counts {
        [Some(below), Some(above)] => Some(none.with_values(below + above, above)),
        _ => None,
    };
    // PopART counts no overflows.
    Event::Seen(evidence(overflow && status.is_none(), status.as_ref()))
}

impl Event {
    pub fn apply(&self, schedule: LossScale) -> LossScale {
        match self {
            Self::Seen(evidence) => schedule.adjust(*evidence),
            Self::Ends => schedule,
            Self::Set(place, value) => {
                let mut state = serde_json::to_value(schedule).unwrap();
                *state.pointer_mut(place).unwrap() = value.clone();
                serde_json::from_value(state).unwrap()
            }
            Self::Resume => {
                let text = serde_json::to_string(&schedule).unwrap();
                serde_json::from_str(&text).unwrap()
            }
        }
    }

    pub fn is_overflow(&self) -> bool {
        matches!(self, Self::Ends | Self::Seen(Evidence::Overflow))
    }
}

/// Goes through the rows from this start, as far as their scales can be applied in f32: DeepSpeed counts in f64, without bounds PopART doubles to
/// infinity and PyTorch halves to zero, and ours stays before. Compares with what is known after each event; a number may differ by a share of itself.
/// Returns how many numbers were compared.
pub fn run(start: LossScale, rows: &[Row], tolerance: f64) -> usize {
    let (mut schedule, mut compared) = (start, 0);
    let can_be_applied = |(name, known): &(String, f64)| {
        let has_inverse = *known as f32 != f32::INFINITY && (1.0 / *known as f32).is_finite();
        has_inverse || !["used", "scale", "stored"].contains(&name.as_str())
    };
    for row in (rows.iter()).take_while(|(_, known)| known.iter().all(can_be_applied)) {
        let ends = schedule.is_at_floor() && schedule.config().raise_error_at_min_scale;
        let ends = ends && row.0.is_overflow();
        assert_eq!(ends, matches!(row.0, Event::Ends), "{row:?}");
        let before = schedule.clone();
        schedule = row.0.apply(schedule);
        for (name, right) in &row.1 {
            let found = shown(name, &before, &schedule);
            // Megatron counts on below zero; every value up to 1 means "at the next overflow".
            let least = if name == "hysteresis" { 1.0 } else { *right };
            let right = right.max(least);
            let is_near = (found - right).abs() <= tolerance * right.abs();
            let is_same = found == right || is_near || (found.is_nan() && right.is_nan());
            assert!(is_same, "{row:?}: {name} is {found}, not {right}");
        }
        compared += row.1.len();
    }
    compared
}
