//! Gradients that were changed or thrown away after unscaling: what clipping finds in them, what is stepped on, and what the scale sees.

use GradientClip::{GlobalNorm, Norm, Value};

use crate::support::*;

/// Its norm is 5.
const GRADIENT: [f64; 10] = [3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0];

fn by_hand() -> ByHand {
    ByHand::of(Pair::of(0.0), at_scale(1024.0))
}

fn unscaled(factor: f64) -> UnscaledGradients {
    by_hand().unscaled(GRADIENT.map(|value| value * factor))
}

/// Divides gradients by zero.
struct Spoil;

impl ModuleMapper for Spoil {
    fn map_float<const D: usize>(&mut self, grad: Param<Tensor<D>>) -> Param<Tensor<D>> {
        grad.map(|grad| grad.div_scalar(0.0))
    }
}

/// Every way to change gradients; all of them leave something in the bias's that is not finite.
#[test]
fn clipping_that_finds_an_overflow_skips_the_step() {
    let mut replaced = unscaled(1.0);
    let bad = Tensor::<1>::from_floats([0.0, f32::NAN, 9.0, 9.0], &Device::default());
    replaced.params_mut().register(Pair::of(0.0).bias.id, bad);
    let large = unscaled(1.0).mul_scalar(1e38);
    let mapped = unscaled(1.0).map(&mut Spoil);
    let added = unscaled(1.0).add_weighted(unscaled(2f64.powi(110)), 1e38);
    for grads in [large, mapped, replaced, added] {
        assert!(!grads.has_overflow());
        for clip in [Value(0.5), Norm(0.5), GlobalNorm(0.5)] {
            let mut run = by_hand();
            let grads = grads.clone().clip(&clip).unwrap();
            assert!(grads.status().overflow_parameter().is_some());
            assert_eq!(grads.status().clipped(), None);
            run.take(grads).unwrap();
            assert_eq!(run.model.values(), [0.0; 10]);
            assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
            assert_eq!(run.scale(), 512.0);
        }
    }
}

#[test]
fn what_clipping_measures_anew_is_in_the_status() {
    for (grads, norm) in [
        (unscaled(1.0), 5.0),
        (unscaled(1.0).mul_scalar(3.0), 15.0),
        (unscaled(1.0) + unscaled(1.0), 10.0),
    ] {
        let (global, own) = (GlobalNorm(1.0), Norm(1.0));
        for (clip, norms, expected) in [(global, 1, [0.6, 0.8]), (own, 0, [1.0; 2])] {
            let mut run = Trial::new(sgd());
            run.take(grads.clone().clip(&clip).unwrap());
            // Before clipping.
            let status = run.status();
            assert_eq!((status.norm(), status.max_abs()), (norm, norm * 0.8));
            assert_eq!(status.clip_norms(), &[norm][..norms]);
            let off = [run.values()[0] + expected[0], run.values()[6] + expected[1]];
            assert!(off.iter().all(|off| off.abs() < 1e-5), "{off:?}");
        }
    }
}

#[test]
fn a_disabled_scaler_reports_what_clipping_has_measured_and_skips_nothing() {
    let disabled = sgd_under(GradScalerConfig::new().with_enabled(false));
    // The second has no settings of a scale at all.
    for optim in [disabled, ScaledOptimizer::from(SgdConfig::new().init())] {
        let mut run = Trial::new(optim.with_clipping(GlobalNorm(1.0)));
        run.step(GRADIENT);
        assert!((run.values()[0] + 0.6).abs() < 1e-6);
        let measured = (run.status().norm(), run.status().clipped());
        assert_eq!((run.scale(), measured), (1.0, (5.0, Some(2))));

        // Without a loss scale, an overflow is not the scaler's to hide: the step is taken as it is.
        let mut run = run.with_value(0.0);
        run.step(BAD);
        assert_eq!(run.values()[6..8], [-1.0, f64::NEG_INFINITY]);
        let found = (run.status().non_finite(), run.status().clipped());
        assert_eq!((found, run.counters().skipped()), ((1, None), 0));
    }
}

/// A program may put in a gradient that it has made with autodiff; but not for a parameter that had none, nor of a dtype that the optimizer cannot
/// combine with the parameter. Clipping refuses one of another shape or rank.
#[test]
fn gradients_that_a_program_puts_in() {
    let (device, id) = (Device::default(), Pair::of(0.0).bias.id);
    let ones = |of: [usize; 1]| Tensor::<1>::ones(of, &device);
    for (optim, step) in [
        (sgd(), 2.0),
        (sgd().with_clipping(GlobalNorm(1.0)), 0.5),
        (sgd().with_accumulation(1), 2.0),
    ] {
        let mut run = Trial::new(optim);
        let mut grads = GradientsParams::new();
        let of_graph = Tensor::from_inner(ones([4])).require_grad();
        grads.register(id, of_graph * 2.0);
        run.take(grads);
        let is_close = |value: &f64| (value + step).abs() < 1e-5;
        assert!(run.values()[6..].iter().all(is_close), "{:?}", run.values());
        assert!(run.model.bias.is_require_grad());
    }

    // Beside another one, or in its place.
    for is_alone in [false, true] {
        let mut run = by_hand();
        let mut some = run.model.plain(ONES);
        some.remove::<1>(id);
        let mut grads = run.unscale(some);
        grads.params_mut().register(id, ones([4]));
        if is_alone {
            grads.params_mut().remove::<2>(run.model.weight.id);
            grads = grads.clip(&Value(9.0)).unwrap();
        }
        run.take(grads).unwrap();
        assert_eq!(run.model.values()[0] == 0.0, is_alone);
        assert_eq!(run.model.values()[6..], [0.0; 4]);
    }

    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let (mut run, mut grads) = (by_hand(), unscaled(1.0));
        grads.params_mut().register(id, ones([4]).cast(dtype));
        let error = run.take(grads).unwrap_err();
        is_error(&error, "HalfPrecisionParameter", ["`bias` is F32"]);
        assert_eq!(run.model.values(), [0.0; 10]);
        assert_eq!(run.counters(), StepCounters::default());
    }

    let (two, three) = (ones([4]).reshape([2, 2]), ones([4]).reshape([1, 2, 2]));
    let mut wrong = [(); 3].map(|()| unscaled(1.0));
    wrong[0].params_mut().register(id, ones([3]));
    wrong[1].params_mut().register::<2>(id, two);
    wrong[2].params_mut().register::<3>(id, three);
    for grads in wrong {
        let clipped = quietly(|| grads.clip(&Value(1.0)).unwrap_err());
        is_error(&clipped.unwrap(), "GradientShape", ["`bias`", "[4]"]);
    }
}

/// What is known of both is known of the sum.
#[test]
fn a_sum_has_what_is_known_of_both() {
    let zeros = || by_hand().unscaled([0.0; 10]);
    let some = || by_hand().unscaled(norm(1.0));
    // One of the two is not zero: the sum is not.
    let sums = [zeros() + zeros(), zeros() + some(), some() + zeros()];
    let found = sums.map(|sum| (sum.status().zeros(), sum.status().is_all_zero()));
    assert_eq!(found, [(10, true), (9, false), (9, false)]);

    // A gradient that only the other has is counted with its own numbers, and stepped on.
    let mut run = by_hand();
    let [mut weight, mut bias] = [(); 2].map(|()| run.model.plain(GRADIENT.map(|v| v * 1024.0)));
    weight.remove::<1>(run.model.bias.id);
    bias.remove::<2>(run.model.weight.id);
    let sum = run.unscale(weight) + run.unscale(bias);
    let status = sum.status();
    assert_eq!((status.gradients(), status.elements()), (2, 10));
    assert_eq!((status.zeros(), status.max_abs()), (8, 4.0));
    assert_eq!((status.norm(), sum.parameters().count()), (5.0, 2));
    run.take(sum).unwrap();
    assert_eq!(run.model.values(), GRADIENT.map(|value| -value));

    // A window's gradients have moved the scale already, those of another loss have not: nor has their sum, whichever comes first.
    for turned in [false, true] {
        let (mut run, mut window) = (by_hand(), windows(1, true).init().unwrap());
        let full = run.accumulate(&mut window, GRADIENT).unwrap();
        let bad = run.unscaled(BAD);
        let [one, other] = if turned { [bad, full] } else { [full, bad] };
        let sum = one.add_weighted(other, 0.5);
        assert_eq!(sum.status().overflow_parameter(), Some("bias"));
        run.take(sum).unwrap();
        run.scaler.update().unwrap();
        assert_eq!((run.model.values(), run.scale()), (vec![0.0; 10], 512.0));
    }
}

/// Those that are thrown away count beside a finite step of the same iteration. A record without such counts is as those of before.
#[test]
fn discarded_gradients_are_part_of_their_iteration() {
    let mut run = by_hand();
    let state = |run: &ByHand| pack(run.scaler.bits()).take_index().unwrap().to_string();
    assert!(!state(&run).contains("discarded"));
    run.scaler.discard(run.unscaled(BAD)).unwrap();
    run.step(ONES).unwrap();
    assert_eq!(run.scaler.update().unwrap(), Some(StepOutcome::Skipped));
    assert!(state(&run).contains("\"discarded\":1"));
}

/// Exact in f16 and bf16; their norm is 57,000.
const LARGE: [f64; 10] = [
    24576.0, -32768.0, 12288.0, 0.0, -20480.0, 28672.0, -2048.0, 4096.0, 20480.0, -12288.0,
];

/// Asserts that all gradients are the constants times a factor of the weight's and one of the bias's, in this dtype, rounded no more than so many
/// times: the list has them in f32, and the factor is f32 off the device.
fn assert_times(grads: &UnscaledGradients, dtype: DType, factors: [f64; 2], roundings: f64) {
    // Below the smallest normal number of f16 there are fewer digits.
    let (one, smallest) = match dtype {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-14)),
        DType::BF16 => (2f64.powi(-8), 0.0),
        _ => (2f64.powi(-21), 0.0),
    };
    let found = gradients_by_path(grads.params(), &Pair::of(0.0));
    assert!(found.iter().all(|(_, found, _)| *found == dtype));
    let found = found.into_iter().flat_map(|(.., values)| values);
    for (index, found) in found.enumerate() {
        let expected = LARGE[index] * factors[usize::from(index > 5)];
        let error = (f64::from(found) - expected).abs();
        let allowed = roundings * one * expected.abs().max(smallest);
        assert!(error <= allowed, "{dtype:?}: {found} instead of {expected}");
    }
}

/// Clipping, products and sums round once, and lose no factor that f16 cannot hold: 1e-8 is zero there. Of every combination of a parameter's
/// dtype and the gradient's, and of gradients that no scaler has touched.
#[test]
fn factors_are_not_rounded_to_half_precision() {
    let [weight, bias] = [&LARGE[..6], &LARGE[6..]].map(l2);
    let (global, tiny, small) = (1.0 / (l2(&LARGE) + 1e-6), 1e-8, 1.0 / 60000.0);
    let is_there = |dtype: &DType| Device::default().supports_dtype(*dtype);
    let dtypes = [DType::F16, DType::BF16, DType::F32, DType::F64];
    for parameter in dtypes.into_iter().filter(is_there) {
        for (enabled, narrow) in [(true, true), (true, false), (false, false)] {
            let dtype = match (enabled, narrow, parameter) {
                (true, false, DType::F16 | DType::BF16) => DType::F32,
                _ => parameter,
            };
            let config = at_scale(1.0).with_enabled(enabled);
            let config = config.with_parameter_dtype_gradients(narrow);
            let run = ByHand::of(Pair::new([0.0; 10], &device(), parameter), config);
            let (grads, model) = (run.unscaled(LARGE), run.model);
            let own = || grads.clone();
            let clipped = |clip| own().clip(&clip).unwrap();
            // A gradient that only the other has.
            let mut none = own();
            none.params_mut().remove::<2>(model.weight.id);
            none.params_mut().remove::<1>(model.bias.id);
            for (found, factors) in [
                (clipped(GlobalNorm(1.0)), [global; 2]),
                (clipped(Norm(1.0)), [1.0 / weight, 1.0 / bias]),
                (own().mul_scalar(tiny), [tiny; 2]),
                (own().mul_scalar(0.0).add_weighted(own(), small), [small; 2]),
                (none.add_weighted(own(), small), [small; 2]),
            ] {
                assert_times(&found, dtype, factors, 1.0);
                // Still what an optimizer takes.
                let mut scaler = GradScaler::new(at_scale(1.0)).unwrap();
                let stepped = scaler.try_step(&mut masters(), 0.1, model.clone(), found);
                stepped.unwrap();
            }
            // And back: no more than these two roundings off. The smallest are subnormal in f16.
            if dtype != DType::F16 {
                let back = own().mul_scalar(tiny).mul_scalar(1.0 / tiny);
                assert_times(&back, dtype, [1.0; 2], 2.0);
            }
        }
    }
}
