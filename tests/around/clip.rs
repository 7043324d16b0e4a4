//! Clipping by value, by norm and by global norm, of all parameters and of groups.

use proptest::prelude::*;

use crate::support::*;

const WEIGHT: [f32; 6] = [0.3, -0.4, 1.2, 0.0, -2.5, 0.7];
const BIAS: [f32; 4] = [-0.1, 0.2, 3.0, -0.6];

fn scaler() -> GradScaler {
    GradScalerConfig::new().init().unwrap()
}

fn zeros() -> Pair {
    Pair::zeros(DType::F32)
}

fn unscaled_values(values: Values) -> UnscaledGradients {
    Trial::new(sgd()).unscaled(values)
}

fn unscaled() -> UnscaledGradients {
    unscaled_values((WEIGHT, BIAS))
}

/// The values of the weight's gradient and of the bias's.
fn both(grads: &UnscaledGradients) -> (Vec<f32>, Vec<f32>) {
    let Pair { weight, bias } = zeros();
    let weight = grads.get::<2>(weight.id).unwrap();
    (values(weight), values(grads.get::<1>(bias.id).unwrap()))
}

/// Three ways to clip at the same threshold.
fn ways(threshold: f64) -> [GradientClip; 3] {
    use GradientClip::{GlobalNorm, Norm, Value};
    [GlobalNorm(threshold), Norm(threshold), Value(threshold)]
}

fn bias_group() -> ParamGroup {
    ParamGroup::from_predicate("bias")
}

/// Kernels of other devices sum in f32.
fn assert_norm(found: f64, expected: f64) {
    let tolerance = if on_flex() { 1e-9 } else { 1e-6 };
    let error = (found - expected).abs();
    assert!(error <= tolerance * expected, "{found}, not {expected}");
}

fn assert_times(found: &[f32], original: &[f32], factor: f64) {
    for (found, original) in found.iter().zip(original) {
        let expected = f64::from(*original) * factor;
        let error = (f64::from(*found) - expected).abs();
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
        let grads = unscaled_values((weight, bias));
        let grads = grads.clip(&GradientClip::GlobalNorm(max_norm)).unwrap();
        let norm = l2(&[weight.as_slice(), bias.as_slice()].concat());
        let coefficient = (max_norm / (norm + 1e-6)).min(1.0);
        let found = both(&grads);
        assert_times(&found.0, &weight, coefficient);
        assert_times(&found.1, &bias, coefficient);

        let status = grads.status();
        assert_eq!(status.clipped(), Some(if coefficient < 1.0 { 2 } else { 0 }));
        assert_norm(status.norm(), norm);
        assert_eq!(status.clip_norms(), [status.norm()]);
        assert_norm(status.clip_coefficient().unwrap(), coefficient);
    }
}

#[test]
fn within_the_threshold_gradients_are_not_touched_and_above_it_clipped_in_place() {
    if !on_flex() {
        return;
    }
    let id = zeros().weight.id;
    let others = [
        GradientClip::Value(3.0),
        GradientClip::GlobalNorm(f64::INFINITY),
    ];
    for clip in ways(100.0).into_iter().chain(others) {
        let before = unscaled();
        let place = address(before.get::<2>(id));
        let grads = before.clip(&clip).unwrap();
        let status = grads.status();
        assert_eq!(status.clipped(), Some(0));
        assert_eq!(address(grads.get::<2>(id)), place);
        assert_eq!(both(&grads), (WEIGHT.to_vec(), BIAS.to_vec()));
        let global = matches!(clip, GradientClip::GlobalNorm(_));
        let norms = [status.norm()];
        assert_eq!(status.clip_norms(), &norms[..usize::from(global)]);
        assert_eq!(status.clip_coefficient(), global.then_some(1.0));
    }
    let before = unscaled();
    let place = address(before.get::<2>(id));
    let grads = before.clip(&GradientClip::GlobalNorm(0.1)).unwrap();
    assert_eq!(address(grads.get::<2>(id)), place);
}

#[test]
fn by_norm_shortens_each_parameter() {
    // The weight's norm is 2.9, the bias's 3.07.
    let grads = unscaled().clip(&GradientClip::Norm(3.0)).unwrap();
    let (weight, bias) = both(&grads);
    assert_eq!(weight, WEIGHT);
    assert_times(&bias, &BIAS, 3.0 / l2(&BIAS));
    assert_eq!(grads.status().clipped(), Some(1));
    assert!(grads.status().clip_norms().is_empty());
}

/// And a second time changes nothing. Zeros stay zero by any way.
#[test]
fn by_value_limits_each_value() {
    let clip = GradientClip::Value(0.65);
    let mut grads = unscaled();
    for clipped in [2, 0] {
        grads = grads.clip(&clip).unwrap();
        let (weight, bias) = both(&grads);
        assert_eq!(weight, [0.3, -0.4, 0.65, 0.0, -0.65, 0.65]);
        assert_eq!(bias, [-0.1, 0.2, 0.65, -0.6]);
        assert_eq!(grads.status().clipped(), Some(clipped));
    }
    for clip in ways(1.0) {
        let grads = unscaled_values(all(0.0)).clip(&clip).unwrap();
        assert_eq!(both(&grads), (vec![0.0; 6], vec![0.0; 4]));
    }
}

#[test]
fn a_global_norm_is_that_of_its_group() {
    let rules = [
        (ParamGroup::all(), GradientClip::GlobalNorm(1.0)),
        (bias_group(), GradientClip::GlobalNorm(2.0)),
    ];
    let grads = unscaled().clip_groups(&rules).unwrap();
    let (weight, bias) = both(&grads);
    assert_times(&weight, &WEIGHT, 1.0 / (l2(&WEIGHT) + 1e-6));
    assert_times(&bias, &BIAS, 2.0 / (l2(&BIAS) + 1e-6));
    let [of_weight, of_bias] = grads.status().clip_norms() else {
        panic!("{:?}", grads.status());
    };
    assert_norm(*of_weight, l2(&WEIGHT));
    assert_norm(*of_bias, l2(&BIAS));
}

#[test]
fn the_last_group_that_matches_counts_and_others_are_left_alone() {
    let by_id = ParamGroup::from_ids(vec![zeros().bias.id]);
    let rules = [
        (bias_group(), GradientClip::Norm(0.001)),
        (by_id, GradientClip::Value(0.5)),
    ];
    let (weight, bias) = both(&unscaled().clip_groups(&rules).unwrap());
    assert_eq!(weight, WEIGHT);
    assert_eq!(bias, [-0.1, 0.2, 0.5, -0.5]);
}

#[test]
fn a_threshold_that_is_not_positive_is_refused() {
    for threshold in [0.0, -0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
        for clip in ways(threshold) {
            let all = ParamGroup::all;
            let of_all = [
                Some(first_error(sgd().with_clipping(clip))),
                unscaled().clip(&clip).err(),
            ];
            let of_groups = [
                Some(first_error(sgd().with_group_clipping(all(), clip))),
                unscaled().clip_groups(&[(all(), clip)]).err(),
            ];
            for (found, field) in [(of_all, "clip"), (of_groups, "clip_groups")] {
                let expected = AmpError::InvalidValue {
                    field,
                    value: format!("{clip:?}"),
                    allowed: "a threshold above 0".into(),
                };
                assert_eq!(found, [Some(expected.clone()), Some(expected)]);
            }
        }
    }
}

/// The optimizer clips as it is done by hand: of all parameters, and of groups in whatever order they were added.
#[test]
fn the_optimizer_clips_as_it_is_done_by_hand() {
    let (global, value) = (GradientClip::GlobalNorm(0.5), GradientClip::Value(0.25));
    let of_bias = |optim: ScaledOptimizer| optim.with_group_clipping(bias_group(), value);
    let of_all = |optim: ScaledOptimizer| optim.with_clipping(global);
    let all = (ParamGroup::all(), global);
    let both = vec![all.clone(), (bias_group(), value)];
    for (optim, rules) in [
        (of_all(sgd()), vec![all]),
        (of_all(of_bias(sgd())), both.clone()),
        (of_bias(of_all(sgd())), both),
    ] {
        let (mut built_in, mut by_hand) = (Trial::new(optim), Trial::new(sgd()));
        assert!(built_in.optim.clipping().is_some());
        for step in 0..5 {
            let weight = WEIGHT.map(|value| value * (step + 1) as f32);
            built_in.step((weight, BIAS));
            let grads = by_hand.unscaled((weight, BIAS));
            by_hand.take_unscaled(grads.clip_groups(&rules).unwrap());
            assert_eq!(built_in.values(), by_hand.values());
            assert_eq!(built_in.status(), by_hand.status());
            assert!(built_in.status().norm() > 0.5);
            assert_eq!(built_in.status().clipped(), Some(2));
        }
        assert_ne!(built_in.values(), [0.0; 10]);
    }
}

#[test]
fn clipping_of_the_inner_optimizer_comes_after() {
    let inner = SgdConfig::new().init();
    let inner = inner.with_grad_clipping(GradientClipping::Value(0.25));
    let optim = ScaledOptimizer::new(inner, scaler()).with_clipping(GradientClip::Value(0.5));
    let mut run = Trial::new(optim);
    run.step((WEIGHT, BIAS));
    assert_eq!(run.values()[6..], [0.1, -0.2, -0.25, 0.25]);
}

#[test]
fn parameters_without_a_gradient_are_not_in_the_norm() {
    let (model, clip) = (zeros(), GradientClip::GlobalNorm(1.0));
    let mut grads = model.gradients((WEIGHT, BIAS), 65536.0);
    grads.params_mut().remove::<2>(model.weight.id).unwrap();
    let none = scaled_by_hand(&scaler(), GradientsParams::new());
    let [found, none] = [grads, none].map(|grads| {
        let grads = scaler().unscale(grads, &model).unwrap();
        grads.clip(&clip).unwrap().status().clip_norms().to_vec()
    });
    assert_norm(found[0], l2(&BIAS));
    assert_eq!(none, [0.0]);
}

/// What the scaler tells of it.
#[test]
fn the_smallest_coefficient_is_in_the_status() {
    let clip = GradientClip::GlobalNorm(1.0);
    let grouped = sgd().with_group_clipping(bias_group(), clip);
    let mut run = Trial::new(grouped.with_clipping(clip));
    assert!(run.optim.scaler().last_status().is_none());

    let gradient = |bias| ([0.5, 0.0, 0.0, 0.0, 0.0, 0.0], [bias, 0.0, 0.0, 0.0]);
    for (values, coefficient, clipped) in [
        (gradient(4.0), Some(1.0 / (4.0 + 1e-6)), Some(1)),
        (gradient(0.5), Some(1.0), Some(0)),
        // A skipped step is not clipped.
        (all(f32::NAN), None, None),
    ] {
        run.step(values);
        let status = run.status();
        assert_eq!(status.clip_coefficient(), coefficient);
        assert_eq!(status.clipped(), clipped);
    }
    // Nor is there a coefficient where no group has a global norm.
    let mut run = Trial::new(sgd().with_clipping(GradientClip::Value(1.0)));
    run.step(gradient(4.0));
    assert_eq!(run.status().clip_coefficient(), None);
    assert_eq!(run.status().clipped(), Some(1));
}

/// Finite gradients whose norm is above what f64 holds are clipped all the same.
#[test]
fn a_norm_beyond_f64() {
    if !on_flex() {
        return;
    }
    let model = Pair::zeros(DType::F64);
    let clipped = |value: f64, clip: GradientClip| {
        let data = TensorData::new(vec![value; 4], [4]);
        let device = (&Device::default(), DType::F64);
        let mut grads = GradientsParams::new();
        grads.register(model.bias.id, Tensor::<1>::from_data(data, device));
        let scaler = at_scale(1.0);
        let scaler = scaler.with_dynamic(false).init().unwrap();
        let grads = scaler.unscale(scaled_by_hand(&scaler, grads), &model);
        let grads = grads.unwrap().clip(&clip).unwrap();
        let bias = grads.get::<1>(model.bias.id).unwrap().into_data();
        (grads, bias.iter::<f64>().collect::<Vec<_>>())
    };
    for (clip, expected) in [
        (GradientClip::Norm(4.0), 2.0),
        (GradientClip::GlobalNorm(4.0), 2.0),
        (GradientClip::Value(3.0), 3.0),
    ] {
        let (grads, bias) = clipped(1.5e308, clip);
        assert!(!grads.has_overflow());
        assert_eq!(grads.status().norm(), f64::INFINITY);
        assert_eq!(grads.status().clipped(), Some(1));
        let is_close = |value: &f64| (value - expected).abs() < 1e-9;
        assert!(bias.iter().all(is_close), "{clip:?}: {bias:?}");
    }
    // Infinity still measures and never clips.
    let (grads, bias) = clipped(-1.5e308, GradientClip::GlobalNorm(f64::INFINITY));
    assert_eq!(grads.status().clipped(), Some(0));
    assert_eq!(bias, [-1.5e308; 4]);
}
