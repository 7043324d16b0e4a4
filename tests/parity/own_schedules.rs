//! Warm-up and the adaptive growth interval: traces of their definitions, made outside of this crate.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{outcome, traces};
use serde::Deserialize;

#[derive(Deserialize)]
struct Named {
    id: String,
    #[serde(flatten)]
    trace: Trace,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Trace {
    CapOnly(CapOnly),
    WarmupCap(WarmupCap),
    WarmupCapChanges(Changes<(usize, Option<f32>, f32, f32, f32)>),
    AdaptiveInterval(AdaptiveInterval),
    AdaptiveIntervalChanges(Changes<(usize, f32, u32, u32, u32)>),
}

#[derive(Deserialize)]
struct CapOnly {
    params: Cap,
    cap_at: Vec<(usize, Option<f32>)>,
}

#[derive(Deserialize)]
struct WarmupCap {
    params: Params,
    found_inf: Vec<u8>,
    used_feed: Vec<f32>,
    stored_after_feed: Vec<f32>,
    tracker_after_feed: Vec<u32>,
}

#[derive(Deserialize)]
struct AdaptiveInterval {
    params: Params,
    found_inf: Vec<u8>,
    scale: Vec<f32>,
    tracker: Vec<u32>,
    interval: Vec<u32>,
    growths_in_a_row: Vec<u32>,
}

/// Only the steps at which something changes.
#[derive(Deserialize)]
struct Changes<C> {
    params: Params,
    n_steps: usize,
    overflow_steps: Vec<usize>,
    changes: Vec<C>,
    /// Of an adaptive interval.
    #[serde(rename = "final")]
    last: Option<(f32, u32, u32, u32)>,
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

/// The scale that the warm-up holds down, and the growths in a row.
fn hidden(scale: &LossScale) -> (f32, u32) {
    let state = serde_json::to_value(scale).unwrap();
    let stored = state["scale"].as_f64().unwrap() as f32;
    let growths = &state["state"]["AdaptiveInterval"]["growths_in_a_row"];
    (stored, growths.as_u64().unwrap_or_default() as u32)
}

impl CapOnly {
    fn check(&self, name: &str) {
        let init_scale = 2f64.powi(100);
        let config = GradScalerConfig::new().with_growth_interval(u32::MAX);
        let config = warmed_up(config.with_init_scale(init_scale), self.params);
        let (mut scale, mut at) = (config.schedule().unwrap(), 0);
        for (t, cap) in &self.cap_at {
            while at < *t {
                scale = scale.adjust(StepOutcome::Stepped);
                at += 1;
            }
            let expected = cap.unwrap_or(init_scale as f32);
            assert_eq!(scale.scale(), expected, "{name}, step {t}");
        }
    }
}

impl WarmupCap {
    fn check(&self, name: &str) {
        let mut scale = self.params.start();
        for (step, found_inf) in self.found_inf.iter().enumerate() {
            let used = scale.scale();
            scale = scale.adjust(outcome(*found_inf == 1));
            let found = (used, hidden(&scale).0, scale.growth_tracker());
            let stored = self.stored_after_feed[step];
            let expected = (self.used_feed[step], stored, self.tracker_after_feed[step]);
            assert_eq!(found, expected, "{name}, step {step}");
        }
    }
}

/// The scale, its tracker, the growth interval, the growths in a row.
fn state(scale: &LossScale) -> (f32, u32, u32, u32) {
    let (tracker, interval) = (scale.growth_tracker(), scale.growth_interval());
    (scale.scale(), tracker, interval, hidden(scale).1)
}

impl AdaptiveInterval {
    fn check(&self, name: &str) {
        let mut scale = self.params.start();
        for (step, found_inf) in self.found_inf.iter().enumerate() {
            scale = scale.adjust(outcome(*found_inf == 1));
            let (tracker, interval) = (self.tracker[step], self.interval[step]);
            let growths = self.growths_in_a_row[step];
            let expected = (self.scale[step], tracker, interval, growths);
            assert_eq!(state(&scale), expected, "{name}, step {step}");
        }
    }
}

impl Changes<(usize, Option<f32>, f32, f32, f32)> {
    fn check_warmup(&self, name: &str) {
        let mut scale = self.params.start();
        let (mut changes, mut expected) = (self.changes.iter().peekable(), 0.0);
        for step in 0..self.n_steps {
            if let Some((_, _, _, feed, _)) = changes.next_if(|change| change.0 == step) {
                expected = *feed;
            }
            assert_eq!(scale.scale(), expected, "{name}, step {step}");
            scale = scale.adjust(outcome(self.overflow_steps.contains(&step)));
        }
        assert!(changes.next().is_none());
    }
}

impl Changes<(usize, f32, u32, u32, u32)> {
    fn check_interval(&self, name: &str) {
        let mut scale = self.params.start();
        let mut changes = self.changes.iter().peekable();
        let mut before = state(&scale);
        for step in 0..self.n_steps {
            let at = format!("{name}, step {step}");
            scale = scale.adjust(outcome(self.overflow_steps.contains(&step)));
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
        let end = (scale, interval, growths, tracker);
        assert_eq!(Some(end), self.last, "{name}");
    }
}

#[test]
fn parity_own_schedules() {
    let mut seen = [0; 5];
    for (name, Named { id, trace }) in &traces::<Named>("own_schedules") {
        let name = &format!("{name}, {id}");
        let kind = match trace {
            Trace::CapOnly(trace) => (0, trace.check(name)),
            Trace::WarmupCap(trace) => (1, trace.check(name)),
            Trace::WarmupCapChanges(trace) => (2, trace.check_warmup(name)),
            Trace::AdaptiveInterval(trace) => (3, trace.check(name)),
            Trace::AdaptiveIntervalChanges(trace) => (4, trace.check_interval(name)),
        };
        seen[kind.0] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
