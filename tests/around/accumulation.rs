//! Micro-batches: mean and sum, both rules for an overflow, flushing and dropping, memory.

use burn::{
    backend::{BackendTensor, DispatchTensorKind},
    module::{Module, Param, ParamId},
    nn::{Linear, LinearConfig},
    optim::{GradientsAccumulator, GradientsParams, MultiGradientsParams, SgdConfig},
    tensor::{DType, Device, Tensor},
};
use burn_amp::{
    AccumulationConfig, AccumulationWindow, AmpError, GradScalerConfig, GradientClip,
    MasterWeights, MixedPrecision, ScaledGradients, ScaledOptimizer, StepOutcome,
};
use burn_amp_tests::scaled_by_hand;
use log::Level;

use crate::support::{Pair, captured, on_flex, sgd, values};

fn config(n: u32, rule: bool) -> AccumulationConfig {
    AccumulationConfig::new(n).with_skip_micro_batch(rule)
}

const RULES: [bool; 2] = [false, true];

/// Micro-batch `k`: quarters, so that sums and a mean of 4 are exact.
fn micro(k: usize) -> ([f32; 6], [f32; 4]) {
    let value = |index: usize| ((k * 5 + index * 3) % 11) as f32 * 0.25 - 1.0;
    (
        std::array::from_fn(value),
        std::array::from_fn(|i| value(i + 6)),
    )
}

fn gradients(model: &Pair, k: usize, scale: f32) -> ScaledGradients {
    let (weight, bias) = micro(k);
    model.gradients(weight, bias, scale)
}

fn overflow(model: &Pair, scale: f32) -> ScaledGradients {
    model.gradients([f32::INFINITY, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0; 4], scale)
}

/// What plain SGD at a rate of 1 makes of zeros with the sum of these micro-batches times `factor`.
fn expected(micro_batches: impl IntoIterator<Item = usize>, factor: f32) -> Vec<f32> {
    let mut sum = [0.0; 10];
    for k in micro_batches {
        let (weight, bias) = micro(k);
        for (sum, value) in sum.iter_mut().zip(weight.iter().chain(&bias)) {
            *sum += value;
        }
    }
    sum.map(|sum| -sum * factor).to_vec()
}

#[test]
fn every_nth_call_steps_with_the_mean_or_the_sum() {
    for rule in RULES {
        for (sum, factor) in [(false, 0.25), (true, 1.0)] {
            let config = config(4, rule).with_sum(sum);
            let mut optim = sgd().with_accumulation(config).unwrap();
            let mut model = Pair::zeros(DType::F32);
            for k in 0..4 {
                assert_eq!(optim.window().unwrap().len(), k as u32);
                assert_eq!(model.values(), [0.0; 10]);
                let grads = gradients(&model, k, optim.scaler().loss_scale());
                model = optim.step(1.0, model, grads);
            }
            assert_eq!(model.values(), expected(0..4, factor), "{rule:?}");
            assert!(optim.window().unwrap().is_empty());
            assert_eq!(optim.window().unwrap().gradients(), 0);
            assert_eq!(optim.scaler().counters().steps(), 1);
        }
    }
}

#[test]
fn a_sum_is_that_of_burns_accumulator_bit_for_bit() {
    // Values whose sums round.
    let odd = |k: usize| {
        let value = |index: usize| ((k * 7 + index) as f32 * 12.9898).sin();
        (
            std::array::from_fn(value),
            std::array::from_fn(|i| value(i + 6)),
        )
    };
    let sum = AccumulationConfig::new(3).with_sum(true);
    let mut built_in = sgd().with_accumulation(sum).unwrap();
    let mut by_hand = sgd();
    let (mut left, mut right) = (Pair::zeros(DType::F32), Pair::zeros(DType::F32));
    for step in 0..4 {
        let mut accumulator = GradientsAccumulator::new();
        for k in 0..3 {
            let (weight, bias) = odd(step * 3 + k);
            let scale = by_hand.scaler().loss_scale();
            assert_eq!(built_in.scaler().loss_scale(), scale);
            left = built_in.step(0.1, left.clone(), left.gradients(weight, bias, scale));
            let grads = right.gradients(weight, bias, scale);
            accumulator.accumulate(&right, grads.into_params());
        }
        let sum = scaled_by_hand(by_hand.scaler(), accumulator.grads());
        right = by_hand.step(0.1, right, sum);
        assert_eq!(left.values(), right.values());
        assert_eq!(built_in.scaler().counters(), by_hand.scaler().counters());
    }
}

#[test]
fn a_window_of_one_is_no_window() {
    for rule in RULES {
        let mut windowed = sgd().with_accumulation(config(1, rule)).unwrap();
        let mut plain = sgd();
        let (mut left, mut right) = (Pair::zeros(DType::F32), Pair::zeros(DType::F32));
        for k in 0..5 {
            let scale = plain.scaler().loss_scale();
            assert_eq!(windowed.scaler().loss_scale(), scale);
            left = windowed.step(0.1, left.clone(), gradients(&left, k, scale));
            right = plain.step(0.1, right.clone(), gradients(&right, k, scale));
            assert_eq!(left.values(), right.values());
        }
    }
}

#[test]
fn one_overflow_skips_the_window_and_the_scale_is_frozen_inside() {
    let mut optim = sgd().with_accumulation(4).unwrap();
    let mut model = Pair::zeros(DType::F32);
    for k in 0..4 {
        assert_eq!(optim.scaler().loss_scale(), 1024.0);
        let grads = match k {
            1 => overflow(&model, 1024.0),
            _ => gradients(&model, k, 1024.0),
        };
        model = optim.step(1.0, model, grads);
    }
    assert_eq!(model.values(), [0.0; 10]);
    assert_eq!(optim.scaler().last_outcome(), Some(StepOutcome::Skipped));
    assert_eq!(optim.scaler().loss_scale(), 512.0);
    let counters = *optim.scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (1, 1));
    assert_eq!(counters.dropped(), 0);

    // The next window starts from nothing.
    for k in 0..4 {
        model = optim.step(1.0, model.clone(), gradients(&model, k, 512.0));
    }
    assert_eq!(model.values(), expected(0..4, 0.25));
}

#[test]
fn a_bad_micro_batch_is_dropped_and_the_scale_moves_at_once() {
    let rule = config(3, true).with_sum(true);
    let mut optim = sgd().with_accumulation(rule).unwrap();
    let mut model = Pair::zeros(DType::F32);
    // Finite ones count; the scale doubles after two in a row and halves at each bad one.
    let script = [
        (true, 1024.0, 1),
        (false, 512.0, 1),
        (false, 256.0, 1),
        (true, 256.0, 2),
        (true, 512.0, 0),
    ];
    for (k, (finite, scale, len)) in script.into_iter().enumerate() {
        let before = optim.scaler().loss_scale();
        let grads = match finite {
            true => gradients(&model, k, before),
            false => overflow(&model, before),
        };
        model = optim.step(1.0, model, grads);
        assert_eq!(optim.scaler().loss_scale(), scale, "micro-batch {k}");
        assert_eq!(optim.window().unwrap().len(), len, "micro-batch {k}");
    }
    assert_eq!(model.values(), expected([0, 3, 4], 1.0));
    let counters = *optim.scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (1, 0));
    assert_eq!(counters.dropped(), 2);
    assert_eq!(counters.consecutive_skips(), 0);
}

/// At the border of half precision it is known whose fault an overflow was.
#[test]
fn a_loss_that_is_not_finite_drops_its_micro_batch_and_the_scale_stays() {
    let settings = GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_max_consecutive_skips(Some(2));
    let amp = MixedPrecision::f16().with_scaler(settings).unwrap();
    let model = Pair::zeros(DType::F32).apply_reparameterization(amp.clone());
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp)
        .with_accumulation(config(9, true))
        .unwrap();
    let mut micro_batch = |factor: f32| {
        let output = amp.autocast((), |()| model.bias.val());
        let loss = (output * factor).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let result = optim.try_step(1.0, model.clone(), grads);
        let (counters, scale) = (*optim.scaler().counters(), optim.scaler().loss_scale());
        (result, (counters.dropped(), counters.bad_losses(), scale))
    };
    assert_eq!(micro_batch(f32::NAN).1, (1, 1, 1024.0));
    assert_eq!(micro_batch(f32::INFINITY).1, (2, 2, 1024.0));
    assert_eq!(micro_batch(1.0).1, (2, 2, 1024.0));
    // Finite, and too large for f16 once it is multiplied.
    assert_eq!(micro_batch(1000.0).1, (3, 2, 512.0));
    for bad in 3..5 {
        assert_eq!(micro_batch(f32::NAN).1, (bad + 1, bad, 512.0));
    }
    let (result, after) = micro_batch(f32::NAN);
    let expected = AmpError::LossNotFinite {
        skips: 3,
        output_finite: true,
    };
    assert_eq!(result.unwrap_err().error, expected);
    assert_eq!(after, (6, 5, 512.0));
    assert_eq!(optim.window().unwrap().len(), 1);
}

#[test]
fn too_many_dropped_in_a_row_end_the_run_and_keep_the_window() {
    let scaler = GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_max_consecutive_skips(Some(2));
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler.init().unwrap())
        .with_accumulation(config(3, true))
        .unwrap();
    let mut model = Pair::zeros(DType::F32);
    model = optim.step(1.0, model.clone(), gradients(&model, 0, 1024.0));
    for _ in 0..2 {
        model = optim.step(1.0, model.clone(), overflow(&model, 1024.0));
    }
    let result = optim.try_step(1.0, model.clone(), overflow(&model, 1024.0));
    let error = result.unwrap_err().error;
    let AmpError::LossScaleExhausted {
        scale,
        skips,
        parameter,
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((scale, skips, parameter.as_str()), (256.0, 3, "weight"));
    assert_eq!(optim.scaler().counters().dropped(), 3);
    assert_eq!(optim.window().unwrap().len(), 1);
}

#[test]
fn a_flushed_window_steps_with_what_it_has() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(4, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        for k in 0..2 {
            let scale = optim.scaler().loss_scale();
            model = optim.step(1.0, model.clone(), gradients(&model, k, scale));
        }
        model = optim.flush(1.0, model);
        assert_eq!(model.values(), expected(0..2, 0.5));
        assert_eq!(optim.scaler().counters().steps(), 1);
        // Empty: nothing to step with.
        let same = optim.flush(1.0, model.clone());
        assert_eq!(same.values(), model.values());
        assert_eq!(optim.scaler().counters().steps(), 1);
    }
    let same = sgd().flush(1.0, Pair::zeros(DType::F32));
    assert_eq!(same.values(), [0.0; 10]);
}

#[test]
fn a_dropped_window_leaves_no_trace() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(2, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        model = optim.step(1.0, model.clone(), gradients(&model, 7, 1024.0));
        optim.drop_window();
        assert!(optim.window().unwrap().is_empty());
        for k in 0..2 {
            let scale = optim.scaler().loss_scale();
            model = optim.step(1.0, model.clone(), gradients(&model, k, scale));
        }
        assert_eq!(model.values(), expected(0..2, 0.5));
    }
    sgd().drop_window();
}

#[test]
fn a_discarded_micro_batch_does_not_count() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(2, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        model = optim.step(1.0, model.clone(), gradients(&model, 0, 1024.0));
        let scale = optim.scaler().loss_scale();
        optim.discard(gradients(&model, 7, scale));
        let unscaled = optim.unscale(overflow(&model, scale), &model);
        optim.discard(unscaled);
        // Met again and again, if the scale did not move.
        let after = scale / 2.0;
        assert_eq!(optim.scaler().loss_scale(), after, "{rule:?}");
        assert_eq!(optim.window().unwrap().len(), 1);
        assert_eq!(optim.scaler().counters().discarded(), 2);
        model = optim.step(1.0, model.clone(), gradients(&model, 1, after));
        assert_eq!(model.values(), expected(0..2, 0.5), "{rule:?}");
    }
}

#[test]
fn clipping_sees_the_mean_of_the_window() {
    for rule in RULES {
        let clip = GradientClip::Value(0.5);
        let mut optim = sgd()
            .with_accumulation(config(4, rule))
            .unwrap()
            .with_clipping(clip)
            .unwrap();
        let mut model = Pair::zeros(DType::F32);
        for k in 0..4 {
            let scale = optim.scaler().loss_scale();
            model = optim.step(1.0, model.clone(), gradients(&model, k, scale));
        }
        let mean = expected(0..4, 0.25);
        assert!(mean.iter().any(|value| value.abs() > 0.5));
        let clipped: Vec<f32> = mean.iter().map(|v| v.clamp(-0.5, 0.5)).collect();
        assert_eq!(model.values(), clipped);
        let squares = mean.iter().map(|v| f64::from(*v).powi(2));
        let norm = squares.sum::<f64>().sqrt();
        let status = optim.scaler().last_status().unwrap();
        // Of f32, where it is taken on a GPU.
        assert!((status.norm() - norm).abs() < 1e-6 * norm, "{rule:?}");
    }
}

#[test]
fn a_scale_that_is_changed_inside_a_window_is_taken_into_account() {
    let mut optim = sgd().with_accumulation(2).unwrap();
    let mut model = Pair::zeros(DType::F32);
    model = optim.step(1.0, model.clone(), gradients(&model, 0, 1024.0));
    optim.scaler_mut().set_loss_scale(64.0).unwrap();
    model = optim.step(1.0, model.clone(), gradients(&model, 1, 64.0));
    assert_eq!(model.values(), expected(0..2, 0.5));
}

#[test]
fn unscaled_gradients_enter_a_window_too() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(4, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        model = optim.step(1.0, model.clone(), gradients(&model, 0, 1024.0));
        let scale = optim.scaler().loss_scale();
        let unscaled = optim.unscale(gradients(&model, 1, scale), &model);
        model = optim.step(1.0, model, unscaled);
        // Burn's own.
        for k in 2..4 {
            let plain = gradients(&model, k, 1.0).into_params();
            model = optim.step(1.0, model, plain);
        }
        assert_eq!(model.values(), expected(0..4, 0.25), "{rule:?}");
    }
}

#[test]
fn an_overflow_of_burns_own_gradients_is_one() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(2, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        for k in 0..2 {
            let grads = match k {
                0 => gradients(&model, k, 1.0),
                _ => overflow(&model, 1.0),
            };
            model = optim.step(1.0, model, grads.into_params());
        }
        assert_eq!(model.values(), [0.0; 10], "{rule:?}");
        assert_eq!(optim.scaler().loss_scale(), 512.0, "{rule:?}");
        let counters = *optim.scaler().counters();
        let expected = match rule {
            false => (1, 0),
            true => (0, 1),
        };
        assert_eq!((counters.skipped(), counters.dropped()), expected);
    }
}

#[test]
fn half_precision_gradients_are_summed_in_f32() {
    let start = Pair::zeros(DType::F16);
    for rule in RULES {
        for gradient in [false, true] {
            let scaler = GradScalerConfig::new()
                .with_init_scale(1.0)
                .with_growth_interval(100_000)
                .with_parameter_dtype_gradients(gradient)
                .init()
                .unwrap();
            let inner = MasterWeights::new(SgdConfig::new().build());
            let mut optim = ScaledOptimizer::new(inner, scaler)
                .with_accumulation(config(4096, rule))
                .unwrap();
            let mut model = start.clone();
            for _ in 0..4096 {
                // In f16, 2048 + 1 is 2048.
                let grads = model.gradients([1.0; 6], [1.0; 4], 1.0);
                model = optim.step(1.0, model, grads);
            }
            assert_eq!(model.values(), [-1.0; 10], "{rule:?} {gradient:?}");
        }
    }
}

#[test]
fn a_disabled_scaler_accumulates() {
    for rule in RULES {
        for dtype in [DType::F16, DType::F32] {
            let disabled = GradScalerConfig::new().with_enabled(false).init().unwrap();
            let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), disabled)
                .with_accumulation(config(4, rule))
                .unwrap();
            let mut model = Pair::zeros(dtype);
            for k in 0..4 {
                model = optim.step(1.0, model.clone(), gradients(&model, k, 1.0));
            }
            assert_eq!(model.values(), expected(0..4, 0.25), "{rule:?} {dtype:?}");
        }
    }
}

fn address<const D: usize>(tensor: Option<Tensor<D>>) -> *const u8 {
    match tensor.unwrap().into_dispatch().kind {
        DispatchTensorKind::Flex(BackendTensor::Float(tensor)) => tensor.bytes().as_ptr(),
        _ => panic!("not a float tensor on Flex"),
    }
}

#[test]
fn one_f32_buffer_for_each_parameter_is_added_to_in_place() {
    if !on_flex() {
        return;
    }
    for dtype in [DType::F16, DType::F32] {
        for rule in RULES {
            let scaler = GradScalerConfig::new()
                .with_init_scale(16.0)
                .init()
                .unwrap();
            let inner = MasterWeights::new(SgdConfig::new().build());
            let mut optim = ScaledOptimizer::new(inner, scaler)
                .with_accumulation(config(8, rule))
                .unwrap();
            let mut model = Pair::zeros(dtype);
            let mut places = Vec::new();
            for k in 0..5 {
                model = optim.step(1.0, model.clone(), gradients(&model, k, 16.0));
                let sum = optim.window().unwrap().sum(&model.weight);
                assert_eq!(sum.as_ref().unwrap().dtype(), DType::F32);
                places.push(address(sum));
            }
            places.dedup();
            assert_eq!(places.len(), 1, "{dtype:?} {rule:?}");
        }
    }
}

#[test]
fn the_first_gradients_memory_becomes_the_sums() {
    if !on_flex() {
        return;
    }
    let mut optim = sgd().with_accumulation(8).unwrap();
    let model = Pair::zeros(DType::F32);
    let grads = gradients(&model, 0, 1024.0);
    let place = address(grads.params().get::<2>(model.weight.id));
    let model = optim.step(1.0, model, grads);
    assert_eq!(address(optim.window().unwrap().sum(&model.weight)), place);
}

#[test]
fn f64_parameters_have_f64_sums() {
    let mut optim = sgd().with_accumulation(2).unwrap();
    let mut model = Pair::zeros(DType::F64);
    for k in 0..2 {
        model = optim.step(1.0, model.clone(), gradients(&model, k, 1024.0));
        if k == 0 {
            let sum = optim.window().unwrap().sum(&model.bias).unwrap();
            assert_eq!(sum.dtype(), DType::F64);
        }
    }
    assert_eq!(model.values(), expected(0..2, 0.5));
}

#[test]
fn parameters_may_lack_a_gradient_in_some_micro_batches() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(2, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        let mut first = gradients(&model, 0, 1024.0);
        first.params_mut().remove::<1>(model.bias.id).unwrap();
        model = optim.step(1.0, model, first);
        let scale = optim.scaler().loss_scale();
        let mut second = gradients(&model, 1, scale);
        second.params_mut().remove::<2>(model.weight.id).unwrap();
        model = optim.step(1.0, model, second);
        // A gradient that is absent is zero: it counts in the mean.
        assert_eq!(values(model.weight.val()), expected([0], 0.5)[..6]);
        assert_eq!(values(model.bias.val()), expected([1], 0.5)[6..]);
    }
}

#[test]
fn a_clone_goes_its_own_way() {
    let mut optim = sgd().with_accumulation(2).unwrap();
    let mut model = Pair::zeros(DType::F32);
    model = optim.step(1.0, model.clone(), gradients(&model, 0, 1024.0));
    let mut other = optim.clone();
    let right = other.step(1.0, model.clone(), gradients(&model, 5, 1024.0));
    assert_eq!(optim.window().unwrap().len(), 1);
    let left = optim.step(1.0, model.clone(), gradients(&model, 1, 1024.0));
    assert_eq!(left.values(), expected(0..2, 0.5));
    assert_eq!(right.values(), expected([0, 5], 0.5));
}

#[test]
fn what_the_optimizer_cannot_take_is_refused_at_the_first_micro_batch() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(2, rule)).unwrap();
        let model = Pair::zeros(DType::F16);
        let grads = gradients(&model, 0, 16.0);
        let error = optim.try_step(1.0, model, grads).unwrap_err().error;
        let AmpError::HalfPrecisionParameter { parameter, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(parameter, "weight");
        assert!(optim.window().unwrap().is_empty());
        assert_eq!(optim.scaler().counters().steps(), 0);
    }
}

#[test]
fn gradients_of_another_shape_are_refused() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(3, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        model = optim.step(1.0, model.clone(), gradients(&model, 0, 1024.0));
        let device = Device::default().autodiff();
        let mut other = model.clone();
        let bias = Tensor::<1>::zeros([5], &device).require_grad();
        other.bias = Param::initialized(ParamId::from(2002), bias);
        let mut grads = gradients(&model, 1, 1024.0);
        let bias = Tensor::<1>::ones([5], &Device::default());
        grads.params_mut().register(other.bias.id, bias);
        let error = optim.try_step(1.0, other, grads).unwrap_err().error;
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
        assert!(error.to_string().contains("another model"), "{error}");
        assert_eq!(optim.window().unwrap().len(), 1);
        assert_eq!(optim.scaler().counters().dropped(), 0);
    }
}

#[test]
fn gradients_of_several_devices_enter_as_their_sum() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(2, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        for pair in [[0, 1], [2, 3]] {
            let part = |k| (gradients(&model, k, 1.0).into_params(), Device::default());
            let grads = pair.map(part).into();
            model = optim.step_multi(1.0, model, MultiGradientsParams { grads });
        }
        assert_eq!(model.values(), expected(0..4, 0.5));
    }
}

#[test]
fn nothing_to_accumulate_is_refused() {
    let error = sgd().with_accumulation(0).unwrap_err();
    let message = "`micro_batches` is 0, but must be at least 1";
    assert_eq!(error.to_string(), message);
}

#[test]
fn with_the_scaler_alone() {
    for rule in RULES {
        let mut scaler = GradScalerConfig::new()
            .with_init_scale(1024.0)
            .with_growth_interval(100)
            .init()
            .unwrap();
        let mut optim = SgdConfig::new().init();
        let mut window = config(2, rule).init().unwrap();
        let mut model = Pair::zeros(DType::F32);
        for k in 0..2 {
            let grads = gradients(&model, k, 1024.0);
            let full = scaler.try_accumulate(&mut window, grads, &model).unwrap();
            assert_eq!(full.is_some(), k == 1);
            if let Some(grads) = full {
                model = scaler.try_step(&mut optim, 1.0, model, grads).unwrap();
                // Learned from at once, micro-batch by micro-batch; or here.
                let outcome = scaler.update();
                let late = !rule;
                assert_eq!(outcome, late.then_some(StepOutcome::Stepped));
            }
        }
        assert_eq!(model.values(), expected(0..2, 0.5));
        let tracker = if !rule { 1 } else { 2 };
        assert_eq!(scaler.growth_tracker(), tracker);
        assert_eq!(scaler.counters().steps(), 1);

        let grads = gradients(&model, 0, 1024.0);
        scaler.try_accumulate(&mut window, grads, &model).unwrap();
        let grads = scaler.try_flush(&mut window, &model).unwrap().unwrap();
        assert_eq!(grads.get::<1>(model.bias.id).unwrap().dims(), [4]);
        assert!(scaler.try_flush(&mut window, &model).unwrap().is_none());
    }
}

/// As one large batch of which a part has no gradient would.
#[test]
fn a_micro_batch_without_gradients_counts() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(2, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        let grads = model.gradients([2.0; 6], [4.0; 4], 1024.0);
        model = optim.step(1.0, model, grads);
        model = optim.step(1.0, model, GradientsParams::new());
        assert_eq!(model.values()[5..7], [-1.0, -2.0]);
        assert_eq!(optim.scaler().counters().stepped(), 1);

        // A window that has none at all is a step that moves nothing.
        let before = optim.scaler().loss_scale();
        for _ in 0..2 {
            model = optim.step(1.0, model, GradientsParams::new());
        }
        assert_eq!(model.values()[5..7], [-1.0, -2.0]);
        assert_eq!(optim.scaler().counters().stepped(), 2);
        assert_eq!(optim.scaler().loss_scale(), before);
    }
}

#[test]
fn a_window_of_another_model_is_refused_by_flush_and_stays() {
    for rule in RULES {
        let mut optim = sgd().with_accumulation(config(3, rule)).unwrap();
        let mut model = Pair::zeros(DType::F32);
        let grads = model.gradients([1.0; 6], [1.0; 4], 1024.0);
        model = optim.step(1.0, model, grads);
        let mut other = model.clone();
        other.weight = other.weight.map(|weight| weight.reshape([3, 2]));
        let error = optim.try_flush(1.0, other).unwrap_err().error;
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
        assert!(error.to_string().contains("`weight`"), "{error}");
        assert_eq!(optim.window().unwrap().len(), 1);
        assert_eq!(optim.flush(1.0, model).values(), [-1.0; 10]);
    }
}

#[test]
fn gradients_of_no_parameter_are_dropped_and_logged_and_sums_refused() {
    let rule = false;
    let model = Pair::zeros(DType::F32);
    let scaler = sgd().scaler().clone();
    let mut window = config(3, rule).init().unwrap();
    let add = |window: &mut AccumulationWindow, module: &Linear| {
        let grads = model.gradients([1.0; 6], [1.0; 4], 1024.0);
        captured(Level::Debug, || {
            scaler
                .clone()
                .try_accumulate(window, grads, module)
                .unwrap();
        })
    };
    let stranger = LinearConfig::new(2, 2).init(&Device::default().autodiff());
    let logged = add(&mut window, &stranger).join("\n");
    assert!(
        logged.contains("2 gradients belong to no parameter"),
        "{logged}"
    );
    assert_eq!((window.len(), window.gradients()), (1, 0));

    let grads = model.gradients([1.0; 6], [1.0; 4], 1024.0);
    scaler
        .clone()
        .try_accumulate(&mut window, grads, &model)
        .unwrap();
    let error = scaler
        .clone()
        .try_flush(&mut window, &stranger)
        .unwrap_err();
    assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
    assert!(error.to_string().contains("2 of its 2 sums"), "{error}");
    assert_eq!((window.len(), window.gradients()), (2, 2));
}

/// The inverse of 3 is not rounded to f32 on the way.
#[test]
fn an_f64_window_is_exact_in_f64() {
    if !Device::default().supports_dtype(DType::F64) {
        return;
    }
    for rule in RULES {
        let model = Pair::zeros(DType::F64);
        let mut scaler = sgd().scaler().clone();
        let mut window = config(3, rule).init().unwrap();
        let mut full = None;
        for value in [1.0, 2.0, 4.0] {
            let grads = model.gradients([value; 6], [value; 4], 1024.0);
            full = scaler.accumulate(&mut window, grads, &model);
        }
        let mean = full.unwrap().get::<1>(model.bias.id).unwrap();
        for value in mean.into_data().iter::<f64>() {
            assert!((value / (7.0 / 3.0) - 1.0).abs() < 1e-15, "{value}");
        }
    }
}

/// It is no evidence that the scale is fine: neither for the scale, nor for the count of skips.
#[test]
fn a_micro_batch_without_gradients_ends_no_row_of_skips() {
    let window = config(4, true);
    let mut optim = sgd().with_accumulation(window).unwrap();
    let model = Pair::zeros(DType::F32);
    let bad = |optim: &mut ScaledOptimizer<_>| {
        let scale = optim.scaler().loss_scale();
        let grads = model.gradients([f32::INFINITY; 6], [1.0; 4], scale);
        optim.step(1.0, model.clone(), grads);
        optim.scaler().counters().consecutive_skips()
    };
    assert_eq!(bad(&mut optim), 1);
    optim.step(1.0, model.clone(), GradientsParams::new());
    assert_eq!(optim.scaler().counters().consecutive_skips(), 1);
    assert_eq!(bad(&mut optim), 2);
}

/// Gradients that overflowed when they were tested, and were replaced by finite ones since, still make the window a skip, as
/// they make a step without a window one.
#[test]
fn a_repaired_micro_batch_still_skips_the_window() {
    let model = Pair::zeros(DType::F32);
    let mut optim = sgd().with_accumulation(2).unwrap();
    let grads = model.gradients([1.0; 6], [1.0; 4], 1024.0);
    let same = optim.step(1.0, model.clone(), grads);
    assert_eq!(same.values(), [0.0; 10]);

    let grads = model.gradients([1.0; 6], [f32::NAN; 4], 1024.0);
    let mut grads = optim.unscale(grads, &model);
    let finite = Tensor::<1>::ones([4], &Device::default());
    grads.params_mut().register(model.bias.id, finite);
    let same = optim.step(1.0, model.clone(), grads);
    assert_eq!(same.values(), [0.0; 10]);
    assert_eq!(optim.scaler().counters().skipped(), 1);
    assert_eq!(optim.scaler().loss_scale(), 512.0);
    let status = optim.scaler().last_status().unwrap();
    assert_eq!(status.overflow_parameter(), Some("bias"));
}
