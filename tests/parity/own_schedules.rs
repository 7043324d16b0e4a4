//! Warm-up and the adaptive growth interval: traces of their definitions, made outside of this crate.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{outcome, traces};
use serde::Deserialize;
use serde_json::Value;

use crate::settings;

#[derive(Deserialize)]
struct Named {
    id: String,
    params: Value,
    #[serde(flatten)]
    trace: Trace,
}

/// Changes are those steps alone at which something changes.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Trace {
    CapOnly {
        cap_at: Vec<(usize, Option<f32>)>,
    },
    WarmupCap {
        found_inf: Vec<u8>,
        used_feed: Vec<f32>,
        stored_after_feed: Vec<f32>,
        tracker_after_feed: Vec<u32>,
    },
    WarmupCapChanges {
        n_steps: usize,
        overflow_steps: Vec<usize>,
        changes: Vec<(usize, Option<f32>, f32, f32, f32)>,
    },
    AdaptiveInterval {
        found_inf: Vec<u8>,
        scale: Vec<f32>,
        tracker: Vec<u32>,
        interval: Vec<u32>,
        growths_in_a_row: Vec<u32>,
    },
    AdaptiveIntervalChanges {
        n_steps: usize,
        overflow_steps: Vec<usize>,
        changes: Vec<(usize, f32, u32, u32, u32)>,
        #[serde(rename = "final")]
        last: (f32, u32, u32, u32),
    },
}

const FACTORS: [(&str, &str); 4] = [
    ("init_scale", "init_scale"),
    ("growth_factor", "growth_factor"),
    ("backoff_factor", "backoff_factor"),
    ("growth_interval", "growth_interval"),
];
const WARMUP: [(&str, &str); 3] = [
    ("warmup_scale", "c0"),
    ("warmup_levels", "levels"),
    ("warmup_steps", "warmup"),
];

/// The scale that the warm-up holds down, and the growths in a row.
fn hidden(scale: &LossScale) -> (f32, u32) {
    let state = serde_json::to_value(scale).unwrap();
    let stored = state["scale"].as_f64().unwrap() as f32;
    let growths = &state["state"]["AdaptiveInterval"]["growths_in_a_row"];
    (stored, growths.as_u64().unwrap_or_default() as u32)
}

/// The scale, its tracker, the growth interval, the growths in a row.
fn state(scale: &LossScale) -> (f32, u32, u32, u32) {
    let (tracker, interval) = (scale.growth_tracker(), scale.growth_interval());
    (scale.scale(), tracker, interval, hidden(scale).1)
}

impl Named {
    fn start(&self) -> LossScale {
        let warmup = self.params.get("warmup").map_or(&[][..], |_| &WARMUP);
        let mut config = settings(&self.params, &[&FACTORS, warmup].concat());
        let interval = |name: &str| self.params[name].as_u64().map(|steps| steps as u32);
        if let Some(min_interval) = interval("interval_min") {
            config.schedule = Schedule::AdaptiveInterval {
                min_interval,
                max_interval: interval("interval_max").unwrap(),
            };
        }
        config.schedule().unwrap()
    }

    /// Which kind this is.
    fn check(&self, name: &str) -> usize {
        match &self.trace {
            Trace::CapOnly { cap_at } => {
                let init_scale = 2f64.powi(100);
                let config = settings(&self.params, &WARMUP).with_growth_interval(u32::MAX);
                let config = config.with_init_scale(init_scale);
                let (mut scale, mut at) = (config.schedule().unwrap(), 0);
                for (t, cap) in cap_at {
                    while at < *t {
                        scale = scale.adjust(StepOutcome::Stepped);
                        at += 1;
                    }
                    let expected = cap.unwrap_or(init_scale as f32);
                    assert_eq!(scale.scale(), expected, "{name}, step {t}");
                }
                0
            }
            Trace::WarmupCap {
                found_inf,
                used_feed,
                stored_after_feed,
                tracker_after_feed,
            } => {
                let mut scale = self.start();
                for (step, found_inf) in found_inf.iter().enumerate() {
                    let used = scale.scale();
                    scale = scale.adjust(outcome(*found_inf == 1));
                    let found = (used, hidden(&scale).0, scale.growth_tracker());
                    let stored = stored_after_feed[step];
                    let expected = (used_feed[step], stored, tracker_after_feed[step]);
                    assert_eq!(found, expected, "{name}, step {step}");
                }
                1
            }
            Trace::WarmupCapChanges {
                n_steps,
                overflow_steps,
                changes,
            } => {
                let mut scale = self.start();
                let (mut changes, mut expected) = (changes.iter().peekable(), 0.0);
                for step in 0..*n_steps {
                    if let Some((_, _, _, feed, _)) = changes.next_if(|change| change.0 == step) {
                        expected = *feed;
                    }
                    assert_eq!(scale.scale(), expected, "{name}, step {step}");
                    scale = scale.adjust(outcome(overflow_steps.contains(&step)));
                }
                assert!(changes.next().is_none());
                2
            }
            Trace::AdaptiveInterval {
                found_inf,
                scale: scales,
                tracker,
                interval,
                growths_in_a_row,
            } => {
                let mut scale = self.start();
                for (step, found_inf) in found_inf.iter().enumerate() {
                    scale = scale.adjust(outcome(*found_inf == 1));
                    let growths = growths_in_a_row[step];
                    let expected = (scales[step], tracker[step], interval[step], growths);
                    assert_eq!(state(&scale), expected, "{name}, step {step}");
                }
                3
            }
            Trace::AdaptiveIntervalChanges {
                n_steps,
                overflow_steps,
                changes,
                last,
            } => {
                let mut scale = self.start();
                let mut changes = changes.iter().peekable();
                let mut before = state(&scale);
                for step in 0..*n_steps {
                    let at = format!("{name}, step {step}");
                    scale = scale.adjust(outcome(overflow_steps.contains(&step)));
                    let now = state(&scale);
                    match changes.next_if(|change| change.0 == step) {
                        Some((_, scale, interval, growths, tracker)) => {
                            assert_eq!(now, (*scale, *tracker, *interval, *growths), "{at}");
                        }
                        None => assert_eq!((now.0, now.2), (before.0, before.2), "{at}"),
                    }
                    before = now;
                }
                let (scale, tracker, interval, growths) = before;
                assert_eq!((scale, interval, growths, tracker), *last, "{name}");
                4
            }
        }
    }
}

#[test]
fn parity_own_schedules() {
    let mut seen = [0; 5];
    for (name, trace) in &traces::<Named>("own_schedules") {
        seen[trace.check(&format!("{name}, {}", trace.id))] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
