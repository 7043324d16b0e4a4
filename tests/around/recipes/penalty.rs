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

fn loss(model: &Regression) -> Tensor<1> {
    let (input, target) = data();
    let output = tensor(&input, 3).matmul(model.weight.val());
    (output - tensor(&target, 1)).square().mean()
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

/// PyTorch's recipe penalizes the norm of the parameters' gradient.
#[test]
fn the_norm_of_the_parameters_gradient() {
    let start = [0.5, -1.0, 0.25];
    let (penalty, radius) = (0.3, 0.05);
    let mut model = Regression {
        weight: Param::initialized(ParamId::from(1), tensor(&start, 1).require_grad()),
    };
    let scaler = GradScalerConfig::new().init().unwrap();
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);

    // Unscaled: its norm is used below.
    let here = optim
        .unscale(optim.backward(loss(&model), &model), &model)
        .unwrap();
    let norm = here.status().norm().max(f64::MIN_POSITIVE);
    // The parameters a little up the slope: a step of plain descent with a negative rate.
    let nudged =
        SgdConfig::new()
            .init()
            .step(-radius / norm, model.clone(), here.clone().into_params());
    let there = optim
        .unscale(optim.backward(loss(&nudged), &nudged), &nudged)
        .unwrap();
    // here + penalty * (there - here) / radius
    let share = penalty / radius;
    let grads = here.mul_scalar(1.0 - share).add(there, share);
    model = optim.step(1.0, model, grads);

    let expected = exact(start, penalty);
    let plain = exact(start, 0.0);
    for ((start, after), (expected, plain)) in start
        .iter()
        .zip(values(model.weight.val()))
        .zip(expected.iter().zip(plain))
    {
        let found = start - f64::from(after);
        assert!(
            (found - expected).abs() < 1e-4,
            "{found} instead of {expected}"
        );
        assert!(
            (expected - plain).abs() > 1e-2,
            "the penalty does not matter"
        );
    }
    assert_eq!(optim.scaler().counters().steps(), 1);
}

#[test]
fn an_overflow_in_either_pass_skips_the_step() {
    let start = [0.5, -1.0, 0.25];
    for bad in [0, 1] {
        let model = Regression {
            weight: Param::initialized(ParamId::from(1), tensor(&start, 1).require_grad()),
        };
        let scaler = GradScalerConfig::new().init().unwrap();
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
        let poison = |pass| if pass == bad { f32::INFINITY } else { 1.0 };
        let here = optim.backward(loss(&model) * poison(0), &model);
        let here = optim.unscale(here, &model).unwrap();
        let there = optim.backward(loss(&model) * poison(1), &model);
        let there = optim.unscale(there, &model).unwrap();
        let after = optim.step(1.0, model.clone(), here.mul_scalar(-5.0).add(there, 6.0));
        assert_eq!(values(after.weight.val()), values(model.weight.val()));
        assert_eq!(optim.scaler().loss_scale(), 32768.0);
    }
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
    let mut critic = filled(
        Critic {
            hidden: LinearConfig::new(3, 8).init(&device),
            head: LinearConfig::new(8, 1).init(&device),
        },
        0,
    );
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
    let start = [0.5, -1.0, 0.25];
    let penalty = 0.3;
    // A scale at which nothing overflows.
    let scaler = GradScalerConfig::new().with_init_scale(1024.0);
    let amp = MixedPrecision::f16().with_scaler(scaler).unwrap();
    let model = Regression {
        weight: Param::initialized(ParamId::from(1), tensor(&start, 1).require_grad()),
    };
    let model = model.apply_reparameterization(amp.clone());
    let loss = |model: &Regression| {
        let (input, target) = data();
        let output = amp.autocast(tensor(&input, 3), |x| x.matmul(model.weight.val()));
        (output - tensor(&target, 1)).square().mean()
    };
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);
    let here = optim
        .unscale(optim.backward(loss(&model), &model), &model)
        .unwrap();
    let norm = here.status().norm();
    let plain = here.clone().into_params();
    let nudged = SgdConfig::new()
        .init()
        .step(-radius / norm, model.clone(), plain);
    let there = optim
        .unscale(optim.backward(loss(&nudged), &nudged), &nudged)
        .unwrap();
    let share = penalty / radius;
    let id = ParamId::from(1);
    let gradient = |grads: &UnscaledGradients| values(grads.get::<2>(id).unwrap());
    let added = here.clone().mul_scalar(-share).add(there, share);
    assert!(!added.has_overflow());
    let (with, without) = (exact(start, penalty), exact(start, 0.0));
    let added = gradient(&added);
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
