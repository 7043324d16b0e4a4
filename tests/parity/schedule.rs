//! What holds for every schedule, whatever its settings and outcomes.

use burn_amp_tests::prelude::*;
use proptest::prelude::*;

prop_compose! {
    /// With a schedule of ours, and a warm-up or none. Where it is `exact`, scales and factors are powers of two, and the schedule is one
    /// that a device moves.
    pub fn settings(exact: bool)(
        exponent in -40i32..40,
        mantissa in 1.0f64..2.0,
        growth_factor in 1.01f64..8.0,
        backoff_factor in 0.01f64..0.99,
        growth_interval in 1u32..8,
        dynamic in prop::bool::weighted(0.9),
        below in prop::option::of(0i32..20),
        above in prop::option::of(0i32..20),
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
    let interval = (1u32..9, 9u32..40);
    let log_max = (0.0f64..1.0, 0.0f64..1.0, 0.0f64..9.0);
    let near_top = (0.0f64..=1.0, 0.0f64..=1.0, 1u32..5);
    let all = (0..if exact { 3 } else { 5 }, interval, log_max, near_top);
    all.prop_map(|(kind, interval, log_max, near_top)| match kind {
        0 | 1 => Schedule::GrowthInterval,
        2 => Schedule::AdaptiveInterval {
            min_interval: interval.0,
            max_interval: interval.1,
        },
        3 => Schedule::LogMax {
            beta1: log_max.0,
            beta2: log_max.1,
            overflow_std_dev: log_max.2,
        },
        _ => Schedule::NearTop {
            edge: near_top.0,
            share: near_top.1,
            period: near_top.2,
        },
    })
}

/// Iterations with measures of every kind, impossible ones too.
fn seen() -> impl Strategy<Value = Vec<(StepOutcome, GradientStatus)>> {
    let outcome = prop_oneof![4 => Just(StepOutcome::Stepped), 1 => Just(StepOutcome::Skipped)];
    let max_abs = prop_oneof![
        10 => (-1000i32..1000).prop_map(|exponent| 2f64.powi(exponent)),
        1 => Just(0.0),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NAN),
    ];
    let step = (outcome, max_abs, 0u64..100, 0u64..100);
    let step = step.prop_map(|(outcome, max_abs, elements, above)| {
        let status = GradientStatus::default().with_max_abs(max_abs);
        (outcome, status.with_values(elements, above))
    });
    prop::collection::vec(step, 0..150)
}

fn followed(scale: LossScale, seen: &[(StepOutcome, GradientStatus)]) -> LossScale {
    let next = |scale: LossScale, (outcome, status): &(StepOutcome, GradientStatus)| {
        scale.adjust((*outcome, status))
    };
    seen.iter().fold(scale, next)
}

proptest! {
    #[test]
    fn every_schedule_stays_finite_and_in_its_bounds(settings in settings(false), seen in seen()) {
        let mut scale = settings.schedule().unwrap();
        for (outcome, status) in &seen {
            let before = scale.scale();
            scale = scale.adjust((*outcome, status));
            prop_assert!(scale.scale().is_finite() && scale.scale() >= 0.0);
            // While overflows are tolerated, the cap of a warm-up may rise.
            let backs_off = outcome.is_skipped() && settings.hysteresis == 1;
            prop_assert!(!backs_off || scale.scale() <= before);
            let (min, max) = (settings.min_scale, settings.max_scale);
            prop_assert!(min.is_none_or(|min| scale.scale() >= min as f32));
            prop_assert!(max.is_none_or(|max| scale.scale() <= max as f32));
        }
    }

    #[test]
    fn every_schedule_goes_on_from_a_saved_state(
        settings in settings(false), before in seen(), after in seen()
    ) {
        let middle = followed(settings.schedule().unwrap(), &before);
        let json = serde_json::to_string(&middle).unwrap();
        let restored: LossScale = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(&restored, &middle);
        prop_assert_eq!(followed(restored, &after), followed(middle, &after));
    }
}
