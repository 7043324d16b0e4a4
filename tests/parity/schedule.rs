//! What holds for every schedule, whatever its settings and outcomes.

use burn_amp_tests::prelude::*;
use proptest::prelude::*;

prop_compose! {
    /// With a schedule of ours, and a warm-up or none.
    fn settings()(
        init_scale in (-40i32..40, 1.0f64..2.0).prop_map(|(exponent, mantissa)| mantissa * 2f64.powi(exponent)),
        growth_factor in 1.01f64..8.0,
        backoff_factor in 0.01f64..0.99,
        growth_interval in 1u32..8,
        below in prop::option::of(0i32..20),
        above in prop::option::of(0i32..20),
        hysteresis in 1u32..5,
        consecutive_hysteresis: bool,
        (schedule, warmup_steps) in schedules(),
    ) -> GradScalerConfig {
        GradScalerConfig {
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            min_scale: below.map(|exponent| init_scale / 2f64.powi(exponent)),
            max_scale: above.map(|exponent| init_scale * 2f64.powi(exponent)),
            hysteresis,
            consecutive_hysteresis,
            schedule,
            warmup_steps,
            warmup_scale: init_scale,
            ..Default::default()
        }
    }
}

/// A schedule of ours, and a warm-up or none.
fn schedules() -> impl Strategy<Value = (Schedule, u32)> {
    let schedule = prop_oneof![
        Just(Schedule::GrowthInterval),
        (1u32..9, 9u32..40).prop_map(|(min_interval, max_interval)| Schedule::AdaptiveInterval {
            min_interval,
            max_interval,
        }),
        (0.0f64..1.0, 0.0f64..1.0, 0.0f64..9.0).prop_map(|(beta1, beta2, overflow_std_dev)| {
            Schedule::LogMax {
                beta1,
                beta2,
                overflow_std_dev,
            }
        }),
        (0.0f64..=1.0, 0.0f64..=1.0, 1u32..5).prop_map(|(edge, share, period)| Schedule::NearTop {
            edge,
            share,
            period,
        }),
    ];
    (schedule, prop_oneof![Just(0), 1u32..50])
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
    fn every_schedule_stays_finite_and_in_its_bounds(settings in settings(), seen in seen()) {
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
        settings in settings(), before in seen(), after in seen()
    ) {
        let middle = followed(settings.schedule().unwrap(), &before);
        let json = serde_json::to_string(&middle).unwrap();
        let restored: LossScale = serde_json::from_str(&json).unwrap();
        prop_assert_eq!(&restored, &middle);
        prop_assert_eq!(followed(restored, &after), followed(middle, &after));
    }
}
