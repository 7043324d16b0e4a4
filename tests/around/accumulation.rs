//! Micro-batches: mean and sum, both rules for an overflow, flushing and dropping, memory.

mod refused;

use std::array::from_fn;

use crate::support::*;

const BAD: Values = ([f32::INFINITY, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0; 4]);

fn trial(config: AccumulationConfig) -> Trial {
    Trial::new(sgd().with_accumulation(config))
}

/// Zeros, and windows of `n` micro-batches.
fn window(n: u32, rule: bool) -> Trial {
    trial(windows(n, rule))
}

/// Micro-batch `k`: quarters, so that sums and a mean of 4 are exact.
fn micro(k: usize) -> Values {
    let value = |index: usize| ((k * 5 + index * 3) % 11) as f32 * 0.25 - 1.0;
    (from_fn(value), from_fn(|i| value(i + 6)))
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

/// Under a scaler that is disabled, too, whatever the dtype.
#[test]
fn every_nth_call_steps_with_the_mean_or_the_sum() {
    let disabled = || sgd_under(GradScalerConfig::new().with_enabled(false));
    for rule in RULES {
        for (optim, dtype, sum, factor) in [
            (sgd(), DType::F32, false, 0.25),
            (sgd(), DType::F32, true, 1.0),
            (disabled(), DType::F32, false, 0.25),
            (disabled(), DType::F16, false, 0.25),
        ] {
            let optim = optim.with_accumulation(windows(4, rule).with_sum(sum));
            let mut run = Trial::new(optim).with_dtype(dtype);
            for k in 0..4 {
                assert_eq!(run.len(), k as u32);
                assert_eq!(run.values(), [0.0; 10]);
                run.step(micro(k));
            }
            assert_eq!(
                run.values(),
                expected(0..4, factor),
                "{rule}, {sum}, {dtype:?}"
            );
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
        (from_fn(value), from_fn(|i| value(i + 6)))
    };
    let mut built_in = trial(AccumulationConfig::new(3).with_sum(true));
    let mut by_hand = Trial::new(sgd());
    for step in 0..4 {
        let mut accumulator = GradientsAccumulator::new();
        for values in [0, 1, 2].map(|k| odd(step * 3 + k)) {
            assert_eq!(built_in.scale(), by_hand.scale());
            built_in.step(values);
            let grads = by_hand.gradients(values);
            accumulator.accumulate(&by_hand.model, grads.into_params());
        }
        let sum = scaled_by_hand(by_hand.optim.scaler(), accumulator.grads());
        by_hand.take(sum);
        assert_eq!(built_in.values(), by_hand.values());
        assert_eq!(built_in.counters(), by_hand.counters());
    }
}

/// Calls, those of `bad` with gradients that overflow, and after each the scale and how many are in the window. What the steps have
/// made of zeros, and the counters: steps, skipped ones, dropped micro-batches, skips in a row.
fn calls(mut run: Trial, plain: bool, bad: &[usize], after: &[(f32, u32)]) -> (Vec<f32>, [u64; 4]) {
    for (k, expected) in after.iter().enumerate() {
        let values = if bad.contains(&k) { BAD } else { micro(k) };
        match plain {
            true => run.take_plain(run.model.gradients(values, 1.0).into_params()),
            false => run.step(values),
        }
        assert_eq!((run.scale(), run.len()), *expected, "{k}");
    }
    let counters = run.counters();
    let [steps, skipped] = [counters.steps(), counters.skipped()];
    let [dropped, row] = [counters.dropped(), counters.consecutive_skips()];
    (run.values(), [steps, skipped, dropped, row])
}

#[test]
fn an_overflow_skips_the_window() {
    let first = [1, 2, 3].map(|len| (1024.0, len));
    // The next window starts from nothing.
    let next = [0, 1, 2, 3, 0].map(|len| (512.0, len));
    let found = calls(window(4, false), false, &[1], &[&first[..], &next].concat());
    assert_eq!(found, (expected(4..8, 0.25), [2, 1, 0, 0]));
    // Burn's own gradients are unscaled.
    let found = calls(window(2, false), true, &[1], &[(1024.0, 1), (512.0, 0)]);
    assert_eq!(found, (vec![0.0; 10], [1, 1, 0, 1]));
}

/// Finite ones count; the scale doubles after two in a row and halves at each bad one.
#[test]
fn an_overflow_drops_its_micro_batch() {
    let run = trial(windows(3, true).with_sum(true));
    let bad = [(1024.0, 1), (512.0, 1), (256.0, 1)];
    let after = [&bad[..], &[(256.0, 2), (512.0, 0)]].concat();
    let found = calls(run, false, &[1, 2], &after);
    assert_eq!(found, (expected([0, 3, 4], 1.0), [1, 0, 2, 0]));
    let found = calls(window(2, true), true, &[1], &[(1024.0, 1), (512.0, 1)]);
    assert_eq!(found, (vec![0.0; 10], [0, 0, 1, 1]));
}

/// At the border of half precision it is known whose fault an overflow was.
#[test]
fn a_loss_that_is_not_finite_drops_its_micro_batch_and_the_scale_stays() {
    let settings = at_scale(1024.0).with_max_consecutive_skips(Some(2));
    let amp = MixedPrecision::f16().with_scaler(settings).unwrap();
    let model = Pair::zeros(DType::F32).apply_reparameterization(amp.clone());
    let optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let mut optim = optim.with_accumulation(windows(9, true));
    let mut micro_batch = |factor: f32| {
        let output = amp.autocast((), |()| model.bias.val());
        let loss = (output * factor).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let result = optim.try_step(1.0, model.clone(), grads);
        let counters = optim.scaler().counters();
        let found = (counters.dropped(), counters.bad_losses(), amp.loss_scale());
        (result.err().map(|failed| failed.error), found)
    };
    for (factor, expected) in [
        (f32::NAN, (1, 1, 1024.0)),
        (f32::INFINITY, (2, 2, 1024.0)),
        (1.0, (2, 2, 1024.0)),
        // Finite, and too large for f16 once it is multiplied.
        (1000.0, (3, 2, 512.0)),
        (f32::NAN, (4, 3, 512.0)),
        (f32::NAN, (5, 4, 512.0)),
    ] {
        assert_eq!(micro_batch(factor).1, expected);
    }
    let error = AmpError::LossNotFinite {
        skips: 3,
        output_finite: true,
    };
    assert_eq!(micro_batch(f32::NAN), (Some(error), (6, 5, 512.0)));
    assert_eq!(optim.window().unwrap().len(), 1);
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

/// What happens to an open window of two, which then is full of the micro-batches 0 and 1.
#[test]
fn what_happens_to_an_open_window() {
    type Between = fn(&mut Trial);
    let cases: [(&str, Between); 4] = [
        ("a dropped one leaves no trace", |run| {
            run.optim.drop_window();
            assert_eq!(run.len(), 0);
            run.step(micro(0));
        }),
        ("a discarded micro-batch does not count", |run| {
            let scale = run.scale();
            run.optim.discard(run.gradients(micro(7))).unwrap();
            let unscaled = run.unscaled(BAD);
            run.optim.discard(unscaled).unwrap();
            // Met again and again, if the scale did not move.
            assert_eq!(run.scale(), scale / 2.0);
            assert_eq!((run.len(), run.counters().discarded()), (1, 2));
        }),
        ("a changed scale is taken into account", |run| {
            run.optim.scaler_mut().set_loss_scale(64.0).unwrap();
        }),
        ("a clone goes its own way", |run| {
            let mut other = run.clone();
            other.step(micro(5));
            assert_eq!(run.len(), 1);
            assert_eq!(other.values(), expected([0, 5], 0.5));
        }),
    ];
    for (name, between) in cases {
        for rule in RULES {
            let mut run = window(2, rule);
            run.step(micro(0));
            between(&mut run);
            run.step(micro(1));
            assert_eq!(run.values(), expected(0..2, 0.5), "{name}, {rule}");
        }
    }
    sgd().drop_window();
}

#[test]
fn unscaled_gradients_enter_a_window_too() {
    for rule in RULES {
        let mut run = window(4, rule);
        run.step(micro(0));
        let unscaled = run.unscaled(micro(1));
        run.take_unscaled(unscaled);
        // Burn's own.
        for k in 2..4 {
            run.take_plain(run.model.gradients(micro(k), 1.0).into_params());
        }
        assert_eq!(run.values(), expected(0..4, 0.25), "{rule:?}");
    }
}

#[test]
fn half_precision_gradients_are_summed_in_f32() {
    for rule in RULES {
        for gradient in [false, true] {
            let scaler = at_scale(1.0)
                .with_growth_interval(100_000)
                .with_parameter_dtype_gradients(gradient);
            let optim = masters(scaler).with_accumulation(windows(4096, rule));
            let mut run = Trial::new(optim).with_dtype(DType::F16);
            for _ in 0..4096 {
                // In f16, 2048 + 1 is 2048.
                run.step(all(1.0));
            }
            assert_eq!(run.values(), [-1.0; 10], "{rule:?} {gradient:?}");
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
            let optim = masters(at_scale(16.0)).with_accumulation(windows(8, rule));
            let mut run = Trial::new(optim).with_dtype(dtype);
            let places = (0..5).map(|k| {
                run.step(micro(k));
                let sum = run.optim.window().unwrap().sum(&run.model.weight);
                assert_eq!(sum.as_ref().unwrap().dtype(), DType::F32);
                address(sum)
            });
            let mut places: Vec<_> = places.collect();
            places.dedup();
            assert_eq!(places.len(), 1, "{dtype:?} {rule:?}");
        }
    }
    // The memory of the first gradient becomes that of the sum.
    let mut run = window(8, false);
    let grads = run.gradients(micro(0));
    let place = address(grads.params().get::<2>(run.model.weight.id));
    run.take(grads);
    let sum = run.optim.window().unwrap().sum(&run.model.weight);
    assert_eq!(address(sum), place);
}

#[test]
fn parameters_may_lack_a_gradient_in_some_micro_batches() {
    for rule in RULES {
        let mut run = window(2, rule);
        let [mut first, mut second] = [0, 1].map(|k| run.gradients(micro(k)));
        let (weight, bias) = (run.model.weight.id, run.model.bias.id);
        first.params_mut().remove::<1>(bias).unwrap();
        second.params_mut().remove::<2>(weight).unwrap();
        run.take(first);
        run.take(second);
        // A gradient that is absent is zero: it counts in the mean.
        let [first, second] = [expected([0], 0.5), expected([1], 0.5)];
        assert_eq!(run.values(), [&first[..6], &second[6..]].concat());
    }
}

#[test]
fn gradients_of_several_devices_enter_as_their_sum() {
    for rule in RULES {
        let Trial {
            mut optim,
            mut model,
        } = window(2, rule);
        for pair in [[0, 1], [2, 3]] {
            let part = |k| model.gradients(micro(k), 1.0).into_params();
            let grads = pair.map(|k| (part(k), Device::default())).into();
            let stepped = optim.step_multi(1.0, model, MultiGradientsParams { grads });
            model = stepped.unwrap();
        }
        assert_eq!(model.values(), expected(0..4, 0.5));
    }
}

#[test]
fn with_the_scaler_alone() {
    for rule in RULES {
        let config = at_scale(1024.0);
        let mut scaler = config.with_growth_interval(100).init().unwrap();
        let mut optim = SgdConfig::new().init();
        let mut window = windows(2, rule).init().unwrap();
        let mut model = Pair::zeros(DType::F32);
        for k in 0..2 {
            let grads = model.gradients(micro(k), 1024.0);
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
        assert_eq!(scaler.growth_tracker(), if rule { 2 } else { 1 });
        assert_eq!(scaler.counters().steps(), 1);

        let grads = model.gradients(micro(0), 1024.0);
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
        run.take_plain(GradientsParams::new());
        assert_eq!(run.values()[5..7], [-1.0, -2.0]);
        assert_eq!(run.counters().stepped(), 1);

        // A window that has none at all is a step that moves nothing.
        let before = run.scale();
        run.take_plain(GradientsParams::new());
        run.take_plain(GradientsParams::new());
        assert_eq!(run.values()[5..7], [-1.0, -2.0]);
        assert_eq!((run.counters().stepped(), run.scale()), (2, before));
    }
    // It is no evidence that the scale is fine: neither for the scale, nor for the count of skips.
    let mut run = window(4, true);
    for row in 1..3 {
        run.step(BAD);
        run.take_plain(GradientsParams::new());
        assert_eq!(run.counters().consecutive_skips(), row);
    }
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
        let mut window = windows(3, rule).init().unwrap();
        let full = [1.0, 2.0, 4.0].map(|value| {
            let grads = model.gradients(all(value), 1024.0);
            let full = scaler.accumulate(&mut window, grads, &model).unwrap();
            let sum = window.sum(&model.bias);
            assert!(sum.is_none_or(|sum| sum.dtype() == DType::F64));
            full
        });
        let [.., Some(full)] = full else { panic!() };
        let mean = full.get::<1>(model.bias.id).unwrap();
        for value in mean.into_data().iter::<f64>() {
            assert!((value / (7.0 / 3.0) - 1.0).abs() < 1e-15, "{value}");
        }
    }
}

/// Gradients that overflowed when they were tested, and were replaced by finite ones since, still make the window a skip, as
/// they make a step without a window one.
#[test]
fn a_repaired_micro_batch_still_skips_the_window() {
    let mut run = window(2, false);
    run.step(all(1.0));
    let mut grads = run.unscaled(([1.0; 6], [f32::NAN; 4]));
    let finite = Tensor::<1>::ones([4], &Device::default());
    grads.params_mut().register(run.model.bias.id, finite);
    run.take_unscaled(grads);
    assert_eq!(run.values(), [0.0; 10]);
    assert_eq!((run.counters().skipped(), run.scale()), (1, 512.0));
    assert_eq!(run.status().overflow_parameter(), Some("bias"));
}
