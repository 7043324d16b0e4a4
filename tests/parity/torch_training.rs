//! Whole training runs of PyTorch with `GradScaler`, overflows injected, with a scaled loss and through the border: losses, scales, skips and weights.

use burn_amp_tests::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    optimizer: String,
    inject_inf_at: Vec<usize>,
    clip_norm: Option<f64>,
    accumulation: usize,
    growth_interval: u32,
    init_scale: f64,
    dims: Vec<usize>,
    init_weights: Vec<Vec<f32>>,
    init_biases: Vec<Vec<f32>>,
    inputs: Vec<f32>,
    targets: Vec<f32>,
    log: Vec<Step>,
    final_weights: Vec<Vec<f64>>,
    final_biases: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
struct Step {
    loss: f64,
    scale_used: f32,
    scale_after: f32,
    skipped: bool,
    /// A number, "inf" where the gradients overflow, or null without clipping.
    grad_norm: Value,
}

fn forward(layers: &[Linear], input: Tensor<2>) -> Tensor<2> {
    let (last, hidden) = layers.split_last().unwrap();
    let layers = hidden.iter();
    last.forward(layers.fold(input, |x, layer| tanh(layer.forward(x))))
}

impl Run {
    fn layers(&self, device: &Device) -> Vec<Linear> {
        let layer = |(index, dims): (usize, &[usize])| {
            let weight = TensorData::new(self.init_weights[index].clone(), dims);
            let bias = TensorData::new(self.init_biases[index].clone(), [dims[1]]);
            let bias = Some(Param::from_data(bias, device));
            let weight = Param::from_data(weight, device);
            Linear { weight, bias }
        };
        self.dims.windows(2).enumerate().map(layer).collect()
    }

    fn optimizer(&self) -> (ModuleOptimizer, f64) {
        match self.optimizer.as_str() {
            "sgd" => {
                let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
                let config = SgdConfig::new().with_momentum(Some(momentum));
                (config.init(), 0.05)
            }
            "adam" => (AdamConfig::new().with_epsilon(1e-5).init(), 0.01),
            "adamw" => {
                let config = AdamWConfig::new().with_epsilon(1e-5);
                (config.with_weight_decay(0.01).init(), 0.01)
            }
            other => panic!("unknown optimizer {other}"),
        }
    }

    fn batch(&self, index: usize, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let rows = 12;
        let slice = |values: &[f32], columns: usize| {
            let size = rows * columns;
            let values = values[index * size..(index + 1) * size].to_vec();
            Tensor::from_data(TensorData::new(values, [rows, columns]), device)
        };
        let (input, output) = (self.dims[0], *self.dims.last().unwrap());
        (slice(&self.inputs, input), slice(&self.targets, output))
    }
}

/// Sets one value of a gradient to infinity, as the traces did after `backward`.
fn inject_infinity(grads: &mut GradientsParams, id: ParamId) {
    let grad = grads.get::<2>(id).unwrap();
    let infinity = Tensor::full([1, 1], f32::INFINITY, &grad.device());
    let grad = grad.slice_assign([3..4, 5..6], infinity);
    grads.register(id, grad);
}

/// Relative to the largest magnitude of the values: single weights may pass through zero.
fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let magnitudes = expected.iter().map(|value| value.abs());
    let most = tolerance * magnitudes.fold(0.0, f64::max);
    for (actual, expected) in actual.iter().zip(expected) {
        let is_close = (actual - expected).abs() <= most;
        assert!(is_close, "{what}: {actual}, but PyTorch has {expected}");
    }
}

/// With a loss that is scaled and gradients that are unscaled before the step; or, given a dtype, at the border of half precision. Scales and skips are
/// those of the run, the rest is within a relative error.
fn replay(run: &Run, border: Option<FloatDType>, tolerance: f64) {
    let device = device();
    let config = at_scale(run.init_scale).with_growth_interval(run.growth_interval);
    let (scaler, amp) = match border {
        Some(dtype) => {
            let amp = MixedPrecision::new(dtype).with_scaler(config).unwrap();
            (GradScaler::from(&amp), amp)
        }
        None => (GradScaler::new(config).unwrap(), MixedPrecision::f32()),
    };
    let mut model = amp.attach(run.layers(&device));
    let (optimizer, lr) = run.optimizer();
    let mut optim = ScaledOptimizer::new(optimizer, scaler);
    let window = AccumulationConfig::new(run.accumulation as u32);
    optim = optim.with_accumulation(window.with_sum(true));
    if let Some(max_norm) = run.clip_norm {
        optim = optim.with_clipping(GradientClip::GlobalNorm(max_norm));
    }

    let (kind, clip, parts) = (&run.optimizer, run.clip_norm, run.accumulation);
    let name = format!("{border:?}: {kind}, clip {clip:?}, accumulation {parts}");
    for (step, expected) in run.log.iter().enumerate() {
        let at = format!("{name}, step {step}");
        assert_eq!(optim.scaler().loss_scale(), expected.scale_used, "{at}");

        let mut loss = 0.0;
        for micro in 0..parts {
            let (input, target) = run.batch(step * parts + micro, &device);
            let output = amp.autocast(input, |x| forward(&model, x));
            let part = (output - target).square().mean().div_scalar(parts as f64);
            loss += f64::from(part.clone().into_scalar::<f32>());
            let mut grads = optim.backward(part, &model);
            if run.inject_inf_at.contains(&step) && micro == parts - 1 {
                inject_infinity(grads.params_mut(), model[1].weight.id);
            }
            model = optim.step(lr, model, grads);
        }
        assert_close(&[loss], &[expected.loss], tolerance, &format!("{at}: loss"));
        if clip.is_some() {
            let norm = optim.scaler().last_status().unwrap().norm();
            let what = format!("{at}: gradient norm");
            match expected.grad_norm.as_f64() {
                Some(expected) => assert_close(&[norm], &[expected], tolerance, &what),
                None => assert!(expected.skipped, "{at}: the trace has no gradient norm"),
            }
        }

        let skipped = Some(outcome(expected.skipped));
        assert_eq!(optim.scaler().last_outcome(), skipped, "{at}");
        assert_eq!(optim.scaler().loss_scale(), expected.scale_after, "{at}");
    }
    assert_eq!(optim.scaler().counters().bad_losses(), 0, "{name}");
    for (index, layer) in model.iter().enumerate() {
        let what = format!("{name}: the end of layer {index}");
        let ends = [numbers(&layer.weight), numbers(&layer.bias)];
        let expected = [&run.final_weights[index], &run.final_biases[index]];
        for (end, expected) in ends.into_iter().zip(expected) {
            let end: Vec<f64> = end.into_iter().map(f64::from).collect();
            assert_close(&end, expected, tolerance, &what);
        }
    }
}

#[test]
fn parity_torch_training() {
    let files = reference::<File>("torch_training");
    for run in files.iter().flat_map(|(_, file)| &file.runs) {
        replay(run, None, 1e-5);
        replay(run, Some(FloatDType::F32), 1e-5);
        // The same scales and skips, with gradients that are multiplied inside; the rest as far as f16 goes.
        replay(run, Some(FloatDType::F16), 1e-2);
    }
}
