//! What holds for every schedule, whatever its settings and outcomes: on the host, and on the device, which moves it as the host does.

use burn_amp_core::internal::fused::on_device;
use burn_amp_kernels::{DeviceScale, ScaleState, TensorList, inspect};
use burn_amp_tests::prelude::*;
use proptest::{collection::vec, option, prelude::*, test_runner::TestRunner};

prop_compose! {
    /// With a schedule of ours, and a warm-up or none. Where it is `exact`, scales and factors are powers of two, and the schedule is one
    /// that a device moves.
    fn settings(exact: bool)(
        (exponent, mantissa) in (-40i32..40, 1.0f64..2.0),
        (growth_factor, backoff_factor) in (1.01f64..8.0, 0.01f64..0.99),
        (growth_interval, dynamic) in (1u32..8, prop::bool::weighted(0.9)),
        (below, above) in (option::of(0i32..20), option::of(0i32..20)),
        (hysteresis, consecutive_hysteresis) in (1u32..5, any::<bool>()),
        schedule in schedules(exact),
        warmup_steps in prop_oneof![Just(0), 1u32..50],
        (warmup_scale, warmup_levels) in (-3i32..2, 1u32..9),
    ) -> GradScalerConfig {
        let rounded = |value: f64| if exact { 2f64.powf(value.log2().ceil()) } else { value };
        let init_scale = if exact { 1.0 } else { mantissa } * 2f64.powi(exponent);
        GradScalerConfig {
            init_scale,
            growth_factor: rounded(growth_factor),
            backoff_factor: 1.0 / rounded(1.0 / backoff_factor),
            growth_interval,
            dynamic,
            min_scale: below.map(|exponent| init_scale / 2f64.powi(exponent)),
            max_scale: above.map(|exponent| init_scale * 2f64.powi(exponent)),
            hysteresis,
            consecutive_hysteresis,
            schedule,
            warmup_steps,
            warmup_scale: init_scale * 2f64.powi(warmup_scale.max(-below.unwrap_or(9))),
            warmup_levels,
            ..Default::default()
        }
    }
}

/// A schedule of ours.
fn schedules(exact: bool) -> impl Strategy<Value = Schedule> {
    let kinds = 0..if exact { 3 } else { 5 };
    let numbers = (1u32..9, 9u32..40, 0.0f64..1.0, 0.0f64..1.0, 0.0f64..9.0);
    (kinds, numbers).prop_map(|(kind, (low, high, first, second, more))| {
        let schedule = match kind {
            0 | 1 => json!("GrowthInterval"),
            2 => json!({"AdaptiveInterval": {"min_interval": low, "max_interval": high}}),
            3 => json!({"LogMax": {"beta1": first, "beta2": second, "overflow_std_dev": more}}),
            _ => json!({"NearTop": {"edge": first, "share": second, "period": low}}),
        };
        serde_json::from_value(schedule).unwrap()
    })
}

/// Iterations with measures of every kind, impossible ones too.
fn seen() -> impl Strategy<Value = Vec<(StepOutcome, GradientStatus)>> {
    let max_abs = prop_oneof![
        10 => (-1000i32..1000).prop_map(|exponent| 2f64.powi(exponent)),
        1 => Just(0.0),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NAN),
    ];
    let step = (prop::bool::weighted(0.2), max_abs, 0u64..100, 0u64..100);
    let step = step.prop_map(|(overflow, max_abs, elements, above)| {
        let status = GradientStatus::default().with_max_abs(max_abs);
        (outcome(overflow), status.with_values(elements, above))
    });
    vec(step, 0..150)
}

proptest! {
    #[test]
    fn every_schedule_stays_finite_and_in_its_bounds_and_goes_on_from_a_saved_state(
        settings in settings(false), seen in seen(), saved_at in 0usize..150
    ) {
        let mut scale = settings.schedule().unwrap();
        let mut restored = None;
        for (step, (outcome, status)) in seen.iter().enumerate() {
            if step == saved_at {
                let json = serde_json::to_string(&scale).unwrap();
                restored = Some(serde_json::from_str::<LossScale>(&json).unwrap());
                prop_assert_eq!(restored.as_ref(), Some(&scale));
            }
            let before = scale.scale();
            let evidence = Evidence::of(*outcome, Some(status.measures())).unwrap();
            scale = scale.adjust(evidence);
            restored = restored.map(|restored| restored.adjust(evidence));
            prop_assert!(scale.scale().is_finite() && scale.scale() >= 0.0);
            // While overflows are tolerated, the cap of a warm-up may rise.
            let backs_off = outcome.is_skipped() && settings.hysteresis == 1;
            prop_assert!(!backs_off || scale.scale() <= before);
            let (min, max) = (settings.min_scale, settings.max_scale);
            prop_assert!(min.is_none_or(|min| scale.scale() >= min as f32));
            prop_assert!(max.is_none_or(|max| scale.scale() <= max as f32));
        }
        prop_assert!(restored.is_none_or(|restored| restored == scale));
    }
}

/// What gradients show a device: that they are finite, overflow, or are all zero.
const FINITE: usize = 0;
const OVERFLOW: usize = 1;
const ZERO: usize = 2;

/// Moves a state by what gradients have shown.
fn moving() -> impl Fn(DeviceScale, usize) -> DeviceScale {
    let statuses = [[1.0, -3.0], [1.0, f32::NEG_INFINITY], [0.0; 2]].map(|values| {
        let mut list = TensorList::new();
        for value in values {
            list.push(Tensor::<1>::from_floats([value, 0.0], &Device::default()));
        }
        inspect(list).unwrap()
    });
    move |state, shown| state.advance(&statuses[shown], None, &[])
}

/// So many histories of schedules that a device can move.
fn beside_the_host(cases: u32) {
    let schedules = settings(true).prop_filter_map("the host's alone", |config| {
        let schedule = config.schedule().ok()?;
        Some((on_device(&schedule)?, schedule))
    });
    let shown = prop_oneof![6 => Just(FINITE), 3 => Just(OVERFLOW), 1 => Just(ZERO)];
    let zeros = GradientStatus::default().with_max_abs(0.0);
    let mut runner = TestRunner::new(ProptestConfig {
        source_file: Some(file!()),
        ..ProptestConfig::with_cases(cases)
    });
    let (drawn, advance) = ((schedules, vec(shown, 0..25)), moving());
    let result = runner.run(&drawn, |((state, mut schedule), history)| {
        let (mut state, mut skipped) = (state.upload(&Device::default()), 0);
        for (shown, steps) in history.into_iter().zip(1..) {
            let measured = (shown == ZERO).then_some(&zeros);
            schedule = schedule.adjust(evidence(shown == OVERFLOW, measured));
            state = advance(state, shown);
            let found = state.read();
            let trackers = [found.growth_tracker, found.hysteresis_tracker];
            let expected = [schedule.growth_tracker(), schedule.hysteresis_tracker()];
            assert_eq!(found.capped(), schedule.scale(), "{schedule:?}");
            assert_eq!(trackers, expected, "{schedule:?}");
            assert_eq!(found.growth_interval, schedule.growth_interval());
            let is_skip = u8::from(shown == OVERFLOW);
            skipped += u32::from(is_skip);
            assert_eq!((found.steps, found.skipped), (steps, skipped));
            assert_eq!(found.found_inf, f32::from(is_skip));
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Each read of a device takes its time.
#[test]
fn the_device_moves_it_as_the_host_does() {
    beside_the_host(if on_flex() { 2000 } else { 40 });
}

#[test]
#[ignore = "slow"]
fn sweep_histories_of_a_device() {
    beside_the_host(300_000);
}

/// What is no power of two, and rules that look at gradients.
#[test]
fn what_only_the_host_knows() {
    let config = GradScalerConfig::new();
    for (config, is_the_devices) in [
        (config, true),
        (config.with_init_scale(3.0), false),
        (config.with_growth_factor(1.5), false),
        (config.with_backoff_factor(0.3), false),
        (config.with_min_scale(Some(3.0)), false),
        (config.with_schedule(Schedule::log_max()), false),
    ] {
        let state = on_device(&config.schedule().unwrap());
        assert_eq!(state.is_some(), is_the_devices, "{config}");
    }
}

#[test]
fn down_to_the_last_scale_that_has_an_inverse() {
    let advance = moving();
    for (last, before, shown) in [(f32::MIN_POSITIVE, 2.0, OVERFLOW), (f32::MAX, 0.5, FINITE)] {
        let mut first = ScaleState::new(last * before);
        first.growth_interval = 1;
        let first = first.upload(&Device::default());
        let state = (0..3).fold(first, |state, _| advance(state, shown));
        assert_eq!(state.read().scale, last);
    }
}
