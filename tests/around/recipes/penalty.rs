//! Gradient penalties. Burn's `backward` gives gradients without a graph, so that they cannot be differentiated again;
//! a difference of two of them can stand in for the second derivative.

use crate::support::*;

/// A weight for each input, whose loss is half the sum of the squares of the products: its second derivative is diagonal.
type Weights = Param<Tensor<1>>;

const INPUT: [f64; 3] = [1.0, -1.5, 1.25];
const START: [f64; 3] = [0.5, -1.0, 0.75];
const PENALTY: f64 = 0.3;

fn tensor(values: [f64; 3]) -> Tensor<1> {
    Tensor::from_floats(values, &device())
}

/// The gradient g, and what `PENALTY` times its norm adds to it: `PENALTY * H g / |g|`.
fn exact() -> [[f64; 3]; 2] {
    let curvature = INPUT.map(|x| x * x);
    let gradient: [f64; 3] = from_fn(|index| curvature[index] * START[index]);
    let norm = l2(&gradient);
    let added = from_fn(|index| PENALTY * curvature[index] * gradient[index] / norm);
    [gradient, added]
}

/// A model, and an optimizer whose loss is scaled, or whose border is.
type Run = Player<Weights>;

fn run(amp: MixedPrecision, scaler: impl Into<GradScaler>) -> Run {
    let model = amp.attach(Param::from_tensor(tensor(START)));
    let optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
    Player { amp, model, optim }
}

fn gradients(run: &mut Run, model: &Weights) -> UnscaledGradients {
    let output = (run.amp).autocast(tensor(INPUT), |x| x * model.val());
    let grads = run.optim.backward(output.square().sum() * 0.5, model);
    run.optim.unscale(grads, model).unwrap()
}

/// The gradients here, and those of parameters a little up the slope: a step of plain descent with a negative rate.
fn two(run: &mut Run, radius: f64) -> [UnscaledGradients; 2] {
    let model = run.model.clone();
    let here = gradients(run, &model);
    // Unscaled, as its norm is used.
    let norm = here.status().norm().max(f64::MIN_POSITIVE);
    let mut descent = SgdConfig::new().init();
    let nudged = descent.step(-radius / norm, model, here.clone().into_params());
    [here, gradients(run, &nudged)]
}

/// What the finite difference adds to a step, as a share of what it should add.
fn shares(mut run: Run, radius: f64) -> [f64; 3] {
    let [here, there] = two(&mut run, radius);
    // here + penalty * (there - here) / radius
    let share = PENALTY / radius;
    let grads = here.mul_scalar(1.0 - share).add_weighted(there, share);
    assert!(!grads.has_overflow());
    let model = run.optim.step(1.0, run.model, grads);
    assert_eq!(run.optim.scaler().counters().stepped(), 1);
    let (after, [gradient, added]) = (values(model.val()), exact());
    from_fn(|index| (START[index] - f64::from(after[index]) - gradient[index]) / added[index])
}

/// PyTorch's recipe penalizes the norm of the parameters' gradient.
#[test]
fn the_norm_of_the_parameters_gradient() {
    let scaler = default_scaler();
    for share in shares(run(MixedPrecision::f32(), scaler), 0.05) {
        assert!((share - 1.0).abs() < 1e-3, "{share} of the penalty");
    }
}

/// The recipe of the book, with the handle's own scaler, tested or not: of a square the difference is exact at any radius.
#[test]
fn in_every_precision() {
    for (amp, off) in [
        (f16_under(at_scale(1024.0)), 0.02),
        (MixedPrecision::bf16(), 0.2),
        (MixedPrecision::f32(), 1e-3),
    ] {
        for share in shares(run(amp.clone(), &amp), 0.5) {
            assert!((share - 1.0).abs() < off, "{amp:?}: {share} of the penalty");
        }
    }
}

/// In f16 a small radius drowns: parameters round to themselves, and what is left is noise, multiplied by `weight / radius`.
#[test]
fn in_half_precision_the_radius_must_not_be_small() {
    let in_half = |radius| {
        // A scale at which nothing overflows.
        let amp = f16_under(at_scale(1024.0));
        shares(run(amp.clone(), &amp), radius).map(|share| (share - 1.0).abs())
    };
    let off = in_half(0.1);
    assert!(off.iter().all(|off| *off < 0.1), "{off:?}");
    assert!(in_half(1e-4).iter().any(|off| *off > 0.5));
}

/// WGAN-GP's penalty, on the norm of a critic's gradient with respect to its input: the slope along the gradient's own direction is
/// that norm, and it can be differentiated.
#[test]
fn the_norm_of_a_critics_input_gradient() {
    let critic = [LinearConfig::new(3, 8), LinearConfig::new(8, 1)];
    let mut critic = fill(critic.map(|layer| layer.init(&device())), 0, 0.7);
    let mut optim = sgd_under(GradScalerConfig::new());
    let rows = || random::<2>(0, [8, 3], &device());
    let judge = |[hidden, head]: &[Linear; 2], x| head.forward(tanh(hidden.forward(x)));
    let mut distances = Vec::new();
    for _ in 0..200 {
        let (scale, input) = (optim.scaler().loss_scale(), rows().require_grad());
        let grads = (judge(&critic, input.clone()).sum() * scale).backward();
        let gradient = input.grad(&grads).unwrap() / scale;
        assert!(!gradient.is_autodiff(), "it has no graph");
        let norm = gradient.clone().square().sum_dim(1).sqrt();
        distances.push((norm.clone() - 1.0).square().mean().into_scalar::<f32>());

        let direction = gradient / norm.clone().clamp_min(1e-12);
        let step = Tensor::from_inner(direction).to_device(&device()) * 0.05;
        let [up, down] = [rows() + step.clone(), rows() - step].map(|x| judge(&critic, x));
        let slope = (up - down) / 0.1;
        let off = values((slope.clone().inner() - norm).abs());
        let is_norm = off.iter().all(|off| *off < 0.02);
        assert!(is_norm, "the slope is not the norm: {off:?} off");
        let grads = optim.backward((slope - 1.0).square().mean(), &critic);
        critic = optim.step(0.2, critic, grads);
    }
    assert!(distances[199] < 0.1 * distances[0], "{distances:?}");
}
