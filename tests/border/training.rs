//! Whole training runs of PyTorch with `GradScaler`, overflows injected, through the border: losses, scales, skips and
//! weights.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{GradientsAccumulator, GradientsParams},
    tensor::{FloatDType, Tensor},
};
use burn_amp::{
    AccumulationConfig, GradScalerConfig, GradientClip, MixedPrecision, ScaledOptimizer,
    StepOutcome, inspect,
};
use burn_amp_tests::reference;

use crate::{
    support::device,
    torch_run::{File, Mlp, Run, assert_close, assert_tensor_close},
};

/// Who clips and accumulates.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Burn's accumulator and a multiplication of Burn's gradients: they are plain ones.
    ByHand,
    /// `with_clipping` and `with_accumulation`.
    BuiltIn,
}

/// Sets one value of a gradient to infinity, as the traces did.
fn inject_infinity(grads: &mut GradientsParams, model: &Mlp) {
    let id = model.weights[1].id;
    let grad = grads.get::<2>(id).unwrap();
    let infinity = Tensor::full([1, 1], f32::INFINITY, &grad.device());
    grads.register(id, grad.slice_assign([3..4, 5..6], infinity));
}

/// Multiplies all gradients.
fn mul(grads: GradientsParams, model: &Mlp, factor: f64) -> GradientsParams {
    struct Mul(GradientsParams, GradientsParams, f64);

    impl ModuleVisitor for Mul {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = self.0.remove::<D>(param.id).unwrap();
            self.1.register(param.id, grad * self.2);
        }
    }

    let mut mul = Mul(grads, GradientsParams::new(), factor);
    model.visit(&mut mul);
    mul.1
}

/// Reproduces a run: scales and skips exactly, the rest to a relative error.
fn replay(run: &Run, dtype: FloatDType, way: Way, tolerance: f64) {
    let device = device();
    let config = GradScalerConfig::new()
        .with_init_scale(run.init_scale)
        .with_growth_interval(run.growth_interval);
    let amp = MixedPrecision::new(dtype).with_scaler(config).unwrap();
    let mut model = Mlp::new(run, &device).apply_reparameterization(amp.clone());
    let (optimizer, lr) = run.optimizer();
    let mut optim = ScaledOptimizer::new(optimizer, &amp);
    if let Way::BuiltIn = way {
        let window = AccumulationConfig::new(run.accumulation as u32);
        optim = optim.with_accumulation(window.with_sum(true)).unwrap();
        if let Some(max_norm) = run.clip_norm {
            optim = optim
                .with_clipping(GradientClip::GlobalNorm(max_norm))
                .unwrap();
        }
    }
    assert_eq!(run.log.len(), run.steps);
    for (step, expected) in run.log.iter().enumerate() {
        let at = format!("{dtype:?}, {way:?}: {}, step {step}", run.name());
        assert_eq!(amp.loss_scale(), expected.scale_used, "{at}");

        let (mut loss, mut norm) = (0.0, None);
        let mut sum = GradientsAccumulator::new();
        for micro in 0..run.accumulation {
            let (input, target) = run.batch(step * run.accumulation + micro, &device);
            let output = amp.autocast(input, |x| model.forward(x));
            let part = (output - target).square().mean();
            let part = part.div_scalar(run.accumulation as f64);
            loss += f64::from(part.clone().into_scalar::<f32>());
            let mut grads = GradientsParams::from_grads(part.backward(), &model);
            if run.inject_inf_at.contains(&step) && micro == run.accumulation - 1 {
                inject_infinity(&mut grads, &model);
            }
            match way {
                Way::ByHand => sum.accumulate(&model, grads),
                Way::BuiltIn => model = optim.step(lr, model, grads),
            }
        }
        assert_close(loss, expected.loss, tolerance, &format!("{at}: loss"));

        if let Way::ByHand = way {
            let mut grads = sum.grads();
            if let Some(max_norm) = run.clip_norm {
                let found = inspect(&grads, &model).norm();
                grads = mul(grads, &model, (max_norm / (found + 1e-6)).min(1.0));
                norm = Some(found);
            }
            model = optim.step(lr, model, grads);
        }
        if run.clip_norm.is_some() {
            let norm = norm.unwrap_or_else(|| optim.scaler().last_status().unwrap().norm());
            match expected.grad_norm.as_f64() {
                Some(expected) => {
                    assert_close(norm, expected, tolerance, &format!("{at}: gradient norm"))
                }
                None => assert!(expected.skipped, "{at}: the trace has no gradient norm"),
            }
        }

        let outcome = optim.scaler().last_outcome();
        let skipped = outcome == Some(StepOutcome::Skipped);
        assert_eq!(skipped, expected.skipped, "{at}");
        assert_eq!(amp.loss_scale(), expected.scale_after, "{at}");
    }
    assert_eq!(optim.scaler().counters().bad_losses(), 0);
    let what = format!("{dtype:?}, {way:?}: {}", run.name());
    for (k, (weight, expected)) in model.weights.iter().zip(&run.final_weights).enumerate() {
        assert_tensor_close(
            &weight.val(),
            expected,
            tolerance,
            &format!("{what}: W[{k}]"),
        );
    }
    for (k, (bias, expected)) in model.biases.iter().zip(&run.final_biases).enumerate() {
        assert_tensor_close(&bias.val(), expected, tolerance, &format!("{what}: B[{k}]"));
    }
}

fn replay_all(dtype: FloatDType, tolerance: f64) {
    let files = reference::<File>("torch_training");
    for run in files.iter().flat_map(|(_, file)| &file.runs) {
        replay(run, dtype, Way::ByHand, tolerance);
        replay(run, dtype, Way::BuiltIn, tolerance);
    }
}

/// As PyTorch, to its digits.
#[test]
fn in_f32() {
    replay_all(FloatDType::F32, 1e-5);
}

/// The same scales and skips, with gradients that are multiplied inside; the rest as far as f16 goes.
#[test]
fn in_f16() {
    replay_all(FloatDType::F16, 1e-2);
}
