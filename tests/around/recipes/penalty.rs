//! Gradient penalties. Burn's `backward` gives gradients without a graph, so that they cannot be differentiated again;
//! a difference of two of them can stand in for the second derivative.

use burn_amp_tests::prelude::*;

use crate::support::{filled, values};

#[derive(Module, Debug)]
struct Regression {
    weight: Param<Tensor<2>>,
}

const ROWS: usize = 8;

fn data() -> (Vec<f64>, Vec<f64>) {
    let value = |index: usize| (12.9898 * (index as f64 + 1.0)).sin();
    (
        (0..ROWS * 3).map(value).collect(),
        (50..50 + ROWS).map(value).collect(),
    )
}

fn tensor(values: &[f64], columns: usize) -> Tensor<2> {
    let rows = values.len() / columns;
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let device = Device::default().autodiff();
    Tensor::from_data(TensorData::new(values, [rows, columns]), &device)
}

/// The gradient of `loss + weight * norm(gradient)`, in f64: `g + weight * H g / |g|`.
fn exact(parameters: [f64; 3], penalty: f64) -> [f64; 3] {
    let (input, target) = data();
    let rows: Vec<(&[f64], f64)> = input.chunks(3).zip(target).collect();
    let scale = 2.0 / ROWS as f64;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut gradient = [0.0; 3];
    for (row, target) in &rows {
        let error = dot(row, &parameters) - target;
        for (gradient, value) in gradient.iter_mut().zip(*row) {
            *gradient += scale * error * value;
        }
    }
    let norm = dot(&gradient, &gradient).sqrt();
    let mut total = gradient;
    for (row, _) in &rows {
        let along = dot(row, &gradient) / norm;
        for (total, value) in total.iter_mut().zip(*row) {
            *total += penalty * scale * along * value;
        }
    }
    total
}

/// A model, and an optimizer whose loss is scaled, or whose border is.
struct Run {
    amp: MixedPrecision,
    model: Regression,
    optim: ScaledOptimizer,
}

const START: [f64; 3] = [0.5, -1.0, 0.25];
const PENALTY: f64 = 0.3;

impl Run {
    fn new(amp: MixedPrecision, scaler: impl Into<GradScaler>) -> Self {
        let weight = tensor(&START, 1).require_grad();
        let model = Regression {
            weight: Param::initialized(ParamId::from(1), weight),
        };
        Self {
            model: model.apply_reparameterization(amp.clone()),
            optim: ScaledOptimizer::new(SgdConfig::new().init(), scaler),
            amp,
        }
    }

    fn full() -> Self {
        let scaler = GradScalerConfig::new().init().unwrap();
        Self::new(MixedPrecision::f32(), scaler)
    }

    fn gradients(&mut self, model: &Regression) -> UnscaledGradients {
        let (input, target) = data();
        let forward = |x: Tensor<2>| x.matmul(model.weight.val());
        let output = self.amp.autocast(tensor(&input, 3), forward);
        let loss = (output - tensor(&target, 1)).square().mean();
        let grads = self.optim.backward(loss, model);
        self.optim.unscale(grads, model).unwrap()
    }

    /// The gradients here, and those of parameters a little up the slope: a step of plain descent with a negative rate.
    fn two(&mut self, radius: f64) -> [UnscaledGradients; 2] {
        let here = self.gradients(&self.model.clone());
        // Unscaled, as its norm is used.
        let norm = here.status().norm().max(f64::MIN_POSITIVE);
        let up = here.clone().into_params();
        let mut descent = SgdConfig::new().init();
        let nudged = descent.step(-radius / norm, self.model.clone(), up);
        let there = self.gradients(&nudged);
        [here, there]
    }
}

/// PyTorch's recipe penalizes the norm of the parameters' gradient.
#[test]
fn the_norm_of_the_parameters_gradient() {
    let (radius, mut run) = (0.05, Run::full());
    let [here, there] = run.two(radius);
    // here + penalty * (there - here) / radius
    let share = PENALTY / radius;
    let grads = here.mul_scalar(1.0 - share).add(there, share);
    let model = run.optim.step(1.0, run.model, grads);

    let after = values(model.weight.val());
    let (expected, plain) = (exact(START, PENALTY), exact(START, 0.0));
    for index in 0..3 {
        let found = START[index] - f64::from(after[index]);
        let expected = expected[index];
        assert!((found - expected).abs() < 1e-4, "{found}, not {expected}");
        let matters = (expected - plain[index]).abs() > 1e-2;
        assert!(matters, "the penalty does not matter");
    }
    assert_eq!(run.optim.scaler().counters().steps(), 1);
}

#[derive(Module, Debug)]
struct Critic {
    hidden: Linear,
    head: Linear,
}

impl Critic {
    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.head.forward(tanh(self.hidden.forward(input)))
    }
}

/// The norm of the critic's gradient with respect to each input row, and the directions.
fn slopes(critic: &Critic, scale: f32) -> (Tensor<2>, Tensor<2>) {
    let device = Device::default().autodiff();
    let (input, _) = data();
    let input = tensor(&input, 3).require_grad();
    let loss = critic.forward(input.clone()).sum() * scale;
    let gradient = input.grad(&loss.backward()).unwrap() / scale;
    assert!(!gradient.is_autodiff(), "it has no graph");
    let norm = gradient.clone().square().sum_dim(1).sqrt();
    let direction = gradient / norm.clone().clamp_min(1e-12);
    (norm, Tensor::from_inner(direction).to_device(&device))
}

/// WGAN-GP's penalty, on the norm of the critic's gradient with respect to its input: the slope along the gradient's own
/// direction is that norm, and it can be differentiated.
#[test]
fn the_norm_of_a_critics_input_gradient() {
    let device = Device::default().autodiff();
    let critic = Critic {
        hidden: LinearConfig::new(3, 8).init(&device),
        head: LinearConfig::new(8, 1).init(&device),
    };
    let mut critic = filled(critic, 0);
    let scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
    let distance = |critic: &Critic| {
        let (norm, _) = slopes(critic, 1.0);
        (norm - 1.0).square().mean().into_scalar::<f32>()
    };
    let first = distance(&critic);
    for _ in 0..200 {
        let scale = optim.scaler().loss_scale();
        let (norm, direction) = slopes(&critic, scale);
        let (input, _) = data();
        let (input, step) = (tensor(&input, 3), 0.05);
        let up = critic.forward(input.clone() + direction.clone() * step);
        let down = critic.forward(input - direction * step);
        let slope = (up - down) / (2.0 * step);
        let error = (slope.clone().inner() - norm)
            .abs()
            .max()
            .into_scalar::<f32>();
        assert!(error < 0.02, "the slope is not the norm: {error} off");
        let penalty = (slope - 1.0).square().mean();
        let grads = optim.backward(penalty, &critic);
        critic = optim.step(0.2, critic, grads);
    }
    let last = distance(&critic);
    assert!(last < 0.1 * first, "{first} to {last}");
}

/// What the finite difference adds to a gradient, computed in f16 over f32 parameters, as a share of what it should add.
fn penalty_in_half(radius: f64) -> [f64; 3] {
    // A scale at which nothing overflows.
    let amp = MixedPrecision::f16().with_scaler(at_scale(1024.0)).unwrap();
    let [here, there] = Run::new(amp.clone(), &amp).two(radius);
    let share = PENALTY / radius;
    let added = here.mul_scalar(-share).add(there, share);
    assert!(!added.has_overflow());
    let (with, without) = (exact(START, PENALTY), exact(START, 0.0));
    let added = values(added.get::<2>(ParamId::from(1)).unwrap());
    std::array::from_fn(|index| f64::from(added[index]) / (with[index] - without[index]))
}

/// In f16 a small radius drowns: parameters round to themselves, and what is left is noise, multiplied by `weight / radius`.
#[test]
fn in_half_precision_the_radius_must_not_be_small() {
    for share in penalty_in_half(0.1) {
        assert!((share - 1.0).abs() < 0.1, "{share} of the penalty");
    }
    let small = penalty_in_half(1e-4);
    let off = small.map(|share| (share - 1.0).abs());
    assert!(off.iter().any(|off| *off > 0.5), "{small:?} of the penalty");
}
