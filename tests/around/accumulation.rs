//! Micro-batches: mean and sum, both rules for an overflow, flushing and dropping, memory.

mod refused;

use crate::support::*;

/// Zeros, and windows of `n` micro-batches.
fn window(n: u32, rule: bool) -> Trial {
    Trial::new(sgd().with_accumulation(windows(n, rule)))
}

/// Micro-batch `k`: quarters, so that sums and a mean of 4 are exact.
fn micro(k: usize) -> [f64; 10] {
    from_fn(|index| ((k * 5 + index * 3) % 11) as f64 * 0.25 - 1.0)
}

/// What plain SGD at a rate of 1 makes of zeros with the sum of these micro-batches times `factor`.
fn expected(micro_batches: impl IntoIterator<Item = usize>, factor: f64) -> [f64; 10] {
    let sum = |sum: [f64; 10], k| from_fn(|index| sum[index] - factor * micro(k)[index]);
    micro_batches.into_iter().fold([0.0; 10], sum)
}

/// Calls with micro-batches (by number, or x for one that overflows) whose gradients are scaled, unscaled (u), Burn's own (p), or those of
/// several devices (m), or are discarded (d); with none (-); a flush (f), a drop of the window (~) or another scale (*). The scale and the
/// length of the window after each.
fn play(run: &mut Trial, calls: &str) -> String {
    let values = |name: &str| name.parse().map_or(BAD, micro);
    let played = calls.split(' ').map(|call| {
        match call.split_at(1) {
            ("u", name) => {
                let grads = run.unscaled(values(name));
                run.take(grads);
            }
            ("d", name) => {
                let grads = run.unscaled(values(name));
                run.optim.discard(grads).unwrap();
            }
            ("p", name) => run.take(run.model.plain(values(name))),
            ("m", parts) => {
                let part = |k: &str| (run.model.plain(values(k)), Device::default());
                let grads = parts.split('+').map(part).collect();
                let grads = MultiGradientsParams { grads };
                run.model = run.optim.step_multi(1.0, run.model.clone(), grads).unwrap();
            }
            ("-", _) => run.take(GradientsParams::new()),
            ("f", _) => run.flush(),
            ("~", _) => run.optim.drop_window(),
            ("*", _) => run.optim.scaler_mut().set_loss_scale(64.0).unwrap(),
            _ => run.step(values(call)),
        }
        format!("{}/{}", run.scale(), run.window())
    });
    played.collect::<Vec<_>>().join(" ")
}

/// Steps, skipped ones, dropped micro-batches, skips in a row.
fn counts(run: &Trial) -> [u64; 4] {
    let counters = run.counters();
    let (dropped, row) = (counters.dropped(), counters.consecutive_skips());
    [counters.steps(), counters.skipped(), dropped, row]
}

/// Under a scaler that is disabled, too, whatever the dtype.
#[test]
fn every_nth_call_steps_with_the_mean_or_the_sum() {
    let disabled = || sgd_under(GradScalerConfig::new().with_enabled(false));
    for rule in RULES {
        for (optim, dtype, sum, factor) in [
            (sgd(), DType::F32, true, 1.0),
            (disabled(), DType::F32, false, 0.25),
            (disabled(), DType::F16, false, 0.25),
        ] {
            let optim = optim.with_accumulation(windows(4, rule).with_sum(sum));
            let mut run = Trial::new(optim).with_dtype(dtype);
            for k in 0..4 {
                assert_eq!((run.window(), run.values()), (k as u32, vec![0.0; 10]));
                run.step(micro(k));
            }
            let values = expected(0..4, factor);
            assert_eq!(run.values(), values, "{rule}, {sum}, {dtype:?}");
            let window = run.optim.window().unwrap();
            assert!(window.is_empty() && window.gradients() == 0);
            assert_eq!(run.counters().steps(), 1);
        }
    }
}

#[test]
fn a_sum_is_that_of_burns_accumulator_bit_for_bit() {
    // Values whose sums round.
    let odd = |k: usize| from_fn(|index| f64::from(((k * 7 + index) as f32 * 12.9898).sin()));
    let windows = AccumulationConfig::new(3).with_sum(true);
    let mut built_in = Trial::new(sgd().with_accumulation(windows));
    let mut by_hand = Trial::new(sgd());
    for step in 0..4 {
        let mut accumulator = GradientsAccumulator::new();
        for values in [0, 1, 2].map(|k| odd(step * 3 + k)) {
            assert_eq!(built_in.scale(), by_hand.scale());
            built_in.step(values);
            let grads = by_hand.scaled(values).into_params();
            accumulator.accumulate(&by_hand.model, grads);
        }
        let sum = scaled_by_hand(by_hand.optim.scaler(), accumulator.grads());
        by_hand.take(sum);
        assert_eq!(built_in.values(), by_hand.values());
        assert_eq!(built_in.counters(), by_hand.counters());
    }
}

/// In a window that is tested as a whole it skips that; else it drops its micro-batch, finite ones count, and the scale doubles after two
/// in a row and halves at each bad one.
#[test]
fn an_overflow_skips_the_window_or_drops_its_micro_batch() {
    let check = |config, calls, after, values: [f64; 10], counters| {
        let mut run = Trial::new(sgd().with_accumulation(config));
        assert_eq!(play(&mut run, calls), after);
        assert_eq!((run.values(), counts(&run)), (values.to_vec(), counters));
    };
    // The next window starts from nothing.
    let (calls, mean) = ("0 x 2 3 4 5 6 7", expected(4..8, 0.25));
    let after = "1024/1 1024/2 1024/3 512/0 512/1 512/2 512/3 512/0";
    check(windows(4, false), calls, after, mean, [2, 1, 0, 0]);
    let (sum, after) = (expected([0, 3, 4], 1.0), "1024/1 512/1 256/1 256/2 512/0");
    let summed = windows(3, true).with_sum(true);
    check(summed, "0 x x 3 4", after, sum, [1, 0, 2, 0]);
    // Burn's own gradients are unscaled.
    let (calls, zeros) = ("p0 px", [0.0; 10]);
    let [whole, each] = RULES.map(|rule| windows(2, rule));
    check(whole, calls, "1024/1 512/0", zeros, [1, 1, 0, 1]);
    check(each, calls, "1024/1 512/1", zeros, [0, 0, 1, 1]);
}

/// At the border of half precision the cause of an overflow is known.
#[test]
fn a_loss_that_is_not_finite_drops_its_micro_batch_and_the_scale_stays() {
    let settings = at_scale(1024.0).with_max_consecutive_skips(Some(2));
    let mut run = Trial::at_border(&f16_under(settings));
    run.optim = run.optim.with_accumulation(windows(9, true));
    let mut micro_batch = |factor: f64| {
        let grads = run.in_scope(factor);
        let result = run.optim.try_step(1.0, run.model.clone(), grads);
        let counters = run.counters();
        let found = (counters.dropped(), counters.bad_losses(), run.scale());
        (result.err().map(|failed| failed.error), found)
    };
    for (factor, found) in [
        (f64::NAN, (1, 1, 1024.0)),
        (f64::INFINITY, (2, 2, 1024.0)),
        (1.0, (2, 2, 1024.0)),
        // Finite, and too large for f16 once it is multiplied.
        (1000.0, (3, 2, 512.0)),
        (f64::NAN, (4, 3, 512.0)),
        (f64::NAN, (5, 4, 512.0)),
    ] {
        assert_eq!(micro_batch(factor), (None, found));
    }
    let (error, found) = micro_batch(f64::NAN);
    let expected = "LossNotFinite { skips: 3, output_finite: true, ";
    is_error(&error.unwrap(), expected, []);
    assert_eq!((found, run.window()), ((6, 5, 512.0), 1));
}

/// A second flush of an empty one steps with nothing, and so does one without windows.
#[test]
fn a_window_steps_with_what_it_has() {
    for rule in RULES {
        for (n, calls, values, steps) in [
            (4, "0 1 f f", expected(0..2, 0.5), 1),
            (4, "0 u1 p2 p3", expected(0..4, 0.25), 1),
            // Gradients of several devices enter as their sum.
            (2, "m0+1 m2+3", expected(0..4, 0.5), 1),
            // As one large batch of which a part has no gradient would.
            (2, "0 -", expected(0..1, 0.5), 1),
            // A window that has none at all is a step that moves nothing.
            (2, "0 - - -", expected(0..1, 0.5), 2),
            // What is dropped or discarded leaves no trace in it, and a changed scale is taken into account.
            (2, "0 ~ 0 1", expected(0..2, 0.5), 1),
            (2, "0 d7 dx 1", expected(0..2, 0.5), 1),
            (2, "0 * 1", expected(0..2, 0.5), 1),
        ] {
            let mut run = window(n, rule);
            play(&mut run, calls);
            assert_eq!(run.values(), values, "{calls}, {rule}");
            assert_eq!(counts(&run), [steps, 0, 0, 0], "{calls}");
        }
    }
    // It is no evidence that the scale is fine: neither for the scale, nor for the count of skips.
    let mut run = window(4, true);
    let after = play(&mut run, "x - x -");
    assert_eq!(after, "512/0 512/1 256/1 256/2");
    assert_eq!(counts(&run), [0, 0, 2, 2]);
    let mut plain = Trial::new(sgd());
    plain.flush();
    plain.optim.drop_window();
    assert_eq!(plain.values(), [0.0; 10]);
}

#[test]
fn half_precision_gradients_are_summed_in_f32() {
    for rule in RULES {
        for narrow in [false, true] {
            let scaler = at_scale(1.0).with_parameter_dtype_gradients(narrow);
            let optim = masters(scaler.with_growth_interval(100_000));
            let optim = optim.with_accumulation(windows(4096, rule));
            let mut run = Trial::new(optim).with_dtype(DType::F16);
            // In f16, 2048 + 1 is 2048.
            (0..4096).for_each(|_| run.step(ONES));
            assert_eq!(run.values(), [-1.0; 10], "{rule:?} {narrow:?}");
        }
    }
}

/// The memory of the first f32 gradient becomes that of the sum.
#[test]
fn one_f32_buffer_for_each_parameter_is_added_to_in_place() {
    if !on_flex() {
        return;
    }
    for dtype in [DType::F16, DType::F32] {
        for rule in RULES {
            let optim = masters(at_scale(16.0)).with_accumulation(windows(8, rule));
            let mut run = Trial::new(optim).with_dtype(dtype);
            let grads = run.scaled(micro(0));
            let mut places = vec![address(grads.params().get::<2>(run.model.weight.id))];
            run.take(grads);
            for k in 1..6 {
                let sum = run.optim.window().unwrap().sum(&run.model.weight);
                assert_eq!(sum.as_ref().unwrap().dtype(), DType::F32);
                places.push(address(sum));
                run.step(micro(k));
            }
            // Unless it is tested, and widened, before it is added.
            let own = dtype == DType::F32 && !rule;
            places.drain(..usize::from(!own));
            places.dedup();
            assert_eq!(places.len(), 1, "{dtype:?} {rule:?}");
        }
    }
}

/// A gradient that is absent is zero: it counts in the mean.
#[test]
fn parameters_may_lack_a_gradient_in_some_micro_batches() {
    for rule in RULES {
        let mut run = window(2, rule);
        let [mut first, mut second] = [0, 1].map(|k| run.scaled(micro(k)));
        let (weight, bias) = (run.model.weight.id, run.model.bias.id);
        first.params_mut().remove::<1>(bias).unwrap();
        second.params_mut().remove::<2>(weight).unwrap();
        run.take(first);
        run.take(second);
        let [first, second] = [expected([0], 0.5), expected([1], 0.5)];
        assert_eq!(run.values(), [&first[..6], &second[6..]].concat());
    }
}

/// The inverse of 3 is not rounded to f32 on the way, in f64.
#[test]
fn with_the_scaler_alone() {
    for (dtype, tolerance) in [(DType::F32, 1e-7), (DType::F64, 1e-15)] {
        if !Device::default().supports_dtype(dtype) {
            continue;
        }
        for rule in RULES {
            let config = at_scale(1024.0).with_growth_interval(100);
            let mut run = ByHand::of(Pair::new([0.0; 10], &device(), dtype), config);
            let mut window = windows(3, rule).init().unwrap();
            let full = [1.0, 2.0, 4.0].map(|value| run.accumulate(&mut window, [value; 10]));
            let [None, None, Some(full)] = full else {
                panic!("a full window and no other");
            };
            run.take(full).unwrap();
            for value in run.model.values() {
                assert!((value / (-7.0 / 3.0) - 1.0).abs() < tolerance, "{value}");
            }
            // The scale has moved at once, micro-batch by micro-batch; or moves here.
            let outcome = run.scaler.update().unwrap();
            assert_eq!(outcome, (!rule).then_some(StepOutcome::Stepped));
            assert_eq!(run.scaler.growth_tracker(), if rule { 3 } else { 1 });
            assert_eq!(run.counters().steps(), 1);

            run.accumulate(&mut window, ONES);
            assert_eq!(window.sum(&run.model.bias).unwrap().dtype(), dtype);
            let mut flush = || run.scaler.try_flush(&mut window, &run.model).unwrap();
            let bias = flush().unwrap().get::<1>(run.model.bias.id).unwrap();
            assert_eq!(bias.dims(), [4]);
            assert!(flush().is_none());
        }
    }
}

/// Gradients that overflowed when they were tested, and were replaced by finite ones since, still make the window a skip, as
/// they make a step without a window one.
#[test]
fn a_repaired_micro_batch_still_skips_the_window() {
    let mut run = window(2, false);
    run.step(ONES);
    let mut grads = run.unscaled(BAD);
    let finite = Tensor::<1>::ones([4], &Device::default());
    grads.params_mut().register(run.model.bias.id, finite);
    run.take(grads);
    assert_eq!(run.values(), [0.0; 10]);
    assert_eq!((run.counters().skipped(), run.scale()), (1, 512.0));
    assert_eq!(run.status().overflow_parameter(), Some("bias"));
}
