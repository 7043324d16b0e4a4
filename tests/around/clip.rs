//! Clipping by value, by norm and by global norm, of all parameters and of groups.

use burn_amp_tests::prelude::*;
use burn_amp_tests::scaled_by_hand;
use proptest::prelude::*;

use crate::support::{Pair, address, on_flex, sgd, values};

const WEIGHT: [f32; 6] = [0.3, -0.4, 1.2, 0.0, -2.5, 0.7];
const BIAS: [f32; 4] = [-0.1, 0.2, 3.0, -0.6];

fn scaler() -> GradScaler {
    GradScalerConfig::new().init().unwrap()
}

fn unscaled(model: &Pair) -> UnscaledGradients {
    scaler()
        .unscale(model.gradients(WEIGHT, BIAS, 65536.0), model)
        .unwrap()
}

fn both(grads: &UnscaledGradients, model: &Pair) -> (Vec<f32>, Vec<f32>) {
    let weight = grads.get::<2>(model.weight.id).unwrap();
    let bias = grads.get::<1>(model.bias.id).unwrap();
    (values(weight), values(bias))
}

fn norm(values: &[f32]) -> f64 {
    let squares = values.iter().map(|value| f64::from(*value).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Kernels of other devices sum in f32.
fn assert_norm(found: f64, expected: f64) {
    let tolerance = if on_flex() { 1e-9 } else { 1e-6 };
    assert!((found - expected).abs() <= tolerance * expected);
}

fn assert_times(found: &[f32], original: &[f32], factor: f64) {
    for (found, original) in found.iter().zip(original) {
        let expected = f64::from(*original) * factor;
        let error = (f64::from(*found) - expected).abs();
        assert!(
            error <= 1e-6 * expected.abs() + 1e-38,
            "{found} instead of {expected}"
        );
    }
}

#[test]
fn by_global_norm_is_clip_grad_norm() {
    let model = Pair::zeros(DType::F32);
    let all = [WEIGHT.as_slice(), BIAS.as_slice()].concat();
    let norm = norm(&all);
    for max_norm in [1e-3, 0.5, 1.0, 4.0] {
        let grads = unscaled(&model)
            .clip(&GradientClip::GlobalNorm(max_norm))
            .unwrap();
        let (weight, bias) = both(&grads, &model);
        // torch.nn.utils.clip_grad_norm_, in f64.
        let coefficient = max_norm / (norm + 1e-6);
        assert!(coefficient < 1.0);
        assert_times(&weight, &WEIGHT, coefficient);
        assert_times(&bias, &BIAS, coefficient);

        let status = grads.status();
        assert_eq!(status.clipped(), Some(2));
        assert_norm(status.norm(), norm);
        assert_eq!(status.clip_norms(), [status.norm()]);
        assert_norm(status.clip_coefficient().unwrap(), coefficient);
    }
}

#[test]
fn within_the_threshold_gradients_are_not_touched() {
    if !on_flex() {
        return;
    }
    let model = Pair::zeros(DType::F32);
    for clip in [
        GradientClip::GlobalNorm(100.0),
        GradientClip::Norm(100.0),
        GradientClip::Value(100.0),
        GradientClip::Value(3.0),
        GradientClip::GlobalNorm(f64::INFINITY),
    ] {
        let before = unscaled(&model);
        let place = address(before.get::<2>(model.weight.id));
        let grads = before.clip(&clip).unwrap();
        assert_eq!(grads.status().clipped(), Some(0));
        assert_eq!(address(grads.get::<2>(model.weight.id)), place);
        assert_eq!(both(&grads, &model), (WEIGHT.to_vec(), BIAS.to_vec()));
        let global = matches!(clip, GradientClip::GlobalNorm(_));
        let norms = [grads.status().norm()];
        assert_eq!(grads.status().clip_norms(), &norms[..usize::from(global)]);
        assert_eq!(grads.status().clip_coefficient(), global.then_some(1.0));
    }
}

#[test]
fn clipping_is_in_place() {
    if !on_flex() {
        return;
    }
    let model = Pair::zeros(DType::F32);
    let before = unscaled(&model);
    let place = address(before.get::<2>(model.weight.id));
    let grads = before.clip(&GradientClip::GlobalNorm(0.1)).unwrap();
    assert_eq!(address(grads.get::<2>(model.weight.id)), place);
}

#[test]
fn by_norm_shortens_each_parameter() {
    let model = Pair::zeros(DType::F32);
    // The weight's norm is 2.9, the bias's 3.07.
    let grads = unscaled(&model).clip(&GradientClip::Norm(3.0)).unwrap();
    let (weight, bias) = both(&grads, &model);
    assert_eq!(weight, WEIGHT);
    assert_times(&bias, &BIAS, 3.0 / norm(&BIAS));
    assert_eq!(grads.status().clipped(), Some(1));
    assert!(grads.status().clip_norms().is_empty());
}

#[test]
fn by_value_limits_each_value() {
    let model = Pair::zeros(DType::F32);
    let grads = unscaled(&model).clip(&GradientClip::Value(0.65)).unwrap();
    let (weight, bias) = both(&grads, &model);
    assert_eq!(weight, [0.3, -0.4, 0.65, 0.0, -0.65, 0.65]);
    assert_eq!(bias, [-0.1, 0.2, 0.65, -0.6]);
}

#[test]
fn zero_gradients_stay_zero() {
    let model = Pair::zeros(DType::F32);
    for clip in [
        GradientClip::GlobalNorm(1.0),
        GradientClip::Norm(1.0),
        GradientClip::Value(1.0),
    ] {
        let grads = scaler()
            .unscale(model.gradients([0.0; 6], [0.0; 4], 1.0), &model)
            .unwrap();
        assert_eq!(
            both(&grads.clip(&clip).unwrap(), &model),
            (vec![0.0; 6], vec![0.0; 4])
        );
    }
}

#[test]
fn a_global_norm_is_that_of_its_group() {
    let model = Pair::zeros(DType::F32);
    let rules = [
        (ParamGroup::all(), GradientClip::GlobalNorm(1.0)),
        (
            ParamGroup::from_predicate("bias"),
            GradientClip::GlobalNorm(2.0),
        ),
    ];
    let grads = unscaled(&model).clip_groups(&rules).unwrap();
    let (weight, bias) = both(&grads, &model);
    assert_times(&weight, &WEIGHT, 1.0 / (norm(&WEIGHT) + 1e-6));
    assert_times(&bias, &BIAS, 2.0 / (norm(&BIAS) + 1e-6));
    let norms = grads.status().clip_norms();
    assert_eq!(norms.len(), 2);
    assert_norm(norms[0], norm(&WEIGHT));
    assert_norm(norms[1], norm(&BIAS));
}

#[test]
fn the_last_group_that_matches_counts_and_others_are_left_alone() {
    let model = Pair::zeros(DType::F32);
    let by_id = ParamGroup::from_ids(vec![model.bias.id]);
    let rules = [
        (
            ParamGroup::from_predicate("bias"),
            GradientClip::Norm(0.001),
        ),
        (by_id, GradientClip::Value(0.5)),
    ];
    let grads = unscaled(&model).clip_groups(&rules).unwrap();
    let (weight, bias) = both(&grads, &model);
    assert_eq!(weight, WEIGHT);
    assert_eq!(bias, [-0.1, 0.2, 0.5, -0.5]);
}

#[test]
fn a_threshold_that_is_not_positive_is_refused() {
    let model = Pair::zeros(DType::F32);
    for threshold in [0.0, -0.0, -1.0, f64::NAN, f64::NEG_INFINITY] {
        for clip in [
            GradientClip::Value(threshold),
            GradientClip::Norm(threshold),
            GradientClip::GlobalNorm(threshold),
        ] {
            let group = || (ParamGroup::all(), clip);
            for (result, field) in [
                (sgd().with_clipping(clip).map(drop), "clip"),
                (
                    sgd().with_group_clipping(group().0, clip).map(drop),
                    "clip_groups",
                ),
                (unscaled(&model).clip(&clip).map(drop), "clip"),
                (
                    unscaled(&model).clip_groups(&[group()]).map(drop),
                    "clip_groups",
                ),
            ] {
                let expected = AmpError::InvalidValue {
                    field,
                    value: format!("{clip:?}"),
                    allowed: "a threshold above 0".into(),
                };
                assert_eq!(result.err(), Some(expected));
            }
        }
    }
}

/// The optimizer's groups have the rules that they have by hand, in whatever order they were added.
#[test]
fn an_optimizer_with_groups() {
    let bias = || ParamGroup::from_predicate("bias");
    let (global, value) = (GradientClip::GlobalNorm(0.5), GradientClip::Value(0.25));
    let optims = [
        sgd()
            .with_clipping(global)
            .unwrap()
            .with_group_clipping(bias(), value)
            .unwrap(),
        sgd()
            .with_group_clipping(bias(), value)
            .unwrap()
            .with_clipping(global)
            .unwrap(),
    ];
    let model = Pair::zeros(DType::F32);
    let scale = sgd().scaler().loss_scale();
    let grads = sgd()
        .unscale(model.gradients(WEIGHT, BIAS, scale), &model)
        .unwrap();
    let expected = grads
        .clip_groups(&[(ParamGroup::all(), global), (bias(), value)])
        .unwrap();
    let expected_model = sgd().step(1.0, model.clone(), expected.clone());
    for mut optim in optims {
        let moved = optim.step(1.0, model.clone(), model.gradients(WEIGHT, BIAS, scale));
        assert_eq!(moved.values(), expected_model.values());
        assert_eq!(
            optim.scaler().last_status(),
            Some(expected.status().clone())
        );
    }
}

#[test]
fn an_overflow_is_never_hidden() {
    for clip in [
        GradientClip::Value(0.5),
        GradientClip::Norm(0.5),
        GradientClip::GlobalNorm(0.5),
    ] {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut optim = sgd().with_clipping(clip).unwrap();
            let model = Pair::new(WEIGHT.to_vec(), BIAS.to_vec(), DType::F32);
            let mut weight = WEIGHT;
            weight[4] = bad;
            let grads = model.gradients(weight, BIAS, 1024.0);
            let model = optim.step(0.1, model, grads);
            assert_eq!(
                model.values(),
                [WEIGHT.as_slice(), BIAS.as_slice()].concat()
            );
            assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Skipped));
            assert_eq!(optim.scaler().loss_scale(), 512.0);
            assert_eq!(optim.scaler().last_status().unwrap().clipped(), None);
        }
    }
}

#[test]
fn the_optimizer_clips_as_it_is_done_by_hand() {
    let clip = GradientClip::GlobalNorm(0.7);
    let mut built_in = sgd().with_clipping(clip).unwrap();
    let mut by_hand = sgd();
    let (mut left, mut right) = (Pair::zeros(DType::F32), Pair::zeros(DType::F32));
    for step in 0..5 {
        let scale = built_in.scaler().loss_scale();
        let weight = WEIGHT.map(|value| value * (step + 1) as f32);
        let grads = left.gradients(weight, BIAS, scale);
        left = built_in.step(0.1, left, grads);
        let grads = by_hand
            .unscale(right.gradients(weight, BIAS, scale), &right)
            .unwrap();
        right = by_hand.step(0.1, right, grads.clip(&clip).unwrap());
        assert_eq!(left.values(), right.values());
        let status = built_in.scaler().last_status().unwrap();
        assert_eq!(Some(status.clone()), by_hand.scaler().last_status());
        assert!(status.norm() > 0.7 && status.clipped() == Some(2));
    }
    assert!(built_in.clipping().is_some());
    assert_ne!(left.values(), [0.0; 10]);
}

#[test]
fn clipping_of_the_inner_optimizer_comes_after() {
    let inner = SgdConfig::new()
        .init()
        .with_grad_clipping(GradientClipping::Value(0.25));
    let mut optim = ScaledOptimizer::new(inner, scaler())
        .with_clipping(GradientClip::Value(0.5))
        .unwrap();
    let model = Pair::zeros(DType::F32);
    let grads = model.gradients(WEIGHT, BIAS, 65536.0);
    let model = optim.step(1.0, model, grads);
    assert_eq!(values(model.bias.val()), [0.1, -0.2, -0.25, 0.25]);
}

#[test]
fn gradients_that_were_changed_are_measured_again() {
    let model = Pair::zeros(DType::F32);
    let grads = unscaled(&model).mul_scalar(8.0);
    let grads = grads.clip(&GradientClip::GlobalNorm(1.0)).unwrap();
    let (weight, bias) = both(&grads, &model);
    assert!((norm(&[weight, bias].concat()) - 1.0).abs() < 1e-5);

    let mut grads = unscaled(&model);
    let replaced = Tensor::<1>::from_floats([0.0, 0.0, 40.0, 30.0], &model.bias.device().inner());
    grads.params_mut().register(model.bias.id, replaced);
    let grads = grads.clip(&GradientClip::Norm(5.0)).unwrap();
    assert_eq!(both(&grads, &model).1, [0.0, 0.0, 4.0, 3.0]);

    // A value that somebody put there after the verdict is not hidden either.
    let mut grads = unscaled(&model);
    let bad = Tensor::<1>::from_floats([0.0, 0.0, f32::NAN, 9.0], &model.bias.device().inner());
    grads.params_mut().register(model.bias.id, bad);
    let (weight, bias) = both(&grads.clip(&GradientClip::Value(0.5)).unwrap(), &model);
    assert_eq!(weight, WEIGHT);
    assert!(bias[2].is_nan() && bias[3] == 9.0);
}

#[test]
fn twice_is_as_good_as_once() {
    let model = Pair::zeros(DType::F32);
    let clip = GradientClip::Value(0.65);
    let once = unscaled(&model).clip(&clip).unwrap();
    let expected = both(&once, &model);
    let twice = once.clip(&clip).unwrap();
    assert_eq!(both(&twice, &model), expected);
    assert_eq!(twice.status().clipped(), Some(0));
}

#[test]
fn half_and_double_precision() {
    let clip = GradientClip::GlobalNorm(1.0);
    for (dtype, gradient, tolerance) in [
        // Roundings of the value, of the norm, and of the result in its dtype.
        (DType::F16, true, 3.0 * 2f64.powi(-11)),
        (DType::F16, false, 2.0 * 2f64.powi(-11)),
        (DType::BF16, false, 2.0 * 2f64.powi(-8)),
        (DType::F64, false, 1e-7),
    ] {
        if !Device::default().supports_dtype(dtype) {
            continue;
        }
        let scaler = GradScalerConfig::new()
            .with_init_scale(16.0)
            .with_parameter_dtype_gradients(gradient)
            .init()
            .unwrap();
        let model = Pair::zeros(dtype);
        let grads = scaler
            .unscale(model.gradients(WEIGHT, BIAS, 16.0), &model)
            .unwrap();
        let grads = grads.clip(&clip).unwrap();
        let (weight, bias) = both(&grads, &model);
        let all = [WEIGHT.as_slice(), BIAS.as_slice()].concat();
        let factor = 1.0 / (norm(&all) + 1e-6);
        for (found, original) in weight.iter().chain(&bias).zip(&all) {
            let expected = f64::from(*original) * factor;
            assert!((f64::from(*found) - expected).abs() <= tolerance * expected.abs());
        }
        // Still what the optimizer takes.
        let mut optim = MasterWeights::new(SgdConfig::new().build());
        let mut scaler = scaler;
        scaler.try_step(&mut optim, 0.1, model, grads).unwrap();
    }
}

#[test]
fn parameters_without_a_gradient_are_not_in_the_norm() {
    let model = Pair::zeros(DType::F32);
    let mut grads = model.gradients(WEIGHT, BIAS, 65536.0);
    grads.params_mut().remove::<2>(model.weight.id).unwrap();
    let grads = scaler().unscale(grads, &model).unwrap();
    let grads = grads.clip(&GradientClip::GlobalNorm(1.0)).unwrap();
    assert_norm(grads.status().clip_norms()[0], norm(&BIAS));

    let none = scaler()
        .unscale(scaled_by_hand(&scaler(), GradientsParams::new()), &model)
        .unwrap();
    let none = none.clip(&GradientClip::GlobalNorm(1.0)).unwrap();
    assert_eq!(none.status().clip_norms(), [0.0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_gradients_by_any_global_norm(
        weight in prop::array::uniform6(-1e3f32..1e3),
        bias in prop::array::uniform4(-1e-3f32..1e-3),
        max_norm in 1e-4f64..1e4,
    ) {
        let model = Pair::zeros(DType::F32);
        let grads = scaler().unscale(model.gradients(weight, bias, 65536.0), &model).unwrap();
        let grads = grads.clip(&GradientClip::GlobalNorm(max_norm)).unwrap();
        let all = [weight.as_slice(), bias.as_slice()].concat();
        let coefficient = (max_norm / (norm(&all) + 1e-6)).min(1.0);
        let (found_weight, found_bias) = both(&grads, &model);
        assert_times(&found_weight, &weight, coefficient);
        assert_times(&found_bias, &bias, coefficient);
    }
}

/// Finite gradients whose norm is above what f64 holds are clipped all the same.
#[test]
fn a_norm_beyond_f64() {
    if !on_flex() {
        return;
    }
    let model = Pair::zeros(DType::F64);
    let huge = |factor: f64| {
        let data = TensorData::new(vec![factor * 1.5e308; 4], [4]);
        let device = (&Device::default(), DType::F64);
        let mut grads = GradientsParams::new();
        grads.register(model.bias.id, Tensor::<1>::from_data(data, device));
        let scaler = GradScalerConfig::new()
            .with_init_scale(1.0)
            .with_dynamic(false)
            .init()
            .unwrap();
        scaler
            .unscale(scaled_by_hand(&scaler, grads), &model)
            .unwrap()
    };
    for (clip, expected) in [
        (GradientClip::Norm(4.0), 2.0),
        (GradientClip::GlobalNorm(4.0), 2.0),
        (GradientClip::Value(3.0), 3.0),
    ] {
        let grads = huge(1.0).clip(&clip).unwrap();
        assert!(!grads.has_overflow());
        assert_eq!(grads.status().norm(), f64::INFINITY);
        assert_eq!(grads.status().clipped(), Some(1));
        let bias = grads.get::<1>(model.bias.id).unwrap();
        for value in bias.into_data().iter::<f64>() {
            assert!((value - expected).abs() < 1e-9, "{clip:?}: {value}");
        }
    }
    // Infinity still measures and never clips.
    let grads = huge(-1.0)
        .clip(&GradientClip::GlobalNorm(f64::INFINITY))
        .unwrap();
    assert_eq!(grads.status().clipped(), Some(0));
    let bias = grads.get::<1>(model.bias.id).unwrap();
    assert_eq!(
        bias.into_data().iter::<f64>().collect::<Vec<_>>(),
        [-1.5e308; 4]
    );
}
