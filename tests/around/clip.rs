//! Clipping by value, by norm and by global norm, of all parameters and of groups.

use GradientClip::{GlobalNorm, Norm, Value};
use proptest::prelude::*;

use crate::{settings, support::*};

/// A rule of each kind, whose threshold may be infinite.
fn rule() -> impl Strategy<Value = GradientClip> {
    let threshold = prop_oneof![9 => (-10f64..6.0).prop_map(f64::exp2), 1 => Just(f64::INFINITY)];
    let rules = |limit| [GlobalNorm(limit), Norm(limit), Value(limit)];
    (0..3usize, threshold).prop_map(move |(kind, limit)| rules(limit)[kind])
}

/// The weight, the bias by its path or its id, or all.
fn group(which: usize) -> ParamGroup {
    match which {
        0 => ParamGroup::from_predicate("weight"),
        1 => ParamGroup::from_predicate("bias"),
        2 => ParamGroup::from_ids(vec![Pair::of(0.0).bias.id]),
        _ => ParamGroup::all(),
    }
}

/// Kernels of other devices sum in f32.
fn is_close(found: f64, expected: f64) -> bool {
    let tolerance = if on_flex() { 1e-9 } else { 1e-6 };
    (found - expected).abs() <= tolerance * expected
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// In f64, as torch.nn.utils.clip_grad_norm_. Of groups the last that matches counts, in whatever order rules are added to an optimizer; other
    /// parameters are left alone, and those without a gradient are in no norm. Within its threshold a rule touches nothing.
    #[test]
    fn each_rule_clips_what_it_is_for(
        values in prop::array::uniform10(-8f32..8.0),
        small in prop_oneof![Just(1.0), Just(1e-3), Just(0.0)],
        has_bias in any::<bool>(),
        all in prop::option::of(rule()),
        groups in prop::collection::vec((0..3usize, rule()), 0..3),
    ) {
        let values = from_fn(|index| f64::from(values[index] * if index < 6 { 1.0 } else { small }));
        let parts = if has_bias { 0..2 } else { 0..1 };
        let part_of = |index: usize| usize::from(index >= 6);
        let of_all = all.map(|clip| (3, clip));
        let rules: Vec<_> = of_all.into_iter().chain(groups.iter().copied()).collect();
        let is_for = |part: usize, of: usize| of == 3 || (of == 0) == (part == 0);
        let rule_of = |part| rules.iter().rposition(|(of, _)| is_for(part, *of));

        let mut expected: [f64; 10] = values;
        let (mut norms, mut coefficients, mut changed) = (vec![], vec![], [false; 2]);
        let values_of = |parts: &[usize]| {
            let found = (0..10).filter(|index| parts.contains(&part_of(*index)));
            found.map(|index| values[index]).collect::<Vec<_>>()
        };
        for (at, (_, clip)) in rules.iter().enumerate() {
            let own: Vec<_> = parts.clone().filter(|part| rule_of(*part) == Some(at)).collect();
            let norm = l2(&values_of(&own));
            let factor_of = |part| match *clip {
                GlobalNorm(limit) => (limit / (norm + 1e-6)).min(1.0),
                Norm(limit) => (limit / l2(&values_of(&[part]))).min(1.0),
                _ => 1.0,
            };
            if let GlobalNorm(_) = clip {
                norms.push(norm);
                coefficients.push(factor_of(0));
            }
            let limit = if let Value(limit) = *clip { limit } else { f64::INFINITY };
            for index in (0..10).filter(|index| own.contains(&part_of(*index))) {
                let part = part_of(index);
                expected[index] = (values[index] * factor_of(part)).clamp(-limit, limit);
                changed[part] |= factor_of(part) < 1.0 || values[index].abs() > limit;
            }
        }

        let run = ByHand::of(Pair::of(0.0), at_scale(1024.0));
        let (weight, bias) = (run.model.weight.id, run.model.bias.id);
        let scaled = || {
            let mut grads = run.model.scaled(values, 1024.0);
            if !has_bias {
                grads.params_mut().remove::<1>(bias);
            }
            grads
        };
        let grads = run.unscale(scaled().into_params());
        let place = |grads: &UnscaledGradients| on_flex().then(|| address(grads.get::<2>(weight)));
        let start = place(&grads);
        let rules: Vec<_> = rules.iter().map(|(of, clip)| (group(*of), *clip)).collect();
        let grads = grads.clip_groups(&rules).unwrap();
        assert_eq!(place(&grads), start, "in place");
        let found = gradients_by_path(grads.params(), &run.model).into_iter();
        let found: Vec<_> = found.flat_map(|(.., values)| values).map(f64::from).collect();
        for (index, found) in found.iter().enumerate() {
            let off = (found - expected[index]).abs();
            let allowed = if changed[part_of(index)] { 1e-6 * expected[index].abs() } else { 0.0 };
            assert!(off <= allowed + 1e-38, "{found} instead of {}", expected[index]);
        }
        let status = grads.status();
        let changed = changed.into_iter().filter(|changed| *changed).count();
        assert_eq!((status.clipped(), status.clip_norms().len()), (Some(changed), norms.len()));
        assert!(status.clip_norms().iter().zip(norms).all(|(found, norm)| is_close(*found, norm)));
        let smallest = coefficients.into_iter().min_by(f64::total_cmp);
        assert_eq!(status.clip_coefficient().is_some(), smallest.is_some());
        assert!(smallest.is_none_or(|one| is_close(status.clip_coefficient().unwrap(), one)));

        // An optimizer does the same.
        let with_all = |optim: ScaledOptimizer| match all {
            Some(clip) => optim.with_clipping(clip),
            None => optim,
        };
        let add = |optim: ScaledOptimizer, (of, clip): &(_, _)| {
            optim.with_group_clipping(group(*of), *clip)
        };
        let with_groups = |optim| groups.iter().fold(optim, add);
        for optim in [with_groups(with_all(sgd())), with_all(with_groups(sgd()))] {
            let mut run = Trial::new(optim);
            run.take(scaled());
            let stepped = found.iter().map(|value| -value);
            assert!(run.values()[..found.len()].iter().copied().eq(stepped));
            if !rules.is_empty() {
                assert_eq!(run.status(), *grads.status());
            }
            assert_eq!(run.optim.clipping().is_some(), all.is_some());
            // A skipped step is not clipped.
            run.step(BAD);
            let status = run.status();
            assert_eq!((status.clip_coefficient(), status.clipped()), (None, None));
        }
    }
}

const GRADIENT: [f64; 10] = [0.25, -0.5, 1.25, 0.0, -2.5, 0.75, -0.125, 0.25, 3.0, -0.625];

#[test]
fn a_threshold_that_is_not_positive_is_refused() {
    let thresholds = [0.0, -0.0, -1.0, f64::NAN, f64::NEG_INFINITY];
    let ways = |threshold| [GlobalNorm(threshold), Norm(threshold), Value(threshold)];
    for clip in thresholds.map(ways).concat() {
        let (all, grads) = (ParamGroup::all(), || Trial::new(sgd()).unscaled(ONES));
        let message = format!(" is {clip:?}, but must be a threshold above 0");
        let groups = vec![(all.clone(), clip)];
        let grouped = sgd().with_group_clipping(all, clip);
        let (new, in_file) = (settings::new, |config| settings::init(&config).unwrap_err());
        for (error, field) in [
            (first_error(sgd().with_clipping(clip)), "`clip`"),
            (grads().clip(&clip).unwrap_err(), "`clip`"),
            (in_file(new().with_clip(Some(clip))), "`clip`"),
            (first_error(grouped), "`clip_groups`"),
            (grads().clip_groups(&groups).unwrap_err(), "`clip_groups`"),
            (in_file(new().with_clip_groups(groups)), "`clip_groups`"),
        ] {
            is_error(&error, "InvalidValue", [field, &message]);
        }
    }
}

/// Such steps are not the device's.
#[test]
fn clipping_of_the_inner_optimizer_comes_after() {
    fn stepped<O: ModuleOptim>(optim: O) -> Vec<f64> {
        let mut run = Trial::at_border_with(optim, &f16_under(at_scale(1024.0)));
        run.optim = run.optim.with_clipping(GlobalNorm(1.0));
        run.take(run.model.plain(GRADIENT));
        run.values()
    }
    let inner = GradientClippingConfig::Value(0.25);
    let config = SgdConfig::new().with_gradient_clipping(Some(inner));
    let coefficient = 1.0 / (l2(&GRADIENT) + 1e-6);
    for values in [stepped(config.init()), stepped(FusedSgd::new(config))] {
        for (found, value) in values.into_iter().zip(GRADIENT) {
            let expected = -(value * coefficient).clamp(-0.25, 0.25);
            assert!((found - expected).abs() < 1e-6, "{found}, {expected}");
        }
    }
}

/// They stay f64, by coefficients in f64.
#[test]
fn f64_gradients_are_clipped() {
    if !on_flex() {
        return skipped("no other device has all of f64");
    }
    for clip in [GlobalNorm(0.3), Norm(0.3)] {
        fn clipped<O: ModuleOptim>(optim: O, clip: GradientClip) -> Vec<f64> {
            let optim = under(at_scale(4.0), optim).with_clipping(clip);
            let mut run = Trial::new(optim).with_dtype(DType::F64);
            run.step(GRADIENT);
            run.values()
        }
        let coefficient = |at: usize| match clip {
            GlobalNorm(most) => most / (l2(&GRADIENT) + 1e-6),
            _ if at < 6 => 0.3 / l2(&GRADIENT[..6]),
            _ => 0.3 / l2(&GRADIENT[6..]),
        };
        let burns = clipped(SgdConfig::new().init(), clip);
        let fused = clipped(FusedSgd::new(SgdConfig::new()), clip);
        for (at, found) in burns.into_iter().chain(fused).enumerate() {
            let off = found + GRADIENT[at % 10] * coefficient(at % 10);
            assert!(off.abs() < 1e-15, "{clip:?}: {found} at {at}");
        }
    }
}
