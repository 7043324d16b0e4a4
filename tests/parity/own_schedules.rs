//! Warm-up and the adaptive growth interval: traces of their definitions, made outside of this crate.

use burn_amp::{GradScalerConfig, LossScale, Schedule, StepOutcome};
use burn_amp_tests::reference;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    traces: Vec<Trace>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Trace {
    CapOnly {
        id: String,
        params: Cap,
        cap_at: Vec<(usize, Option<f32>)>,
    },
    WarmupCap {
        id: String,
        params: Params,
        found_inf: Vec<u8>,
        used_feed: Vec<f32>,
        stored_after_feed: Vec<f32>,
        tracker_after_feed: Vec<u32>,
    },
    WarmupCapChanges {
        id: String,
        params: Params,
        n_steps: usize,
        overflow_steps: Vec<usize>,
        changes: Vec<(usize, Option<f32>, f32, f32, f32)>,
    },
    AdaptiveInterval {
        id: String,
        params: Params,
        found_inf: Vec<u8>,
        scale: Vec<f32>,
        tracker: Vec<u32>,
        interval: Vec<u32>,
        growths_in_a_row: Vec<u32>,
    },
    AdaptiveIntervalChanges {
        id: String,
        params: Params,
        n_steps: usize,
        overflow_steps: Vec<usize>,
        changes: Vec<(usize, f32, u32, u32, u32)>,
        #[serde(rename = "final")]
        last: (f32, u32, u32, u32),
    },
}

#[derive(Clone, Copy, Deserialize)]
struct Cap {
    c0: f64,
    levels: u32,
    warmup: u32,
}

#[derive(Deserialize)]
struct Params {
    init_scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: u32,
    #[serde(flatten)]
    cap: Option<Cap>,
    interval_min: Option<u32>,
    interval_max: Option<u32>,
}

impl Params {
    fn start(&self) -> LossScale {
        let mut config = GradScalerConfig {
            init_scale: self.init_scale,
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            growth_interval: self.growth_interval,
            ..Default::default()
        };
        if let Some(cap) = self.cap {
            config = warmed_up(config, cap);
        }
        if let (Some(min_interval), Some(max_interval)) = (self.interval_min, self.interval_max) {
            config.schedule = Schedule::AdaptiveInterval {
                min_interval,
                max_interval,
            };
        }
        config.schedule().unwrap()
    }
}

fn warmed_up(config: GradScalerConfig, cap: Cap) -> GradScalerConfig {
    let config = config.with_warmup_scale(cap.c0);
    config
        .with_warmup_levels(cap.levels)
        .with_warmup_steps(cap.warmup)
}

fn outcome(overflow: bool) -> StepOutcome {
    match overflow {
        true => StepOutcome::Skipped,
        false => StepOutcome::Stepped,
    }
}

/// The scale that the warm-up holds down, and the growths in a row.
fn hidden(scale: &LossScale) -> (f32, u32) {
    let state = serde_json::to_value(scale).unwrap();
    let stored = state["scale"].as_f64().unwrap() as f32;
    let growths = &state["state"]["AdaptiveInterval"]["growths_in_a_row"];
    (stored, growths.as_u64().unwrap_or_default() as u32)
}

#[test]
fn parity_own_schedules_warmup() {
    let mut seen = [0; 3];
    for (name, file) in reference::<File>("own_schedules") {
        for trace in &file.traces {
            match trace {
                Trace::CapOnly { id, params, cap_at } => {
                    let init_scale = 2f64.powi(100);
                    let config = GradScalerConfig::new().with_growth_interval(u32::MAX);
                    let config = warmed_up(config.with_init_scale(init_scale), *params);
                    let (mut scale, mut at) = (config.schedule().unwrap(), 0);
                    for (t, cap) in cap_at {
                        while at < *t {
                            scale = scale.adjust(StepOutcome::Stepped);
                            at += 1;
                        }
                        let expected = cap.unwrap_or(init_scale as f32);
                        assert_eq!(scale.scale(), expected, "{name}, {id}, step {t}");
                    }
                    seen[0] += 1;
                }
                Trace::WarmupCap {
                    id,
                    params,
                    found_inf,
                    used_feed,
                    stored_after_feed,
                    tracker_after_feed,
                } => {
                    let mut scale = params.start();
                    for (step, found_inf) in found_inf.iter().enumerate() {
                        let at = format!("{name}, {id}, step {step}");
                        assert_eq!(scale.scale().to_bits(), used_feed[step].to_bits(), "{at}");
                        scale = scale.adjust(outcome(*found_inf == 1));
                        assert_eq!(hidden(&scale).0, stored_after_feed[step], "{at}");
                        assert_eq!(scale.growth_tracker(), tracker_after_feed[step], "{at}");
                    }
                    seen[1] += 1;
                }
                Trace::WarmupCapChanges {
                    id,
                    params,
                    n_steps,
                    overflow_steps,
                    changes,
                } => {
                    let mut scale = params.start();
                    let (mut changes, mut expected) = (changes.iter().peekable(), 0.0);
                    for step in 0..*n_steps {
                        if let Some((_, _, _, feed, _)) = changes.next_if(|change| change.0 == step)
                        {
                            expected = *feed;
                        }
                        let at = format!("{name}, {id}, step {step}");
                        assert_eq!(scale.scale().to_bits(), expected.to_bits(), "{at}");
                        scale = scale.adjust(outcome(overflow_steps.contains(&step)));
                    }
                    assert!(changes.next().is_none());
                    seen[2] += 1;
                }
                _ => {}
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn parity_own_schedules_adaptive_interval() {
    let mut seen = [0; 2];
    for (name, file) in reference::<File>("own_schedules") {
        for trace in &file.traces {
            match trace {
                Trace::AdaptiveInterval {
                    id,
                    params,
                    found_inf,
                    scale: scales,
                    tracker,
                    interval,
                    growths_in_a_row,
                } => {
                    let mut scale = params.start();
                    for (step, found_inf) in found_inf.iter().enumerate() {
                        let at = format!("{name}, {id}, step {step}");
                        scale = scale.adjust(outcome(*found_inf == 1));
                        assert_eq!(scale.scale().to_bits(), scales[step].to_bits(), "{at}");
                        assert_eq!(scale.growth_tracker(), tracker[step], "{at}");
                        assert_eq!(scale.growth_interval(), interval[step], "{at}");
                        assert_eq!(hidden(&scale).1, growths_in_a_row[step], "{at}");
                    }
                    seen[0] += 1;
                }
                Trace::AdaptiveIntervalChanges {
                    id,
                    params,
                    n_steps,
                    overflow_steps,
                    changes,
                    last,
                } => {
                    let mut scale = params.start();
                    let mut changes = changes.iter().peekable();
                    let mut state = (scale.scale(), scale.growth_interval());
                    for step in 0..*n_steps {
                        let at = format!("{name}, {id}, step {step}");
                        scale = scale.adjust(outcome(overflow_steps.contains(&step)));
                        let now = (scale.scale(), scale.growth_interval());
                        match changes.next_if(|change| change.0 == step) {
                            Some((_, scale_after, interval, growths, tracker)) => {
                                assert_eq!(now, (*scale_after, *interval), "{at}");
                                assert_eq!(hidden(&scale).1, *growths, "{at}");
                                assert_eq!(scale.growth_tracker(), *tracker, "{at}");
                            }
                            None => assert_eq!(now, state, "{at}"),
                        }
                        state = now;
                    }
                    let growths = hidden(&scale).1;
                    let end = (state.0, state.1, growths, scale.growth_tracker());
                    assert_eq!(end, *last, "{name}, {id}");
                    seen[1] += 1;
                }
                _ => {}
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
