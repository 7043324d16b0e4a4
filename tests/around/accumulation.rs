//! Micro-batches: mean and sum, both rules for an overflow, flushing and dropping, memory.

use burn_amp_tests::prelude::*;
use burn_amp_tests::{says, scaled_by_hand};
use log::Level;

use crate::support::{Pair, Trial, address, captured, on_flex, sgd};

fn config(n: u32, rule: bool) -> AccumulationConfig {
    AccumulationConfig::new(n).with_skip_micro_batch(rule)
}

const RULES: [bool; 2] = [false, true];

type Values = ([f32; 6], [f32; 4]);

const BAD: Values = ([f32::INFINITY, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0; 4]);

/// Zeros, and windows of `n` micro-batches.
fn window(n: u32, rule: bool) -> Trial {
    Trial::new(sgd().with_accumulation(config(n, rule)).unwrap())
}

/// Micro-batch `k`: quarters, so that sums and a mean of 4 are exact.
fn micro(k: usize) -> Values {
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
            let mut run = Trial::new(sgd().with_accumulation(config).unwrap());
            for k in 0..4 {
                assert_eq!(run.len(), k as u32);
                assert_eq!(run.values(), [0.0; 10]);
                run.step(micro(k));
            }
            assert_eq!(run.values(), expected(0..4, factor), "{rule}, {sum}");
            let window = run.optim.window().unwrap();
            assert!(window.is_empty() && window.gradients() == 0);
            assert_eq!(run.counters().steps(), 1);
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
    let mut built_in = Trial::new(sgd().with_accumulation(sum).unwrap());
    let mut by_hand = Trial::new(sgd());
    for step in 0..4 {
        let mut accumulator = GradientsAccumulator::new();
        for k in 0..3 {
            let values = odd(step * 3 + k);
            assert_eq!(built_in.scale(), by_hand.scale());
            built_in.step(values);
            let grads = by_hand.gradients(values);
            accumulator.accumulate(&by_hand.model, grads.into_params());
        }
        let sum = scaled_by_hand(by_hand.optim.scaler(), accumulator.grads());
        by_hand.model = by_hand.optim.step(1.0, by_hand.model.clone(), sum);
        assert_eq!(built_in.values(), by_hand.values());
        assert_eq!(built_in.counters(), by_hand.counters());
    }
}

#[test]
fn a_window_of_one_is_no_window() {
    for rule in RULES {
        let (mut windowed, mut plain) = (window(1, rule), Trial::new(sgd()));
        for k in 0..5 {
            assert_eq!(windowed.scale(), plain.scale());
            windowed.step(micro(k));
            plain.step(micro(k));
            assert_eq!(windowed.values(), plain.values());
        }
    }
}

#[test]
fn an_overflow_skips_the_window_or_drops_its_micro_batch() {
    // After each call, whose gradients are finite or not: the scale, and how many are in the window.
    const SKIPPED: &[(bool, f32, u32)] = &[
        (true, 1024.0, 1),
        (false, 1024.0, 2),
        (true, 1024.0, 3),
        (true, 512.0, 0),
        // The next window starts from nothing.
        (true, 512.0, 1),
        (true, 512.0, 2),
        (true, 512.0, 3),
        (true, 512.0, 0),
    ];
    // Finite ones count; the scale doubles after two in a row and halves at each bad one.
    const DROPPED: &[(bool, f32, u32)] = &[
        (true, 1024.0, 1),
        (false, 512.0, 1),
        (false, 256.0, 1),
        (true, 256.0, 2),
        (true, 512.0, 0),
    ];
    const PLAIN_SKIPPED: &[(bool, f32, u32)] = &[(true, 1024.0, 1), (false, 512.0, 0)];
    const PLAIN_DROPPED: &[(bool, f32, u32)] = &[(true, 1024.0, 1), (false, 512.0, 1)];
    let sum = config(3, true).with_sum(true);
    let nothing = vec![0.0; 10];
    // Burn's own gradients are unscaled. The counters: steps, skipped ones, dropped micro-batches, skips in a row.
    for (name, window, plain, calls, moved, counted) in [
        (
            "skipped",
            config(4, false),
            false,
            SKIPPED,
            expected(4..8, 0.25),
            [2, 1, 0, 0],
        ),
        (
            "dropped",
            sum,
            false,
            DROPPED,
            expected([0, 3, 4], 1.0),
            [1, 0, 2, 0],
        ),
        (
            "Burn's, skipped",
            config(2, false),
            true,
            PLAIN_SKIPPED,
            nothing.clone(),
            [1, 1, 0, 1],
        ),
        (
            "Burn's, dropped",
            config(2, true),
            true,
            PLAIN_DROPPED,
            nothing,
            [0, 0, 1, 1],
        ),
    ] {
        let mut run = Trial::new(sgd().with_accumulation(window).unwrap());
        for (k, (finite, scale, len)) in calls.iter().enumerate() {
            let (weight, bias) = if *finite { micro(k) } else { BAD };
            let grads = run.model.gradients(weight, bias, 1.0).into_params();
            match plain {
                true => run.model = run.optim.step(1.0, run.model, grads),
                false => run.step((weight, bias)),
            }
            assert_eq!((run.scale(), run.len()), (*scale, *len), "{name}: {k}");
        }
        assert_eq!(run.values(), moved, "{name}");
        let counters = run.counters();
        let [steps, skipped] = [counters.steps(), counters.skipped()];
        let [dropped, row] = [counters.dropped(), counters.consecutive_skips()];
        assert_eq!([steps, skipped, dropped, row], counted, "{name}");
    }
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
        let (counters, scale) = (optim.scaler().counters(), optim.scaler().loss_scale());
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
    let optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler.init().unwrap());
    let mut run = Trial::new(optim.with_accumulation(config(3, true)).unwrap());
    run.step(micro(0));
    run.step(BAD);
    run.step(BAD);
    let expected = AmpError::LossScaleExhausted {
        scale: 256.0,
        skips: 3,
        parameter: "weight".into(),
    };
    assert_eq!(run.refused(BAD), expected);
    assert_eq!((run.counters().dropped(), run.len()), (3, 1));
}

#[test]
fn a_flushed_window_steps_with_what_it_has() {
    for rule in RULES {
        let mut run = window(4, rule);
        run.step(micro(0));
        run.step(micro(1));
        // The second time it is empty: nothing to step with.
        for _ in 0..2 {
            run.flush();
            assert_eq!(run.values(), expected(0..2, 0.5));
            assert_eq!(run.counters().steps(), 1);
        }
    }
    let mut plain = Trial::new(sgd());
    plain.flush();
    assert_eq!(plain.values(), [0.0; 10]);
}

#[test]
fn a_dropped_window_leaves_no_trace() {
    for rule in RULES {
        let mut run = window(2, rule);
        run.step(micro(7));
        run.optim.drop_window();
        assert_eq!(run.len(), 0);
        run.step(micro(0));
        run.step(micro(1));
        assert_eq!(run.values(), expected(0..2, 0.5));
    }
    sgd().drop_window();
}

#[test]
fn a_discarded_micro_batch_does_not_count() {
    for rule in RULES {
        let mut run = window(2, rule);
        run.step(micro(0));
        let scale = run.scale();
        run.optim.discard(run.gradients(micro(7))).unwrap();
        let unscaled = run.optim.unscale(run.gradients(BAD), &run.model).unwrap();
        run.optim.discard(unscaled).unwrap();
        // Met again and again, if the scale did not move.
        assert_eq!(run.scale(), scale / 2.0, "{rule:?}");
        assert_eq!((run.len(), run.counters().discarded()), (1, 2));
        run.step(micro(1));
        assert_eq!(run.values(), expected(0..2, 0.5), "{rule:?}");
    }
}

#[test]
fn clipping_sees_the_mean_of_the_window() {
    for rule in RULES {
        let mut run = window(4, rule);
        run.optim = run.optim.with_clipping(GradientClip::Value(0.5)).unwrap();
        (0..4).for_each(|k| run.step(micro(k)));
        let mean = expected(0..4, 0.25);
        assert!(mean.iter().any(|value| value.abs() > 0.5));
        let clipped: Vec<f32> = mean.iter().map(|v| v.clamp(-0.5, 0.5)).collect();
        assert_eq!(run.values(), clipped);
        let squares = mean.iter().map(|v| f64::from(*v).powi(2));
        let norm = squares.sum::<f64>().sqrt();
        let status = run.optim.scaler().last_status().unwrap();
        // Of f32, where it is taken on a GPU.
        assert!((status.norm() - norm).abs() < 1e-6 * norm, "{rule:?}");
    }
}

#[test]
fn a_scale_that_is_changed_inside_a_window_is_taken_into_account() {
    let mut run = window(2, false);
    run.step(micro(0));
    run.optim.scaler_mut().set_loss_scale(64.0).unwrap();
    run.step(micro(1));
    assert_eq!(run.values(), expected(0..2, 0.5));
}

#[test]
fn unscaled_gradients_enter_a_window_too() {
    for rule in RULES {
        let mut run = window(4, rule);
        run.step(micro(0));
        let unscaled = run.optim.unscale(run.gradients(micro(1)), &run.model);
        run.model = run.optim.step(1.0, run.model.clone(), unscaled.unwrap());
        // Burn's own.
        for k in 2..4 {
            run.model = run.optim.step(
                1.0,
                run.model.clone(),
                gradients(&run.model, k, 1.0).into_params(),
            );
        }
        assert_eq!(run.values(), expected(0..4, 0.25), "{rule:?}");
    }
}

#[test]
fn half_precision_gradients_are_summed_in_f32() {
    for rule in RULES {
        for gradient in [false, true] {
            let scaler = GradScalerConfig::new()
                .with_init_scale(1.0)
                .with_growth_interval(100_000)
                .with_parameter_dtype_gradients(gradient);
            let mut run = masters(scaler, config(4096, rule)).with_dtype(DType::F16);
            for _ in 0..4096 {
                // In f16, 2048 + 1 is 2048.
                run.step(([1.0; 6], [1.0; 4]));
            }
            assert_eq!(run.values(), [-1.0; 10], "{rule:?} {gradient:?}");
        }
    }
}

/// Plain SGD with f32 copies.
fn masters(scaler: GradScalerConfig, window: AccumulationConfig) -> Trial<MasterWeights> {
    let inner = MasterWeights::new(SgdConfig::new().build());
    let optim = ScaledOptimizer::new(inner, scaler.init().unwrap());
    Trial::new(optim.with_accumulation(window).unwrap())
}

#[test]
fn a_disabled_scaler_accumulates() {
    for rule in RULES {
        for dtype in [DType::F16, DType::F32] {
            let disabled = GradScalerConfig::new().with_enabled(false).init().unwrap();
            let optim = ScaledOptimizer::new(SgdConfig::new().init(), disabled)
                .with_accumulation(config(4, rule))
                .unwrap();
            let mut run = Trial::new(optim).with_dtype(dtype);
            for k in 0..4 {
                let grads = gradients(&run.model, k, 1.0);
                run.model = run.optim.step(1.0, run.model, grads);
            }
            assert_eq!(run.values(), expected(0..4, 0.25), "{rule:?} {dtype:?}");
        }
    }
}

#[test]
fn one_f32_buffer_for_each_parameter_is_added_to_in_place() {
    if !on_flex() {
        return;
    }
    for dtype in [DType::F16, DType::F32] {
        for rule in RULES {
            let scaler = GradScalerConfig::new().with_init_scale(16.0);
            let mut run = masters(scaler, config(8, rule)).with_dtype(dtype);
            let mut places = Vec::new();
            for k in 0..5 {
                run.step(micro(k));
                let sum = run.optim.window().unwrap().sum(&run.model.weight);
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
    let mut run = window(2, false).with_dtype(DType::F64);
    run.step(micro(0));
    let sum = run.optim.window().unwrap().sum(&run.model.bias).unwrap();
    assert_eq!(sum.dtype(), DType::F64);
    run.step(micro(1));
    assert_eq!(run.values(), expected(0..2, 0.5));
}

#[test]
fn parameters_may_lack_a_gradient_in_some_micro_batches() {
    for rule in RULES {
        let mut run = window(2, rule);
        let mut first = run.gradients(micro(0));
        first.params_mut().remove::<1>(run.model.bias.id).unwrap();
        run.model = run.optim.step(1.0, run.model.clone(), first);
        let mut second = run.gradients(micro(1));
        second
            .params_mut()
            .remove::<2>(run.model.weight.id)
            .unwrap();
        run.model = run.optim.step(1.0, run.model.clone(), second);
        // A gradient that is absent is zero: it counts in the mean.
        let [first, second] = [expected([0], 0.5), expected([1], 0.5)];
        assert_eq!(run.values(), [&first[..6], &second[6..]].concat());
    }
}

#[test]
fn a_clone_goes_its_own_way() {
    let mut run = window(2, false);
    run.step(micro(0));
    let (optim, model) = (run.optim.clone(), run.model.clone());
    let mut other = Trial { optim, model };
    other.step(micro(5));
    assert_eq!(run.len(), 1);
    run.step(micro(1));
    assert_eq!(run.values(), expected(0..2, 0.5));
    assert_eq!(other.values(), expected([0, 5], 0.5));
}

#[test]
fn what_the_optimizer_cannot_take_is_refused_at_the_first_micro_batch() {
    for rule in RULES {
        let mut run = window(2, rule).with_dtype(DType::F16);
        let error = run.refused(([1.0; 6], [1.0; 4]));
        let AmpError::HalfPrecisionParameter { parameter, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(parameter, "weight");
        assert_eq!((run.len(), run.counters().steps()), (0, 0));
    }
}

#[test]
fn gradients_of_another_shape_are_refused() {
    for rule in RULES {
        let mut run = window(3, rule);
        run.step(micro(0));
        let device = Device::default().autodiff();
        let mut other = run.model.clone();
        let bias = Tensor::<1>::zeros([5], &device).require_grad();
        other.bias = Param::initialized(ParamId::from(2002), bias);
        let mut grads = run.gradients(micro(1));
        let bias = Tensor::<1>::ones([5], &Device::default());
        grads.params_mut().register(other.bias.id, bias);
        let error = run.optim.try_step(1.0, other, grads).unwrap_err().error;
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
        says(&error, ["another model"]);
        assert_eq!((run.len(), run.counters().dropped()), (1, 0));
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
            model = optim
                .step_multi(1.0, model, MultiGradientsParams { grads })
                .unwrap();
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
            let full = scaler.accumulate(&mut window, grads, &model).unwrap();
            assert_eq!(full.is_some(), k == 1);
            if let Some(grads) = full {
                model = scaler.try_step(&mut optim, 1.0, model, grads).unwrap();
                // Learned from at once, micro-batch by micro-batch; or here.
                let outcome = scaler.update().unwrap();
                let late = !rule;
                assert_eq!(outcome, late.then_some(StepOutcome::Stepped));
            }
        }
        assert_eq!(model.values(), expected(0..2, 0.5));
        let tracker = if !rule { 1 } else { 2 };
        assert_eq!(scaler.growth_tracker(), tracker);
        assert_eq!(scaler.counters().steps(), 1);

        let grads = gradients(&model, 0, 1024.0);
        scaler.accumulate(&mut window, grads, &model).unwrap();
        let grads = scaler.try_flush(&mut window, &model).unwrap().unwrap();
        assert_eq!(grads.get::<1>(model.bias.id).unwrap().dims(), [4]);
        assert!(scaler.try_flush(&mut window, &model).unwrap().is_none());
    }
}

/// As one large batch of which a part has no gradient would.
#[test]
fn a_micro_batch_without_gradients_counts() {
    for rule in RULES {
        let mut run = window(2, rule);
        run.step(([2.0; 6], [4.0; 4]));
        run.model = run
            .optim
            .step(1.0, run.model.clone(), GradientsParams::new());
        assert_eq!(run.values()[5..7], [-1.0, -2.0]);
        assert_eq!(run.counters().stepped(), 1);

        // A window that has none at all is a step that moves nothing.
        let before = run.scale();
        run.model = run
            .optim
            .step(1.0, run.model.clone(), GradientsParams::new());
        run.model = run
            .optim
            .step(1.0, run.model.clone(), GradientsParams::new());
        assert_eq!(run.values()[5..7], [-1.0, -2.0]);
        assert_eq!((run.counters().stepped(), run.scale()), (2, before));
    }
}

#[test]
fn a_window_of_another_model_is_refused_by_flush_and_stays() {
    for rule in RULES {
        let mut run = window(3, rule);
        run.step(([1.0; 6], [1.0; 4]));
        let mut other = run.model.clone();
        other.weight = other.weight.map(|weight| weight.reshape([3, 2]));
        let error = run.optim.try_flush(1.0, other).unwrap_err().error;
        assert!(matches!(error, AmpError::ForeignRecord { .. }), "{error}");
        says(&error, ["`weight`"]);
        assert_eq!(run.len(), 1);
        run.flush();
        assert_eq!(run.values(), [-1.0; 10]);
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
            scaler.clone().accumulate(window, grads, module).unwrap();
        })
    };
    let stranger = LinearConfig::new(2, 2).init(&Device::default().autodiff());
    let logged = add(&mut window, &stranger).join("\n");
    says(&logged, ["2 gradients belong to no parameter"]);
    assert_eq!((window.len(), window.gradients()), (1, 0));

    let grads = model.gradients([1.0; 6], [1.0; 4], 1024.0);
    scaler
        .clone()
        .accumulate(&mut window, grads, &model)
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
            full = scaler.accumulate(&mut window, grads, &model).unwrap();
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
    let mut run = window(4, true);
    run.step(BAD);
    assert_eq!(run.counters().consecutive_skips(), 1);
    run.model = run
        .optim
        .step(1.0, run.model.clone(), GradientsParams::new());
    assert_eq!(run.counters().consecutive_skips(), 1);
    run.step(BAD);
    assert_eq!(run.counters().consecutive_skips(), 2);
}

/// Gradients that overflowed when they were tested, and were replaced by finite ones since, still make the window a skip, as
/// they make a step without a window one.
#[test]
fn a_repaired_micro_batch_still_skips_the_window() {
    let mut run = window(2, false);
    run.step(([1.0; 6], [1.0; 4]));
    assert_eq!(run.values(), [0.0; 10]);

    let grads = run.gradients(([1.0; 6], [f32::NAN; 4]));
    let mut grads = run.optim.unscale(grads, &run.model).unwrap();
    let finite = Tensor::<1>::ones([4], &Device::default());
    grads.params_mut().register(run.model.bias.id, finite);
    run.model = run.optim.step(1.0, run.model.clone(), grads);
    assert_eq!(run.values(), [0.0; 10]);
    assert_eq!((run.counters().skipped(), run.scale()), (1, 512.0));
    let status = run.optim.scaler().last_status().unwrap();
    assert_eq!(status.overflow_parameter(), Some("bias"));
}
