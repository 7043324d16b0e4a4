//! Gradients that were changed after unscaling: what clipping finds in them, and what is stepped on.

use crate::support::*;

const WEIGHT: [f32; 6] = [3.0, 0.0, 0.0, 0.0, 0.0, 0.0];
const BIAS: [f32; 4] = [4.0, 0.0, 0.0, 0.0];

fn config() -> GradScalerConfig {
    at_scale(1024.0)
}

fn trial() -> Trial {
    Trial::new(sgd_under(config()))
}

fn unscaled(factor: f32) -> UnscaledGradients {
    trial().unscaled((WEIGHT.map(|x| x * factor), BIAS.map(|x| x * factor)))
}

/// Divides the bias's gradient by zero. It keeps the name of the last module that was entered.
#[derive(Default)]
struct Spoil(String);

impl ModuleMapper for Spoil {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.0 = name.to_string();
    }

    fn map_float<const D: usize>(&mut self, grad: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.as_str() {
            "bias" => grad.map(|grad| grad.div_scalar(0.0)),
            _ => grad,
        }
    }
}

/// Every way to change gradients; all of them leave something in the bias's that is not finite.
fn spoiled() -> [UnscaledGradients; 4] {
    let mut replaced = unscaled(1.0);
    let bad = Tensor::<1>::from_floats([0.0, f32::NAN, 9.0, 9.0], &Device::default());
    let bias = Pair::zeros(DType::F32).bias.id;
    replaced.params_mut().register(bias, bad);
    [
        unscaled(1.0).mul_scalar(1e38),
        unscaled(1.0).map(&mut Spoil::default()),
        replaced,
        unscaled(1.0).add_weighted(unscaled(2f32.powi(110)), 1e38),
    ]
}

#[test]
fn clipping_that_finds_an_overflow_skips_the_step() {
    for clip in [
        GradientClip::Value(0.5),
        GradientClip::Norm(0.5),
        GradientClip::GlobalNorm(0.5),
    ] {
        for grads in spoiled() {
            let mut scaler = config().init().unwrap();
            assert!(!grads.has_overflow());
            let grads = grads.clip(&clip).unwrap();
            assert!(grads.has_overflow());
            assert!(grads.status().overflow_parameter().is_some());
            assert_eq!(grads.status().clipped(), None);

            let model = Pair::zeros(DType::F32);
            let model = scaler.step(&mut SgdConfig::new().init(), 1.0, model, grads);
            assert_eq!(model.values(), [0.0; 10]);
            assert_eq!(scaler.last_outcome(), Some(StepOutcome::Skipped));
            assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
            assert_eq!(scaler.loss_scale(), 512.0);
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
        let clip = [GradientClip::GlobalNorm(1.0), GradientClip::Norm(1.0)];
        let [grads, each] = clip.map(|clip| grads.clone().clip(&clip).unwrap());
        // Before clipping.
        assert_eq!(grads.status().norm(), norm);
        assert_eq!(grads.status().clip_norms(), [norm]);
        let stepped = |grads: UnscaledGradients, expected: [f32; 2]| {
            let mut run = trial();
            run.take_unscaled(grads);
            assert_eq!(run.status().norm(), norm);
            assert_eq!(run.status().max_abs(), norm * f64::from(BIAS[0]) / 5.0);
            let off = [run.values()[0] + expected[0], run.values()[6] + expected[1]];
            assert!(off.iter().all(|off| off.abs() < 1e-5), "{off:?}");
        };
        stepped(grads, [0.6, 0.8]);
        stepped(each, [1.0; 2]);
    }
}

#[test]
fn a_disabled_scaler_tells_what_clipping_has_measured_and_skips_nothing() {
    let optim = sgd_under(GradScalerConfig::new().with_enabled(false));
    let optim = optim.with_clipping(GradientClip::GlobalNorm(1.0));
    let mut run = Trial::new(optim);
    run.step((WEIGHT, BIAS));
    assert!((run.values()[0] + 0.6).abs() < 1e-6);
    assert_eq!(
        (run.status().norm(), run.status().clipped()),
        (5.0, Some(2))
    );

    // Without a loss scale, an overflow is not the scaler's to hide: the step is taken as it is.
    run.model = Pair::zeros(DType::F32);
    let mut weight = WEIGHT;
    weight[1] = f32::INFINITY;
    run.step((weight, BIAS));
    assert_eq!(&run.values()[..2], [-3.0, f32::NEG_INFINITY]);
    assert_eq!(run.counters().skipped(), 0);
    let status = run.status();
    assert_eq!((status.non_finite(), status.clipped()), (1, None));
}

#[test]
fn a_gradient_of_a_parameter_that_had_none_is_not_stepped_on() {
    let model = Pair::zeros(DType::F32);
    let mut scaler = config().init().unwrap();
    let mut some = model.gradients((WEIGHT, BIAS), 1024.0);
    some.params_mut().remove::<1>(model.bias.id);
    let mut grads = scaler.unscale(some, &model).unwrap();
    let put_in = Tensor::<1>::ones([4], &Device::default());
    grads.params_mut().register(model.bias.id, put_in);

    let mut optim = SgdConfig::new().init();
    let model = scaler.step(&mut optim, 1.0, model, grads);
    assert_eq!(model.values()[0], -3.0);
    assert_eq!(model.values()[6..], [0.0; 4]);
}

/// Gradients that a program makes with autodiff and registers itself are those of any other loss.
#[test]
fn gradients_registered_by_hand_may_be_on_an_autodiff_device() {
    let new = || sgd_under(config());
    for (optim, step) in [
        (new(), 2.0),
        (new().with_clipping(GradientClip::GlobalNorm(1.0)), 0.5),
        (new().with_accumulation(1), 2.0),
    ] {
        let mut run = Trial::new(optim);
        let ones = Tensor::<1>::ones([4], &Device::default().autodiff());
        let mut grads = GradientsParams::new();
        grads.register(run.model.bias.id, ones.require_grad() * 2.0);
        run.take_plain(grads);
        for value in &run.values()[6..] {
            assert!((value + step).abs() < 1e-5, "{value}");
        }
        assert!(run.model.bias.is_require_grad());
    }
}

/// What is known of both is known of the sum.
#[test]
fn a_sum_has_what_is_known_of_both() {
    let grads = |values: Values| trial().unscaled(values);
    let zeros = || grads(all(0.0));
    let some = || grads(norm(1.0));
    assert!(zeros().status().is_all_zero());
    // One of the two is not zero: the sum is not.
    for sum in [zeros() + some(), some() + zeros()] {
        assert!(!sum.status().is_all_zero());
        assert_eq!(sum.status().zeros(), 9);
    }
    assert!((zeros() + zeros()).status().is_all_zero());

    // A gradient that only the other has is counted with its own numbers.
    let [mut weight, mut bias] = [(); 2].map(|()| trial().gradients((WEIGHT, BIAS)));
    let model = Pair::zeros(DType::F32);
    weight.params_mut().remove::<1>(model.bias.id);
    bias.params_mut().remove::<2>(model.weight.id);
    let [weight, bias] = [weight, bias].map(|g| trial().optim.unscale(g, &model).unwrap());
    let sum = weight + bias;
    let status = sum.status();
    assert_eq!((status.gradients(), status.elements()), (2, 10));
    assert_eq!((status.zeros(), status.max_abs()), (8, 4.0));
    assert_eq!(status.norm(), 5.0);
}

/// A window's gradients have taught the scale already, those of another loss have not: nor has their sum.
#[test]
fn a_sum_with_gradients_that_the_scale_has_not_seen_teaches_it() {
    let model = Pair::zeros(DType::F32);
    let (mut scaler, mut optim) = (config().init().unwrap(), SgdConfig::new().init());
    let window = AccumulationConfig::new(1).with_skip_micro_batch(true);
    let mut window = window.init().unwrap();
    let clean = model.gradients((WEIGHT, BIAS), 1024.0);
    let full = scaler.accumulate(&mut window, clean, &model).unwrap();
    let bad = model.gradients(all(f32::INFINITY), 1024.0);
    let bad = scaler.unscale(bad, &model).unwrap();
    assert!(bad.has_overflow());
    let sum = full.unwrap() + bad;
    let same = scaler.step(&mut optim, 1.0, model, sum);
    scaler.update().unwrap();
    assert_eq!(same.values(), [0.0; 10]);
    assert_eq!(scaler.loss_scale(), 512.0);
}
