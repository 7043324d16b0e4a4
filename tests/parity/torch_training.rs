//! Whole training runs of PyTorch with `GradScaler`, overflows injected: losses, scales, skips and weights.

use burn::{
    module::{Module, Param, ParamId},
    optim::{
        AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig,
        momentum::MomentumConfig,
    },
    tensor::{Device, Tensor, TensorData, activation::tanh},
};
use burn_amp::{
    AccumulationConfig, GradScaler, GradScalerConfig, GradientClip, MixedPrecision,
    ScaledOptimizer, StepOutcome,
};
use burn_amp_tests::reference;
use serde::Deserialize;
use serde_json::Value;

/// The relative error allowed in losses, gradient norms and weights.
const TOLERANCE: f64 = 1e-5;

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
    steps: usize,
    growth_interval: u32,
    init_scale: f64,
    dims: Vec<usize>,
    init_weights: Vec<Vec<f32>>,
    init_biases: Vec<Vec<f32>>,
    inputs: Vec<f32>,
    targets: Vec<f32>,
    log: Vec<Step>,
    final_weights: Vec<Vec<f32>>,
    final_biases: Vec<Vec<f32>>,
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

#[derive(Module, Debug)]
struct Mlp {
    weights: Vec<Param<Tensor<2>>>,
    biases: Vec<Param<Tensor<1>>>,
}

impl Mlp {
    fn new(run: &Run, device: &Device) -> Self {
        let weights = run.dims.windows(2).zip(&run.init_weights);
        let weights = weights.map(|(dims, values)| {
            let data = TensorData::new(values.clone(), [dims[0], dims[1]]);
            Param::from_data(data, device)
        });
        let biases = run.init_biases.iter().map(|values| {
            let data = TensorData::new(values.clone(), [values.len()]);
            Param::from_data(data, device)
        });
        Self {
            weights: weights.collect(),
            biases: biases.collect(),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let last = self.weights.len() - 1;
        let layers = self.weights.iter().zip(&self.biases).enumerate();
        layers.fold(input, |hidden, (index, (weight, bias))| {
            let output = hidden.matmul(weight.val()) + bias.val().unsqueeze();
            if index < last { tanh(output) } else { output }
        })
    }
}

impl Run {
    fn optimizer(&self) -> (ModuleOptimizer, f64) {
        match self.optimizer.as_str() {
            "sgd" => {
                let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
                let config = SgdConfig::new().with_momentum(Some(momentum));
                (config.init(), 0.05)
            }
            "adam" => (AdamConfig::new().with_epsilon(1e-5).init(), 0.01),
            "adamw" => {
                let config = AdamWConfig::new()
                    .with_epsilon(1e-5)
                    .with_weight_decay(0.01);
                (config.init(), 0.01)
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

    fn name(&self) -> String {
        let (clip, accumulation) = (self.clip_norm, self.accumulation);
        format!(
            "{}, clip {clip:?}, accumulation {accumulation}",
            self.optimizer
        )
    }
}

/// Sets one value of a gradient to infinity, as the traces did after `backward`.
fn inject_infinity(grads: &mut GradientsParams, id: ParamId) {
    let grad = grads.get::<2>(id).unwrap();
    let infinity = Tensor::full([1, 1], f32::INFINITY, &grad.device());
    let grad = grad.slice_assign([3..4, 5..6], infinity);
    grads.register(id, grad);
}

fn assert_close(actual: f64, expected: f64, what: &str) {
    assert!(
        (actual - expected).abs() <= TOLERANCE * expected.abs(),
        "{what}: {actual}, but PyTorch has {expected}"
    );
}

/// Relative to the largest magnitude in the tensor: single weights may pass through zero.
fn assert_tensor_close<const D: usize>(actual: &Tensor<D>, expected: &[f32], what: &str) {
    let actual = actual.to_data();
    let actual = actual.as_slice::<f32>().unwrap();
    assert_eq!(actual.len(), expected.len(), "{what}");
    let largest = expected
        .iter()
        .fold(0f32, |max, value| max.max(value.abs()));
    let errors = actual.iter().zip(expected).map(|(a, e)| (a - e).abs());
    let error = errors.fold(0f32, f32::max);
    assert!(
        f64::from(error) <= TOLERANCE * f64::from(largest),
        "{what}: off by {error}, largest magnitude {largest}"
    );
}

/// Who scales, clips and accumulates.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Burn's accumulator and a multiplication between `unscale` and `step`.
    ByHand,
    /// `with_clipping` and `with_accumulation`.
    BuiltIn,
    /// The same around Burn's own gradients, unscaled as scopes leave them: f32 ones here, as the traces are.
    Border,
}

fn replay(run: &Run, way: Way) {
    let device = Device::default().autodiff();
    let mut model = Mlp::new(run, &device);
    let (optimizer, lr) = run.optimizer();
    let config = GradScalerConfig::new()
        .with_init_scale(run.init_scale)
        .with_growth_interval(run.growth_interval);
    let amp = MixedPrecision::f32().with_scaler(config).unwrap();
    let scaler = match way {
        Way::Border => GradScaler::from(&amp),
        _ => config.init().unwrap(),
    };
    let mut optim = ScaledOptimizer::new(optimizer, scaler);
    if let Way::BuiltIn | Way::Border = way {
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
        let at = format!("{way:?}: {}, step {step}", run.name());
        assert_eq!(optim.scaler().loss_scale(), expected.scale_used, "{at}");

        let mut loss = 0.0;
        let mut window = GradientsAccumulator::new();
        for micro in 0..run.accumulation {
            let (input, target) = run.batch(step * run.accumulation + micro, &device);
            let output = match way {
                Way::Border => amp.autocast(input, |x| model.forward(x)),
                _ => model.forward(input),
            };
            let errors = (output - target).square();
            let part = errors.mean().div_scalar(run.accumulation as f64);
            loss += f64::from(part.clone().into_scalar::<f32>());
            let grads = match way {
                Way::Border => part.backward(),
                _ => optim.scaler().scale(part).backward(),
            };
            let mut grads = GradientsParams::from_grads(grads, &model);
            if run.inject_inf_at.contains(&step) && micro == run.accumulation - 1 {
                inject_infinity(&mut grads, model.weights[1].id);
            }
            match way {
                Way::ByHand => window.accumulate(&model, grads),
                Way::BuiltIn => {
                    let grads = optim.scaler().scaled(grads);
                    model = optim.step(lr, model, grads);
                }
                Way::Border => model = optim.step(lr, model, grads),
            }
        }
        assert_close(loss, expected.loss, &format!("{at}: loss"));

        if let Way::ByHand = way {
            let sum = optim.scaler().scaled(window.grads());
            let mut grads = optim.unscale(sum, &model);
            if let Some(max_norm) = run.clip_norm {
                let norm = grads.status().norm();
                grads = grads.mul_scalar((max_norm / (norm + 1e-6)).min(1.0));
            }
            model = optim.step(lr, model, grads);
        }
        if run.clip_norm.is_some() {
            let norm = optim.scaler().last_status().unwrap().norm();
            match expected.grad_norm.as_f64() {
                Some(expected) => assert_close(norm, expected, &format!("{at}: gradient norm")),
                None => assert!(expected.skipped, "{at}: the trace has no gradient norm"),
            }
        }

        let outcome = optim.scaler().last_outcome();
        let skipped = outcome == Some(StepOutcome::Skipped);
        assert_eq!(skipped, expected.skipped, "{at}");
        assert_eq!(optim.scaler().loss_scale(), expected.scale_after, "{at}");
    }

    for (k, (weight, expected)) in model.weights.iter().zip(&run.final_weights).enumerate() {
        let what = format!("{way:?}: {}: final W[{k}]", run.name());
        assert_tensor_close(&weight.val(), expected, &what);
    }
    for (k, (bias, expected)) in model.biases.iter().zip(&run.final_biases).enumerate() {
        let what = format!("{way:?}: {}: final B[{k}]", run.name());
        assert_tensor_close(&bias.val(), expected, &what);
    }
}

fn replay_all(chosen: impl Fn(&Run) -> bool) {
    let files = reference::<File>("torch_training");
    let runs = files.iter().flat_map(|(_, file)| &file.runs);
    let runs: Vec<&Run> = runs.filter(|run| chosen(run)).collect();
    assert!(!runs.is_empty(), "no run of this kind");
    for run in runs {
        for way in [Way::ByHand, Way::BuiltIn, Way::Border] {
            replay(run, way);
        }
    }
}

// The three together take every run once.

#[test]
fn parity_torch_training_plain() {
    replay_all(|run| run.accumulation == 1 && run.clip_norm.is_none());
}

#[test]
fn parity_torch_training_clipped_between_unscale_and_step() {
    replay_all(|run| run.accumulation == 1 && run.clip_norm.is_some());
}

#[test]
fn parity_torch_training_accumulated() {
    replay_all(|run| run.accumulation > 1);
}
