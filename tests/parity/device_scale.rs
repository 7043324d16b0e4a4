//! The schedule on the device is that of the host.

use burn_amp_kernels::{DeviceScale, ScaleState, TensorList, inspect};
use burn_amp_tests::prelude::*;
use proptest::{prelude::*, test_runner::TestRunner};

use crate::schedule::settings;

/// Moves a state by what gradients have shown that overflow, or do not.
pub fn advancing() -> impl Fn(DeviceScale, bool) -> DeviceScale {
    let statuses = [-3.0, f32::NEG_INFINITY].map(|last| {
        let mut list = TensorList::new();
        list.push(Tensor::<1>::from_floats([1.0, 0.0], &Device::default()));
        list.push(Tensor::<1>::from_floats([last], &Device::default()));
        inspect(list).unwrap()
    });
    move |state, skipped| state.advance(&statuses[usize::from(skipped)], None, &[])
}

/// A schedule that a device can move, and the state that it begins in.
fn schedules() -> impl Strategy<Value = (LossScale, ScaleState)> {
    let on_device = |config: GradScalerConfig| {
        let schedule = config.schedule().ok()?;
        let state = schedule.on_device()?;
        Some((schedule, state))
    };
    settings(true).prop_filter_map("the host's alone", on_device)
}

/// Calls `check` with such schedules, and with so many steps at most, which are skipped or not.
fn histories(
    cases: u32,
    steps: usize,
    check: impl Fn((LossScale, ScaleState), Vec<bool>) -> Result<(), TestCaseError>,
) {
    let mut runner = TestRunner::new(ProptestConfig {
        source_file: Some(file!()),
        ..ProptestConfig::with_cases(cases)
    });
    let steps = prop::collection::vec(prop::bool::weighted(0.3), 0..steps);
    let result = runner.run(&(schedules(), steps), |(start, steps)| check(start, steps));
    result.unwrap_or_else(|error| panic!("{error}"));
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
    on_the_host(10_000);
}

#[test]
#[ignore = "slow"]
fn sweep_a_million_histories() {
    on_the_host(1_000_000);
}

fn on_the_host(cases: u32) {
    histories(cases, 24, |(mut schedule, mut state), steps| {
        for skipped in steps {
            schedule = schedule.adjust(outcome(skipped));
            state.advance(skipped, false);
            assert_same(&schedule, &state);
        }
        Ok(())
    });
}

#[test]
fn the_device_moves_it_as_the_host_does() {
    let advance = advancing();
    histories(40, 25, |(mut schedule, state), steps| {
        let mut state = state.upload(&Device::default());
        for skipped in &steps {
            schedule = schedule.adjust(outcome(*skipped));
            state = advance(state, *skipped);
        }
        let found = state.read();
        assert_same(&schedule, &found);
        let skips = steps.iter().filter(|skipped| **skipped).count();
        let counted = (found.steps as usize, found.skipped as usize);
        assert_eq!(counted, (steps.len(), skips));
        let last = steps.last().is_some_and(|skipped| *skipped);
        assert_eq!(found.found_inf, f32::from(last));
        Ok(())
    });
}

/// By PyTorch's rule they do.
#[test]
fn zeros_count_on_the_device_where_they_do_on_the_host() {
    let advance = advancing();
    let mut list = TensorList::new();
    list.push(Tensor::<1>::zeros([3], &Device::default()));
    let (zeros, shown) = (inspect(list).unwrap(), GradientStatus::default());
    let shown = shown.with_max_abs(0.0);
    for (schedule, scale) in [
        (Schedule::GrowthInterval, 2f32.powi(19)),
        (Schedule::adaptive_interval(), 2f32.powi(17)),
    ] {
        let config = GradScalerConfig::new().with_growth_interval(2);
        let mut host = config.with_schedule(schedule).schedule().unwrap();
        let mut state = host.on_device().unwrap().upload(&Device::default());
        for is_zero in [false, true, true, true, true, false] {
            host = match is_zero {
                true => host.adjust((StepOutcome::Stepped, &shown)),
                false => host.adjust(StepOutcome::Stepped),
            };
            state = match is_zero {
                true => state.advance(&zeros, None, &[]),
                false => advance(state, false),
            };
        }
        assert_same(&host, &state.read());
        assert_eq!(host.scale(), scale, "{schedule:?}");
    }
}

/// Where scale and factors are powers of two, too: `parity_torch_scale_schedule` has the others.
#[test]
fn what_only_the_host_knows() {
    let config = GradScalerConfig::new();
    let bounded = config.with_min_scale(Some(3.0));
    let found = [config, bounded, config.with_schedule(Schedule::log_max())]
        .map(|config| config.schedule().unwrap().on_device().is_some());
    assert_eq!(found, [true, false, false]);
}

#[test]
fn down_to_the_last_scale_that_has_an_inverse() {
    let advance = advancing();
    let two = [(f32::MIN_POSITIVE, 2.0, true), (f32::MAX, 0.5, false)];
    for (last, before, skipped) in two {
        let mut first = ScaleState::new(last * before);
        first.growth_interval = 1;
        let first = first.upload(&Device::default());
        let state = (0..3).fold(first, |state, _| advance(state, skipped));
        assert_eq!(state.read().scale, last);
    }
}
