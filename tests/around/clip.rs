//! Clipping by value, by norm and by global norm, of all parameters and of groups.

use GradientClip::{GlobalNorm, Norm, Value};
use proptest::prelude::*;

use crate::{settings, support::*};

/// The weight's norm is 2.9, the bias's 3.07.
const GRADIENT: [f64; 10] = [0.25, -0.5, 1.25, 0.0, -2.5, 0.75, -0.125, 0.25, 3.0, -0.625];

fn unscaled(values: [f64; 10]) -> UnscaledGradients {
    Trial::new(sgd()).unscaled(values)
}

/// All values of gradients.
fn found(grads: &UnscaledGradients) -> Vec<f64> {
    let Pair { weight, bias } = Pair::of(0.0);
    let weight = values(grads.get::<2>(weight.id).unwrap());
    let bias = values(grads.get::<1>(bias.id).unwrap());
    [weight, bias].concat().into_iter().map(f64::from).collect()
}

/// Kernels of other devices sum in f32.
fn assert_norm(found: f64, expected: f64) {
    let tolerance = if on_flex() { 1e-9 } else { 1e-6 };
    let error = (found - expected).abs();
    assert!(error <= tolerance * expected, "{found}, not {expected}");
}

fn assert_values(grads: &UnscaledGradients, expected: [f64; 10]) {
    for (found, expected) in found(grads).into_iter().zip(expected) {
        let error = (found - expected).abs();
        let allowed = 1e-6 * expected.abs() + 1e-38;
        assert!(error <= allowed, "{found} instead of {expected}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// torch.nn.utils.clip_grad_norm_, in f64.
    #[test]
    fn by_global_norm_is_clip_grad_norm(
        weight in prop::array::uniform6(-1e3f32..1e3),
        bias in prop::array::uniform4(-1e-3f32..1e-3),
        max_norm in 1e-4f64..1e4,
    ) {
        let both = [weight.as_slice(), bias.as_slice()].concat();
        let original = from_fn(|index| f64::from(both[index]));
        let grads = unscaled(original).clip(&GlobalNorm(max_norm)).unwrap();
        let norm = l2(&original);
        let coefficient = (max_norm / (norm + 1e-6)).min(1.0);
        assert_values(&grads, original.map(|value| value * coefficient));
        let status = grads.status();
        assert_eq!(status.clipped(), Some(if coefficient < 1.0 { 2 } else { 0 }));
        assert_norm(status.norm(), norm);
        assert_eq!(status.clip_norms(), [status.norm()]);
        assert_norm(status.clip_coefficient().unwrap(), coefficient);
    }
}

/// Of groups the last that matches counts, in whatever order rules are added to an optimizer, and other parameters are left alone. Within its
/// threshold a rule touches nothing.
#[test]
fn what_each_rule_makes_of_gradients() {
    let [norm, weight, bias] = [&GRADIENT[..], &GRADIENT[..6], &GRADIENT[6..]].map(l2);
    let times = |of_weight: f64, of_bias: f64| {
        from_fn(|index| GRADIENT[index] * if index < 6 { of_weight } else { of_bias })
    };
    let limited = |limit: f64| GRADIENT.map(|value| value.clamp(-limit, limit));
    let one = times(0.1 / norm, 0.1 / norm);
    let two = times(1.0 / weight, 2.0 / bias);
    let bias_group = |clip| (ParamGroup::from_predicate("bias"), clip);
    let by_id = ParamGroup::from_ids(vec![Pair::of(0.0).bias.id]);
    let last = vec![bias_group(Norm(0.001)), (by_id, Norm(3.0))];
    let of_bias = vec![bias_group(GlobalNorm(2.0))];
    for (all, groups, expected, clipped, norms) in [
        (Some(GlobalNorm(100.0)), vec![], GRADIENT, 0, vec![norm]),
        (
            Some(GlobalNorm(f64::INFINITY)),
            vec![],
            GRADIENT,
            0,
            vec![norm],
        ),
        (Some(GlobalNorm(0.1)), vec![], one, 2, vec![norm]),
        (Some(GlobalNorm(1.0)), of_bias, two, 2, vec![weight, bias]),
        (Some(Norm(100.0)), vec![], GRADIENT, 0, vec![]),
        (Some(Norm(3.0)), vec![], times(1.0, 3.0 / bias), 1, vec![]),
        (None, last, times(1.0, 3.0 / bias), 1, vec![]),
        (Some(Value(3.0)), vec![], GRADIENT, 0, vec![]),
        (Some(Value(0.625)), vec![], limited(0.625), 2, vec![]),
    ] {
        let of_all = all.map(|clip| (ParamGroup::all(), clip));
        let rules = [of_all.into_iter().collect(), groups.clone()].concat();
        let before = unscaled(GRADIENT);
        let place = |grads: &UnscaledGradients| {
            on_flex().then(|| address(grads.get::<2>(Pair::of(0.0).weight.id)))
        };
        let start = place(&before);
        let grads = before.clip_groups(&rules).unwrap();
        assert_eq!(place(&grads), start, "in place");
        assert_values(&grads, expected);
        assert!(clipped > 0 || found(&grads) == GRADIENT);
        let status = grads.status();
        assert_eq!(status.clipped(), Some(clipped), "{rules:?}");
        assert_eq!(status.clip_norms().len(), norms.len());
        for (found, expected) in status.clip_norms().iter().zip(&norms) {
            assert_norm(*found, *expected);
        }
        // The smallest.
        let factors = [4, 8].map(|index| expected[index] / GRADIENT[index]);
        let coefficient = status.clip_coefficient();
        assert_eq!(coefficient.is_some(), !norms.is_empty());
        let off = coefficient.map_or(0.0, |found| found - factors[0].min(factors[1]));
        assert!(off.abs() < 1e-6, "{rules:?}: {coefficient:?}");
        // A second time changes nothing more, but for what is added to a global norm. Zeros stay zero.
        if norms.is_empty() {
            let again = grads.clone().clip_groups(&rules).unwrap();
            assert_values(&again, expected);
        }
        let zeros = unscaled([0.0; 10]).clip_groups(&rules).unwrap();
        assert_eq!(found(&zeros), [0.0; 10]);

        // An optimizer does the same.
        let with_all = |optim: ScaledOptimizer| match all {
            Some(clip) => optim.with_clipping(clip),
            None => optim,
        };
        let with_groups = |optim: ScaledOptimizer| {
            let groups = groups.iter().cloned();
            groups.fold(optim, |optim, (group, clip)| {
                optim.with_group_clipping(group, clip)
            })
        };
        for optim in [with_groups(with_all(sgd())), with_all(with_groups(sgd()))] {
            let mut run = Trial::new(optim);
            assert_eq!(run.optim.clipping().is_some(), all.is_some());
            run.step(GRADIENT);
            let stepped = found(&grads).into_iter().map(|value| -value);
            assert!(run.values().into_iter().eq(stepped), "{rules:?}");
            assert_eq!(run.status(), grads.status().clone());
            // A skipped step is not clipped.
            run.step(BAD);
            let status = run.status();
            assert_eq!((status.clip_coefficient(), status.clipped()), (None, None));
        }
    }
}

#[test]
fn a_threshold_that_is_not_positive_is_refused() {
    let thresholds = [0.0, -0.0, -1.0, f64::NAN, f64::NEG_INFINITY];
    let ways = |threshold| [GlobalNorm(threshold), Norm(threshold), Value(threshold)];
    for clip in thresholds.map(ways).concat() {
        let (all, grads) = (ParamGroup::all, || unscaled(ONES));
        let message = format!(" is {clip:?}, but must be a threshold above 0");
        let groups = vec![(all(), clip)];
        let of_all = [
            first_error(sgd().with_clipping(clip)),
            grads().clip(&clip).unwrap_err(),
            settings::init(&settings::new().with_clip(Some(clip))).unwrap_err(),
        ];
        let of_groups = [
            first_error(sgd().with_group_clipping(all(), clip)),
            grads().clip_groups(&groups).unwrap_err(),
            settings::init(&settings::new().with_clip_groups(groups)).unwrap_err(),
        ];
        for (all, groups) in of_all.iter().zip(&of_groups) {
            is_error(all, "InvalidValue", ["`clip`", &message]);
            is_error(groups, "InvalidValue", ["`clip_groups`", &message]);
        }
    }
}

#[test]
fn clipping_of_the_inner_optimizer_comes_after() {
    let inner = SgdConfig::new().init();
    let inner = inner.with_grad_clipping(GradientClipping::Value(0.25));
    let optim = ScaledOptimizer::new(inner, sgd().scaler().clone());
    let mut run = Trial::new(optim.with_clipping(Value(0.5)));
    run.step(GRADIENT);
    assert_eq!(run.values()[6..], [0.125, -0.25, -0.25, 0.25]);
}

#[test]
fn parameters_without_a_gradient_are_not_in_the_norm() {
    let run = ByHand::of(Pair::of(0.0), at_scale(1.0));
    let mut grads = run.model.plain(GRADIENT);
    grads.remove::<2>(run.model.weight.id).unwrap();
    let [found, none] = [grads, GradientsParams::new()].map(|grads| {
        let grads = run.unscale(grads).clip(&GlobalNorm(1.0)).unwrap();
        grads.status().clip_norms().to_vec()
    });
    assert_norm(found[0], l2(&GRADIENT[6..]));
    assert_eq!(none, [0.0]);
}

/// A fused optimizer leaves none of their digits out, where it multiplies other gradients by f32 factors.
#[test]
fn f64_gradients_are_clipped_in_f64() {
    if !on_flex() {
        return;
    }
    for clip in [GlobalNorm(0.3), Norm(0.3)] {
        fn clipped<O: ModuleOptim>(optim: O, clip: GradientClip) -> Vec<f64> {
            let scaler = at_scale(4.0).init().unwrap();
            let optim = ScaledOptimizer::new(optim, scaler).with_clipping(clip);
            let mut run = Trial::new(optim).with_dtype(DType::F64);
            run.step(GRADIENT);
            run.values()
        }
        let burns = clipped(SgdConfig::new().init(), clip);
        assert_eq!(clipped(FusedSgd::new(SgdConfig::new()), clip), burns);
    }
}
