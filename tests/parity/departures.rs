//! Where ours departs from others on purpose: what they do there, and what ours does.

use super::*;
use crate::families::{settings, table_of};
use crate::table::{Event, Row, rows};

/// The scale after each step.
fn scales(mut schedule: LossScale, rows: &[Row]) -> Vec<f32> {
    let scales = rows.iter().map(|(event, _)| {
        schedule = event.apply(schedule.clone());
        schedule.scale()
    });
    scales.collect()
}

/// An interval below the tracker stops PyTorch's growth for ever, because it compares with `==`; ours grows at the next finite step.
#[test]
fn a_growth_interval_below_the_tracker_grows_at_once() {
    let mut traces = traces::<Value>("torch_scale_traces");
    let departs = |event: &Value| event["stuck"] == true;
    traces.retain(|(_, trace)| list(&trace["events"]).iter().any(departs));
    assert!(!traces.is_empty(), "the trace of the departure is missing");
    for (name, trace) in traces {
        let (mut schedule, mut departs) = (table_of("torch_scale_traces", &trace).0, false);
        for (event, known) in rows(&trace, "events", "scale=expected/scale") {
            let before = schedule.clone();
            schedule = event.apply(schedule);
            if matches!(event, Event::Seen(_)) {
                let due = before.growth_tracker() + 1 >= before.config().growth_interval;
                assert_eq!(schedule.scale() > before.scale(), due, "{name}");
                departs |= f64::from(schedule.scale()) != known[0].1;
            }
        }
        assert!(departs, "{name}: ours grows where PyTorch is stuck");
    }
}

const LOG_MAX: &str = "openseq2seq_logmax";

/// The rows of a log-max trace, the scales of the original, which may be NaN, and the settings of ours.
fn of_log_max(id: &str) -> (Vec<Row>, Vec<f64>, GradScalerConfig) {
    let mut traces = traces::<Value>(LOG_MAX).into_iter();
    let (_, trace) = traces.find(|(_, trace)| trace["id"] == id).unwrap();
    let (start, rows) = table_of(LOG_MAX, &trace);
    let original = rows.iter().map(|(_, known)| known[0].1).collect();
    let ours = start.config().with_schedule(Schedule::log_max());
    (rows, original, ours)
}

/// One overflow pins the original to its lowest scale for the rest of the run. Ours goes down by one power of two, and up again
/// after a growth interval.
#[test]
fn log_max_recovers_from_an_overflow_where_the_original_stays_down() {
    let (mut rows, original, ours) = of_log_max("lm-12");
    let is_overflow = |(event, _): &Row| event.is_overflow();
    let at = rows.iter().position(is_overflow).unwrap();
    assert!(original[at - 1] > 100.0);
    assert!(original[at..].iter().all(|scale| *scale == 1.0));

    let ours = ours.with_growth_interval(20).schedule().unwrap();
    let found = scales(ours.clone(), &rows);
    assert_eq!(found[at], found[at - 1] / 2.0);
    rows[at] = rows[at - 1].clone();
    let undisturbed = scales(ours, &rows);
    assert_eq!(found[at + 60..], undisturbed[at + 60..]);
    assert!(undisturbed[at + 60..].iter().all(|scale| *scale > 100.0));
}

/// A gradient that is all zero, of a batch whose targets are masked, makes the original NaN for good. Ours ignores it.
#[test]
fn log_max_ignores_a_zero_gradient_where_the_original_is_lost() {
    let (mut rows, original, ours) = of_log_max("lm-13");
    let at = original.iter().position(|scale| scale.is_nan()).unwrap();
    let zero = GradientStatus::default().with_max_abs(0.0);
    assert!(matches!(&rows[at].0, Event::Seen(seen) if *seen == evidence(false, Some(&zero))));
    assert!(original[at..].iter().all(|scale| scale.is_nan()));

    let ours = ours.schedule().unwrap();
    let found = scales(ours.clone(), &rows);
    rows.remove(at);
    assert_eq!(found[at], found[at - 1]);
    assert_eq!(found[at + 1..], scales(ours, &rows)[at..]);
    assert!(found[at..].iter().all(|scale| *scale > 100.0));
}

/// Ours is the power of two at or below the original's scale, give or take one, where the original has no bug.
#[test]
fn log_max_follows_the_original_in_powers_of_two() {
    const OWN: &str = "params schedule/LogMax/beta1=beta1 schedule/LogMax/beta2=beta2 \
        schedule/LogMax/overflow_std_dev=overflow_std_dev";
    for (name, trace) in &traces::<Value>(LOG_MAX) {
        let (start, rows) = table_of(LOG_MAX, trace);
        let has_zeros = list(&trace["amax"]).iter().any(|amax| number(amax) == 0.0);
        if has_zeros || rows.iter().any(|(event, _)| event.is_overflow()) {
            continue;
        }
        let own = settings(trace, OWN).schedule;
        let start = start.config().with_schedule(own).schedule().unwrap();
        let bounds = [start.config().min_scale, start.config().max_scale];
        let mut before = start.scale();
        for (step, ours) in scales(start, &rows).into_iter().enumerate() {
            let ratio = f64::from(ours) / rows[step].1[0].1;
            let at = format!("{name}, {}, step {step}: {ours}, {ratio}", trace["id"]);
            // It rises by no more than a factor of two a step.
            let is_rising = ours == 2.0 * before;
            before = ours;
            assert!(ratio <= 1.01 && (ratio >= 0.49 || is_rising), "{at}");
            let is_power = ours.to_bits() << 9 == 0;
            assert!(is_power || bounds.contains(&Some(ours.into())), "{at}");
        }
    }
}
