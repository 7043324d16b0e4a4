//! Windows of micro-batches: gradients of every kind and dtype, memory, what does not fit and what ends a run. Overflows, losses that are not
//! finite, clones and records in them, under both rules, `tests/oracle` draws.

use crate::support::*;

/// Zeros, and windows of `n` micro-batches.
fn window(n: u32, rule: bool) -> Trial {
    Trial::new(sgd().with_accumulation(windows(n, rule)))
}

/// Micro-batch `k`: quarters, so that sums and a mean of 4 are exact.
fn micro(k: usize) -> [f64; 10] {
    from_fn(|index| ((k * 5 + index * 3) % 11) as f64 * 0.25 - 1.0)
}

/// What plain SGD at a rate of 1 makes of zeros with the mean of the first two.
fn mean() -> [f64; 10] {
    from_fn(|index| -0.5 * (micro(0)[index] + micro(1)[index]))
}

/// All values; steps, skips and dropped micro-batches.
fn shown(run: &Trial) -> (Vec<f64>, [u64; 3]) {
    let found = run.counters();
    let counts = [found.steps(), found.skipped(), found.dropped()];
    (run.values(), counts)
}

/// Gradients that are scaled, unscaled, Burn's own, and those of two devices, which are their sum.
const FORMS: [fn(&mut Trial, [f64; 10]); 4] = [
    |run, values| run.step(values),
    |run, values| {
        let grads = run.unscaled(values);
        run.take(grads);
    },
    |run, values| run.take(run.model.plain(values)),
    |run, values| {
        let half = || run.model.plain(values.map(|value| 0.5 * value));
        let grads = vec![(half(), Device::default()), (half(), Device::default())];
        let multi = MultiGradientsParams { grads };
        run.model = run.optim.step_multi(1.0, run.model.clone(), multi).unwrap();
    },
];

#[test]
fn a_window_steps_with_gradients_of_every_form() {
    let rules = |form| RULES.map(|rule| (form, rule));
    for (form, rule) in FORMS.into_iter().flat_map(rules) {
        let mut run = window(2, rule);
        (0..2).for_each(|k| form(&mut run, micro(k)));
        assert_eq!(shown(&run), (mean().to_vec(), [1, 0, 0]));
        // An overflow skips its window, or is dropped by itself: the window takes one more.
        let mut run = window(2, rule);
        form(&mut run, BAD);
        (0..=usize::from(rule)).for_each(|k| form(&mut run, micro(k)));
        let expected = [([0.0; 10], [1, 1, 0]), (mean(), [1, 0, 1])];
        let (values, counts) = expected[usize::from(rule)];
        assert_eq!(shown(&run), (values.to_vec(), counts));
        assert_eq!(run.window(), 0);
    }
}

/// A gradient that is absent is zero. Tested gradients that are discarded leave no trace in a window, and move the scale where micro-batches do. An
/// overflow counts that was replaced after its test.
#[test]
fn gradients_that_are_absent_discarded_or_replaced() {
    for (rule, grown) in [(false, 1024.0), (true, 2048.0)] {
        let mut run = window(2, rule);
        let discard = |run: &mut Trial, values| {
            let grads = run.unscaled(values);
            run.optim.discard(grads).unwrap();
        };
        let mut of_weight = run.scaled(micro(0));
        of_weight.params_mut().remove::<1>(run.model.bias.id);
        (0..2).for_each(|_| discard(&mut run, ONES));
        assert_eq!(run.scale(), grown);
        run.take(of_weight);
        discard(&mut run, BAD);
        let mut of_bias = run.scaled(micro(1));
        of_bias.params_mut().remove::<2>(run.model.weight.id);
        run.take(of_bias);
        let expected: [f64; 10] = from_fn(|index| -0.5 * micro(usize::from(index > 5))[index]);
        assert_eq!(shown(&run), (expected.to_vec(), [1, 0, 0]));
    }
    let mut run = window(2, false);
    run.step(micro(0));
    let mut grads = run.unscaled(BAD);
    *grads.params_mut() = run.model.plain(ONES);
    run.take(grads);
    assert_eq!(shown(&run), (vec![0.0; 10], [1, 1, 0]));
}

#[test]
fn a_disabled_scaler_tests_nothing_in_half_precision_either() {
    let dtypes = |rule| [DType::F32, DType::F16].map(|dtype| (rule, dtype));
    for (rule, dtype) in RULES.into_iter().flat_map(dtypes) {
        let disabled = sgd_under(GradScalerConfig::new().with_enabled(false));
        let mut run = Trial::new(disabled.with_accumulation(windows(2, rule)));
        run = run.with_dtype(dtype);
        (0..2).for_each(|k| run.step(micro(k)));
        assert_eq!(run.values(), mean(), "{rule}, {dtype:?}");
    }
}

/// In f16, 2048 + 1 is 2048.
#[test]
fn half_precision_is_summed_in_f32() {
    let all = [(false, false), (false, true), (true, false), (true, true)];
    for (rule, narrow) in all {
        let scaler = at_scale(1.0).with_parameter_dtype_gradients(narrow);
        let optim = under(scaler.with_growth_interval(100_000), masters());
        let optim = optim.with_accumulation(windows(4096, rule));
        let mut run = Trial::new(optim).with_dtype(DType::F16);
        (0..4096).for_each(|_| run.step(ONES));
        assert_eq!(run.values(), [-1.0; 10], "{rule:?} {narrow:?}");
    }
}

#[test]
fn f64_windows_stay_f64() {
    if !Device::default().supports_dtype(DType::F64) {
        return skipped("there is no f64");
    }
    for rule in RULES {
        let model = Pair::new([0.0; 10], &device(), DType::F64);
        let mut run = ByHand::of(model, at_scale(1024.0));
        let mut window = windows(3, rule).init().unwrap();
        let full = [1.0, 2.0, 4.0].map(|value| run.accumulate(&mut window, [value; 10]));
        let full = full.into_iter().flatten().next().unwrap();
        let found = gradients_by_path(full.params(), &run.model);
        assert!(found.iter().all(|(_, dtype, _)| *dtype == DType::F64));
        run.take(full).unwrap();
        let is_mean = |value: f64| (value / (-7.0 / 3.0) - 1.0).abs() < 1e-7;
        assert!(run.model.values().into_iter().all(is_mean));
    }
}

#[test]
fn a_sum_is_that_of_burns_accumulator_bit_for_bit() {
    let windows = AccumulationConfig::new(3).with_sum(true);
    let mut built_in = Trial::new(sgd().with_accumulation(windows));
    let mut by_hand = Trial::new(sgd());
    for step in 0..4 {
        let mut accumulator = GradientsAccumulator::new();
        for k in 0..3 {
            // Values whose sums round.
            let values = from_fn(|index| f64::from(wave(step * 21 + k * 7 + index, 1, 1.0)[0]));
            built_in.step(values);
            let grads = by_hand.scaled(values).into_params();
            accumulator.accumulate(&by_hand.model, grads);
        }
        let sum = scaled_by_hand(by_hand.optim.scaler(), accumulator.grads());
        by_hand.take(sum);
        assert_eq!(built_in.values(), by_hand.values());
    }
}

/// The memory of the first f32 gradient becomes that of the sum.
#[test]
fn one_f32_buffer_for_each_parameter_is_added_to_in_place() {
    if !on_flex() {
        return skipped("its memory cannot be looked at");
    }
    for dtype in [DType::F16, DType::F32] {
        for rule in RULES {
            let optim = under(at_scale(16.0), masters());
            let mut run = Trial::new(optim.with_accumulation(windows(8, rule))).with_dtype(dtype);
            let grads = run.scaled(micro(0));
            let first = address(grads.params().get::<2>(run.model.weight.id));
            run.take(grads);
            let places = [1, 2, 3, 4, 5].map(|k| {
                let sum = run.optim.window().unwrap().sum(&run.model.weight);
                assert_eq!(sum.as_ref().unwrap().dtype(), DType::F32);
                let place = address(sum);
                run.step(micro(k));
                place
            });
            // Unless it is tested, and widened, before it is added.
            let own = dtype == DType::F32 && !rule;
            let expected = if own { first } else { places[0] };
            assert_eq!(places, [expected; 5], "{dtype:?} {rule:?}");
        }
    }
}

/// At the border the cause is known.
#[test]
fn too_many_dropped_in_a_row_end_the_run_and_keep_the_window() {
    let exhausted = "LossScaleExhausted { scale: 256.0, skips: 3, parameter: \"bias\" }";
    let not_finite = "LossNotFinite { skips: 3, output_finite: true, ";
    for (factor, error, scale) in [(1000.0, exhausted, 256.0), (f64::NAN, not_finite, 1024.0)] {
        let settings = at_scale(1024.0).with_max_consecutive_skips(Some(2));
        let mut run = Trial::at_border(&f16_under(settings));
        run.optim = run.optim.with_accumulation(windows(3, true));
        for factor in [1.0, factor, factor] {
            run.take(run.in_scope(factor));
        }
        let grads = run.in_scope(factor);
        let failed = run.optim.try_step(1.0, run.model.clone(), grads);
        is_error(&failed.unwrap_err().error, error, []);
        let found = (run.counters().dropped(), run.window(), run.scale());
        assert_eq!(found, (3, 1, scale));
    }
}

/// Micro-batches that are all finite, in f16 gradients whose sums of three are taken in f32, and rounded to f16 in the end. A window that steps starts the
/// count anew, and a resume does not. It is at the floor of the scale, which has nothing to do with it.
#[test]
fn windows_whose_sum_alone_overflows() {
    let trial = || {
        let scaler = at_scale(1.0).with_min_scale(Some(1.0));
        let scaler = scaler.with_max_consecutive_skips(Some(1));
        let scaler = scaler.with_parameter_dtype_gradients(true);
        let optim = sgd_under(scaler).with_accumulation(windows(3, true).with_sum(true));
        Trial::new(optim).with_dtype(DType::F16)
    };
    // 40000 is an f16, 120000 is not.
    let micro = |value: f64| from_fn(|index| if index < 6 { 1.0 } else { value });
    let fill = |run: &mut Trial, value: f64| (0..3).for_each(|_| run.step(micro(value)));
    let (mut run, mut resumed) = (trial(), trial());
    for step in 1..4 {
        let parts = ["window skipped", "sum", "`bias`"];
        warns_once(parts, || fill(&mut run, 40000.0));
        assert_eq!(run.outcome(), Some(StepOutcome::Skipped));
        no_warning(|| fill(&mut run, 1.0));
        assert_eq!(run.values(), [-3.0 * f64::from(step); 10]);
    }
    fill(&mut run, 40000.0);
    resumed.optim.load_record(run.optim.to_record()).unwrap();
    for mut run in [run, resumed] {
        (0..2).for_each(|_| run.step(micro(40000.0)));
        let error = run.refused(micro(40000.0));
        let exhausted = "LossScaleExhausted { scale: 1.0, skips: 2, parameter: \"bias\" }";
        is_error(&error, exhausted, []);
        assert_eq!((run.counters().skipped(), run.window()), (5, 0));
    }
}

/// What the optimizer cannot take, at the first micro-batch; and the same parameters in another shape or dtype, which neither a
/// micro-batch nor a flush takes.
#[test]
fn what_does_not_fit_is_refused_and_the_window_stays() {
    let of_f32 = Pair::of(0.0);
    let mut turned = of_f32.clone();
    turned.weight = turned.weight.map(|weight| weight.reshape([3, 2]));
    for rule in RULES {
        let mut run = window(2, rule).with_dtype(DType::F16);
        is_error(&run.refused(ONES), "HalfPrecisionParameter", ["`weight`"]);
        assert_eq!((run.window(), run.counters().steps()), (0, 0));
        for (dtype, other, part) in [
            (DType::F32, &turned, "another model"),
            (DType::F64, &of_f32, "F64"),
        ] {
            let mut run = window(3, rule).with_dtype(dtype);
            run.step(ONES);
            let grads = gradients(other, 0, 1.0, FloatDType::F32);
            let stepped = run.optim.try_step(1.0, other.clone(), grads);
            let flushed = run.optim.try_flush(1.0, other.clone());
            for failed in [stepped, flushed] {
                let error = failed.unwrap_err().error;
                is_error(&error, "ForeignRecord", ["`weight`", part]);
            }
            assert_eq!((run.window(), run.counters().dropped()), (1, 0));
            run.flush();
            assert_eq!(run.values(), [-1.0; 10]);
        }
    }
}

#[test]
fn gradients_of_no_parameter_are_dropped_and_logged() {
    let mut scaler = default_scaler();
    let mut window = windows(3, false).init().unwrap();
    let grads = Pair::of(0.0).scaled(ONES, 1024.0);
    let stranger = LinearConfig::new(2, 2).init(&device());
    let logged = captured(Level::Debug, || {
        let full = scaler.accumulate(&mut window, grads, &stranger);
        assert!(full.unwrap().is_none());
    });
    says(&logged.join("\n"), ["2 gradients belong to no parameter"]);
    assert_eq!((window.len(), window.gradients()), (1, 0));
    assert_eq!(AmpRecord::from_bytes(window.bits()).unwrap().window(), 1);
}
