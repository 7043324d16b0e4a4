//! The schedule on the device is that of the host.

use burn_amp_kernels::{DeviceScale, ScaleState, Status, TensorList, inspect};
use burn_amp_tests::prelude::*;

/// What gradients that overflow, or do not, have shown.
pub struct Verdicts([Status; 2]);

impl Verdicts {
    pub fn new(device: &Device) -> Self {
        let status = |last: f32| {
            let mut list = TensorList::new();
            list.push(Tensor::<1>::from_floats([1.0, 0.0], device));
            list.push(Tensor::<1>::from_floats([last], device));
            inspect(list).unwrap()
        };
        Self([status(-3.0), status(f32::NEG_INFINITY)])
    }

    pub fn advance(&self, state: DeviceScale, skipped: bool) -> DeviceScale {
        state.advance(&self.0[usize::from(skipped)], None)
    }
}

/// Numbers that look random (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        let next = self.0.wrapping_mul(6364136223846793005);
        self.0 = next.wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }

    fn settings(&mut self) -> GradScalerConfig {
        let init_scale = 2f64.powi(self.below(40) as i32 - 20);
        let bound = |present: bool, scale: f64| present.then_some(scale);
        let (below, above) = (self.below(8) as i32, self.below(8) as i32);
        GradScalerConfig {
            init_scale,
            growth_factor: [2.0, 4.0, 1024.0][self.below(3) as usize],
            backoff_factor: [0.5, 0.25, 0.125][self.below(3) as usize],
            growth_interval: 1 + self.below(6),
            dynamic: self.below(16) > 0,
            min_scale: bound(self.below(2) == 0, init_scale / 2f64.powi(below)),
            max_scale: bound(self.below(2) == 0, init_scale * 2f64.powi(above)),
            hysteresis: 1 + self.below(4),
            consecutive_hysteresis: self.below(2) == 0,
            schedule: match self.below(3) {
                0 => Schedule::AdaptiveInterval {
                    min_interval: 1 + self.below(3),
                    max_interval: 4 + self.below(20),
                },
                _ => Schedule::GrowthInterval,
            },
            warmup_steps: [0, 0, 1, 7, 12][self.below(5) as usize],
            warmup_scale: init_scale * [1.0, 2.0, 0.5][self.below(3) as usize] / 4.0,
            warmup_levels: 1 + self.below(8),
            ..Default::default()
        }
    }

    /// Settings that are valid, and the state that they begin in.
    fn schedule(&mut self) -> (LossScale, ScaleState) {
        loop {
            if let Ok(schedule) = self.settings().schedule()
                && let Some(state) = schedule.on_device()
            {
                return (schedule, state);
            }
        }
    }
}

fn assert_same(schedule: &LossScale, state: &ScaleState) {
    let trackers = [state.growth_tracker, state.hysteresis_tracker];
    let expected = [schedule.growth_tracker(), schedule.hysteresis_tracker()];
    assert_eq!(state.capped(), schedule.scale(), "{schedule:?}");
    assert_eq!(trackers, expected, "{schedule:?}");
    assert_eq!(state.growth_interval, schedule.growth_interval());
}

#[test]
fn many_histories() {
    histories(1, 30_000);
}

#[test]
#[ignore = "slow"]
fn sweep_a_million_histories() {
    histories(3, 1_000_000);
}

fn histories(seed: u64, count: usize) {
    let mut random = Random(seed);
    for _ in 0..count {
        let (mut schedule, mut state) = random.schedule();
        let overflows = 1 + random.below(9);
        for _ in 0..random.below(24) {
            let skipped = random.below(10) < overflows;
            schedule = schedule.adjust(outcome(skipped));
            state.advance(skipped, false);
            assert_same(&schedule, &state);
        }
    }
}

#[test]
fn the_device_moves_it_as_the_host_does() {
    let device = Device::default();
    let verdicts = Verdicts::new(&device);
    let mut random = Random(2);
    for _ in 0..40 {
        let (mut schedule, state) = random.schedule();
        let mut state = state.upload(&device);
        let mut skips = 0;
        for step in 1..=25 {
            let skipped = random.below(3) == 0;
            skips += u32::from(skipped);
            schedule = schedule.adjust(outcome(skipped));
            state = verdicts.advance(state, skipped);
            if step % 5 > 0 {
                continue;
            }
            let found = state.read();
            assert_same(&schedule, &found);
            assert_eq!((found.steps, found.skipped), (step, skips));
            assert_eq!(found.found_inf, f32::from(skipped));
        }
    }
}

#[test]
fn what_only_the_host_knows() {
    let on_device = |config: GradScalerConfig| config.schedule().unwrap().on_device();
    let config = GradScalerConfig::new();
    assert!(on_device(config).is_some());
    assert!(on_device(config.with_growth_factor(1.5)).is_none());
    assert!(on_device(config.with_backoff_factor(0.3)).is_none());
    assert!(on_device(config.with_init_scale(1000.0)).is_none());
    assert!(on_device(config.with_min_scale(Some(3.0))).is_none());
    assert!(on_device(config.with_schedule(Schedule::log_max())).is_none());
}

#[test]
fn down_to_the_last_scale_that_has_an_inverse() {
    let device = Device::default();
    let verdicts = Verdicts::new(&device);
    let two = [(f32::MIN_POSITIVE, 2.0, true), (f32::MAX, 0.5, false)];
    for (last, before, skipped) in two {
        let first = ScaleState {
            growth_interval: 1,
            ..ScaleState::new(last * before)
        };
        let mut state = first.upload(&device);
        for _ in 0..3 {
            state = verdicts.advance(state, skipped);
        }
        assert_eq!(state.read().scale, last);
    }
}
