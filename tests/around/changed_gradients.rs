//! Gradients that were changed after unscaling: what clipping finds in them, and what is stepped on.

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
fn spoiled() -> [UnscaledGradients; 4] {
    let mut replaced = unscaled(1.0);
    let bad = Tensor::<1>::from_floats([0.0, f32::NAN, 9.0, 9.0], &Device::default());
    replaced.params_mut().register(Pair::of(0.0).bias.id, bad);
    let large = unscaled(1.0).mul_scalar(1e38);
    let mapped = unscaled(1.0).map(&mut Spoil);
    let added = unscaled(1.0).add_weighted(unscaled(2f64.powi(110)), 1e38);
    [large, mapped, replaced, added]
}

#[test]
fn clipping_that_finds_an_overflow_skips_the_step() {
    use GradientClip::{GlobalNorm, Norm, Value};
    for clip in [Value(0.5), Norm(0.5), GlobalNorm(0.5)] {
        for grads in spoiled() {
            let mut run = by_hand();
            assert!(!grads.has_overflow());
            let grads = grads.clip(&clip).unwrap();
            assert!(grads.status().overflow_parameter().is_some());
            assert_eq!(grads.status().clipped(), None);
            run.take(grads).unwrap();
            assert_eq!(run.model.values(), [0.0; 10]);
            assert_eq!(run.outcome(), Some(StepOutcome::Skipped));
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
        for (clip, expected) in [
            (GradientClip::GlobalNorm(1.0), [0.6, 0.8]),
            (GradientClip::Norm(1.0), [1.0; 2]),
        ] {
            let clipped = grads.clone().clip(&clip).unwrap();
            let mut run = Trial::new(sgd());
            run.take(clipped);
            // Before clipping.
            let status = run.status();
            assert_eq!((status.norm(), status.max_abs()), (norm, norm * 0.8));
            let global = matches!(clip, GradientClip::GlobalNorm(_));
            assert_eq!(status.clip_norms(), &[norm][usize::from(!global)..]);
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
        let mut run = Trial::new(optim.with_clipping(GradientClip::GlobalNorm(1.0)));
        run.step(GRADIENT);
        assert!((run.values()[0] + 0.6).abs() < 1e-6);
        let measured = (run.status().norm(), run.status().clipped());
        assert_eq!((run.scale(), measured), (1.0, (5.0, Some(2))));

        // Without a loss scale, an overflow is not the scaler's to hide: the step is taken as it is.
        let mut run = run.with_value(0.0);
        run.step(BAD);
        assert_eq!(run.values()[6..8], [-1.0, f64::NEG_INFINITY]);
        assert_eq!(run.counters().skipped(), 0);
        let status = run.status();
        assert_eq!((status.non_finite(), status.clipped()), (1, None));
    }
}

#[test]
fn a_gradient_of_a_parameter_that_had_none_is_not_stepped_on() {
    let mut run = by_hand();
    let mut some = run.model.plain(ONES);
    some.remove::<1>(run.model.bias.id);
    let mut grads = run.unscale(some);
    let put_in = Tensor::<1>::ones([4], &Device::default());
    grads.params_mut().register(run.model.bias.id, put_in);
    run.take(grads).unwrap();
    assert_ne!(run.model.values()[0], 0.0);
    assert_eq!(run.model.values()[6..], [0.0; 4]);
}

/// One that is replaced by another of a dtype that the optimizer cannot combine with the parameter.
#[test]
fn a_gradient_that_has_become_of_another_dtype_is_refused() {
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let (mut run, mut grads) = (by_hand(), unscaled(1.0));
        let (params, id) = (grads.params_mut(), run.model.bias.id);
        let gradient = params.remove::<1>(id).unwrap();
        params.register(id, gradient.cast(dtype));
        let error = run.take(grads).unwrap_err();
        is_error(&error, "HalfPrecisionParameter", ["`bias` is F32"]);
        assert_eq!(run.model.values(), [0.0; 10]);
        assert_eq!(run.counters(), StepCounters::default());
    }
}

/// What a program puts in for a parameter of another shape, or of another rank.
#[test]
fn a_gradient_of_another_shape_is_refused_by_clipping() {
    let device = Device::default();
    for rank in [1, 2, 3] {
        let mut grads = unscaled(1.0);
        let (params, id) = (grads.params_mut(), Pair::of(0.0).bias.id);
        match rank {
            1 => params.register(id, Tensor::<1>::ones([3], &device)),
            2 => params.register(id, Tensor::<2>::ones([2, 2], &device)),
            _ => params.register(id, Tensor::<3>::ones([1, 2, 2], &device)),
        }
        let clipped = quietly(|| grads.clip(&GradientClip::Value(1.0)).unwrap_err());
        is_error(&clipped.unwrap(), "GradientShape", ["`bias`", "[4]"]);
    }
}

/// Gradients that a program makes with autodiff and registers itself are those of any other loss.
#[test]
fn gradients_registered_by_hand_may_be_on_an_autodiff_device() {
    for (optim, step) in [
        (sgd(), 2.0),
        (sgd().with_clipping(GradientClip::GlobalNorm(1.0)), 0.5),
        (sgd().with_accumulation(1), 2.0),
    ] {
        let mut run = Trial::new(optim);
        let mut grads = GradientsParams::new();
        let ones = Tensor::<1>::ones([4], &device()).require_grad();
        grads.register(run.model.bias.id, ones * 2.0);
        run.take(grads);
        let is_close = |value: &f64| (value + step).abs() < 1e-5;
        assert!(run.values()[6..].iter().all(is_close), "{:?}", run.values());
        assert!(run.model.bias.is_require_grad());
    }
}

/// What is known of both is known of the sum.
#[test]
fn a_sum_has_what_is_known_of_both() {
    let zeros = || by_hand().unscaled([0.0; 10]);
    let some = || by_hand().unscaled(norm(1.0));
    // One of the two is not zero: the sum is not.
    for (sum, count) in [
        (zeros() + zeros(), 10),
        (zeros() + some(), 9),
        (some() + zeros(), 9),
    ] {
        assert_eq!(sum.status().zeros(), count);
        assert_eq!(sum.status().is_all_zero(), count == 10);
    }

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
}

/// A window's gradients have taught the scale already, those of another loss have not: nor has their sum, whichever comes first.
#[test]
fn a_sum_with_gradients_that_the_scale_has_not_seen_teaches_it() {
    for turned in [false, true] {
        let (mut run, mut window) = (by_hand(), windows(1, true).init().unwrap());
        let full = run.accumulate(&mut window, GRADIENT).unwrap();
        let bad = run.unscaled(BAD);
        let sum = match turned {
            false => full.add_weighted(bad, 0.5),
            true => bad.add_weighted(full, 0.5),
        };
        assert_eq!(sum.status().overflow_parameter(), Some("bias"));
        run.take(sum).unwrap();
        run.scaler.update().unwrap();
        assert_eq!(run.model.values(), [0.0; 10]);
        assert_eq!(run.scale(), 512.0);
    }
}
