//! Gradients that were changed after unscaling: what clipping finds in them, and what is stepped on.

use burn_amp_tests::prelude::*;

use crate::support::Pair;

const WEIGHT: [f32; 6] = [3.0, 0.0, 0.0, 0.0, 0.0, 0.0];
const BIAS: [f32; 4] = [4.0, 0.0, 0.0, 0.0];

fn scaler() -> GradScaler {
    let config = GradScalerConfig::new().with_init_scale(1024.0);
    config.init().unwrap()
}

fn unscaled(scaler: &GradScaler, model: &Pair, factor: f32) -> UnscaledGradients {
    let scale = scaler.loss_scale();
    let (weight, bias) = (WEIGHT.map(|x| x * factor), BIAS.map(|x| x * factor));
    scaler
        .unscale(model.gradients(weight, bias, scale), model)
        .unwrap()
}

fn clips() -> [GradientClip; 3] {
    [
        GradientClip::Value(0.5),
        GradientClip::Norm(0.5),
        GradientClip::GlobalNorm(0.5),
    ]
}

/// Divides the bias's gradient by zero.
#[derive(Default)]
struct Spoil(Vec<String>);

impl ModuleMapper for Spoil {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.0.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.0.pop();
    }

    fn map_float<const D: usize>(&mut self, grad: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.as_slice() {
            [name] if name == "bias" => grad.map(|grad| grad.div_scalar(0.0)),
            _ => grad,
        }
    }
}

/// Every way to change gradients; all of them leave something in the bias's that is not finite.
fn spoiled(scaler: &GradScaler, model: &Pair) -> [UnscaledGradients; 4] {
    let grads = || unscaled(scaler, model, 1.0);
    let mut replaced = grads();
    let bad = Tensor::<1>::from_floats([0.0, f32::NAN, 9.0, 9.0], &model.bias.device().inner());
    replaced.params_mut().register(model.bias.id, bad);
    let huge = unscaled(scaler, model, 2f32.powi(110));
    [
        grads().mul_scalar(1e38),
        grads().map(&mut Spoil::default()),
        replaced,
        grads().add(huge, 1e38),
    ]
}

#[test]
fn clipping_that_finds_an_overflow_skips_the_step() {
    for clip in clips() {
        let model = Pair::zeros(DType::F32);
        for grads in spoiled(&scaler(), &model) {
            let (mut scaler, mut optim) = (scaler(), SgdConfig::new().init());
            assert!(!grads.has_overflow());
            let grads = grads.clip(&clip).unwrap();
            assert!(grads.has_overflow());
            assert!(grads.status().overflow_parameter().is_some());
            assert_eq!(grads.status().clipped(), None);

            let model = scaler.step(&mut optim, 1.0, model.clone(), grads);
            assert_eq!(model.values(), [0.0; 10]);
            assert_eq!(scaler.last_outcome(), Some(StepOutcome::Skipped));
            assert_eq!(scaler.update().unwrap(), Some(StepOutcome::Skipped));
            assert_eq!(scaler.loss_scale(), 512.0);
        }
    }
}

#[test]
fn what_clipping_measures_anew_is_in_the_status() {
    let model = Pair::zeros(DType::F32);
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler());
    let grads = || unscaled(&scaler(), &model, 1.0);
    for (grads, norm) in [
        (grads(), 5.0),
        (grads().mul_scalar(3.0), 15.0),
        (grads().add(grads(), 1.0), 10.0),
    ] {
        let grads = grads.clip(&GradientClip::GlobalNorm(1.0)).unwrap();
        // Before clipping.
        assert_eq!(grads.status().norm(), norm);
        assert_eq!(grads.status().clip_norms(), [norm]);
        optim.step(1.0, model.clone(), grads);
        let status = optim.scaler().last_status().unwrap();
        assert_eq!(status.norm(), norm);
        assert_eq!(status.max_abs(), norm * f64::from(BIAS[0]) / 5.0);
    }
}

#[test]
fn a_disabled_scaler_tells_what_clipping_has_measured_and_skips_nothing() {
    let disabled = GradScalerConfig::new().with_enabled(false).init().unwrap();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), disabled)
        .with_clipping(GradientClip::GlobalNorm(1.0))
        .unwrap();
    let model = Pair::zeros(DType::F32);
    let moved = optim.step(1.0, model.clone(), model.gradients(WEIGHT, BIAS, 1.0));
    assert!((moved.values()[0] + 0.6).abs() < 1e-6);
    let status = optim.scaler().last_status().unwrap();
    assert_eq!(status.norm(), 5.0);
    assert_eq!(status.clipped(), Some(2));

    // Without a loss scale, an overflow is not the scaler's to hide: the step is taken as it is.
    let mut weight = WEIGHT;
    weight[1] = f32::INFINITY;
    let moved = optim.step(1.0, model.clone(), model.gradients(weight, BIAS, 1.0));
    assert_eq!(&moved.values()[..2], [-3.0, f32::NEG_INFINITY]);
    assert_eq!(optim.scaler().counters().skipped(), 0);
    let status = optim.scaler().last_status().unwrap();
    assert_eq!((status.non_finite(), status.clipped()), (1, None));
}

#[test]
fn a_gradient_of_a_parameter_that_had_none_is_not_stepped_on() {
    let model = Pair::zeros(DType::F32);
    let mut scaler = scaler();
    let mut some = model.gradients(WEIGHT, BIAS, 1024.0);
    some.params_mut().remove::<1>(model.bias.id);
    let mut grads = scaler.unscale(some, &model).unwrap();
    let put_in = Tensor::<1>::ones([4], &model.bias.device().inner());
    grads.params_mut().register(model.bias.id, put_in);

    let mut optim = SgdConfig::new().init();
    let model = scaler.step(&mut optim, 1.0, model, grads);
    assert_eq!(model.values()[0], -3.0);
    assert_eq!(model.values()[6..], [0.0; 4]);
}

/// Gradients that a program makes with autodiff and registers itself are those of any other loss.
#[test]
fn gradients_registered_by_hand_may_be_on_an_autodiff_device() {
    let model = Pair::zeros(DType::F32);
    let autodiff = Device::default().autodiff();
    let grads = || {
        let mut grads = GradientsParams::new();
        let bias = Tensor::<1>::ones([4], &autodiff).require_grad() * 2.0;
        grads.register(model.bias.id, bias);
        grads
    };
    let clip = GradientClip::GlobalNorm(1.0);
    for optim in [
        ScaledOptimizer::new(SgdConfig::new().init(), scaler()),
        ScaledOptimizer::new(SgdConfig::new().init(), scaler())
            .with_clipping(clip)
            .unwrap(),
        ScaledOptimizer::new(SgdConfig::new().init(), scaler())
            .with_accumulation(1)
            .unwrap(),
    ] {
        let clipped = optim.clipping().is_some();
        let mut optim = optim;
        let model = optim.step(1.0, model.clone(), grads());
        let step = if clipped { 0.5 } else { 2.0 };
        for value in &model.values()[6..] {
            assert!((value + step).abs() < 1e-5, "{value}");
        }
        assert!(model.bias.is_require_grad());
    }
}

/// What is known of both is known of the sum.
#[test]
fn a_sum_has_what_is_known_of_both() {
    let model = Pair::zeros(DType::F32);
    let scaler = scaler();
    let grads = |weight: [f32; 6], bias: [f32; 4]| {
        scaler
            .unscale(model.gradients(weight, bias, 1024.0), &model)
            .unwrap()
    };
    let zeros = || grads([0.0; 6], [0.0; 4]);
    let some = || grads([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0; 4]);
    assert!(zeros().status().is_all_zero());
    // One of the two is not zero: the sum is not.
    for sum in [zeros().add(some(), 1.0), some().add(zeros(), 1.0)] {
        assert!(!sum.status().is_all_zero());
        assert_eq!(sum.status().zeros(), 9);
    }
    assert!(zeros().add(zeros(), 1.0).status().is_all_zero());

    // A gradient that only the other has is counted with its own numbers.
    let only = |weight: bool| {
        let mut grads = model.gradients(WEIGHT, BIAS, 1024.0);
        match weight {
            true => drop(grads.params_mut().remove::<1>(model.bias.id)),
            false => drop(grads.params_mut().remove::<2>(model.weight.id)),
        }
        scaler.unscale(grads, &model).unwrap()
    };
    let sum = only(true).add(only(false), 1.0);
    let status = sum.status();
    assert_eq!((status.gradients(), status.elements()), (2, 10));
    assert_eq!((status.zeros(), status.max_abs()), (8, 4.0));
    assert_eq!(status.norm(), 5.0);
}

/// A window's gradients have taught the scale already, those of another loss have not: nor has their sum.
#[test]
fn a_sum_with_gradients_that_the_scale_has_not_seen_teaches_it() {
    let model = Pair::zeros(DType::F32);
    let (mut scaler, mut optim) = (scaler(), SgdConfig::new().init());
    let config = AccumulationConfig::new(1).with_skip_micro_batch(true);
    let mut window = config.init().unwrap();
    let clean = model.gradients(WEIGHT, BIAS, 1024.0);
    let window = scaler
        .accumulate(&mut window, clean, &model)
        .unwrap()
        .unwrap();
    let bad = unscaled(&scaler, &model, f32::INFINITY);
    assert!(bad.has_overflow());
    let same = scaler.step(&mut optim, 1.0, model.clone(), window.add(bad, 1.0));
    scaler.update().unwrap();
    assert_eq!(same.values(), [0.0; 10]);
    assert_eq!(scaler.loss_scale(), 512.0);
}
