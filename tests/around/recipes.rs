//! The recipes of the book, each on a small problem.

use burn::optim::{LBFGSConfig, LineSearchFn};

use crate::support::*;

const INPUT: [f64; 3] = [1.0, -1.5, 1.25];
const START: [f64; 3] = [0.5, -1.0, 0.75];
const PENALTY: f64 = 0.3;

/// What a penalty on the norm of the gradient adds to a step, as a share of what it should add, which is `PENALTY * H g / |g|`. A weight for each input,
/// whose loss is half the sum of the squares of the products: the second derivative `H` is diagonal. Burn's `backward` gives gradients without
/// a graph; the difference of two of them stands in for it.
fn share_of_penalty(amp: MixedPrecision, scaler: GradScaler, radius: f64) -> [f64; 3] {
    let tensor = |values: [f64; 3]| Tensor::<1>::from_floats(values, &device());
    let model = amp.attach(Param::from_tensor(tensor(START)));
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), scaler);
    let mut gradients = |model: &Param<Tensor<1>>| {
        let output = amp.autocast(tensor(INPUT), |x| x * model.val());
        let grads = optim.backward(output.square().sum() * 0.5, model);
        optim.unscale(grads, model).unwrap()
    };
    let here = gradients(&model);
    // Up the slope: a step of plain descent with a negative rate.
    let rate = -radius / here.status().norm();
    let grads = here.clone().into_params();
    let nudged = SgdConfig::new().init().step(rate, model.clone(), grads);
    let there = gradients(&nudged);
    let share = PENALTY / radius;
    let grads = here.mul_scalar(1.0 - share).add_weighted(there, share);
    let after = values(optim.step(1.0, model, grads).val());
    assert_eq!(optim.scaler().counters().stepped(), 1);

    let curvature = INPUT.map(|x| x * x);
    let gradient: [f64; 3] = from_fn(|index| curvature[index] * START[index]);
    from_fn(|index| {
        let added = PENALTY * curvature[index] * gradient[index] / l2(&gradient);
        (START[index] - f64::from(after[index]) - gradient[index]) / added
    })
}

/// Of a square the difference is exact at any radius. In half precision a small one drowns: parameters round to themselves, and what is left is noise,
/// multiplied by `weight / radius`.
#[test]
fn a_penalty_on_the_norm_of_the_gradient() {
    let off = |amp: &MixedPrecision, scaler: GradScaler, radius| {
        let shares = share_of_penalty(amp.clone(), scaler, radius);
        shares
            .map(|share| (share - 1.0).abs())
            .into_iter()
            .fold(0.0, f64::max)
    };
    let (f16, bf16) = (f16_under(at_scale(1024.0)), MixedPrecision::bf16());
    let f32 = MixedPrecision::f32();
    for (amp, scaler, radius, allowed) in [
        (&f32, default_scaler(), 0.05, 1e-3),
        (&f32, GradScaler::from(&f32), 0.5, 1e-3),
        (&f16, GradScaler::from(&f16), 0.5, 0.02),
        (&f16, GradScaler::from(&f16), 0.1, 0.1),
        (&bf16, GradScaler::from(&bf16), 0.5, 0.2),
    ] {
        let off = off(amp, scaler, radius);
        assert!(off < allowed, "{amp:?}, {radius}: {off}");
    }
    assert!(off(&f16, GradScaler::from(&f16), 1e-4) > 0.5);
}

/// WGAN-GP's penalty, on the norm of a critic's gradient with respect to its input: the slope along the gradient's own direction is
/// that norm, and it can be differentiated.
#[test]
fn a_penalty_on_the_norm_of_a_critics_input_gradient() {
    let critic = [LinearConfig::new(3, 8), LinearConfig::new(8, 1)];
    let mut critic = fill(critic.map(|layer| layer.init(&device())), 0, 0.7);
    let mut optim = sgd_under(GradScalerConfig::new());
    let rows = || random::<2>(0, [8, 3], &device());
    let judge = |[hidden, head]: &[Linear; 2], x| head.forward(tanh(hidden.forward(x)));
    let distances = [(); 200].map(|()| {
        let (scale, input) = (optim.scaler().loss_scale(), rows().require_grad());
        let grads = (judge(&critic, input.clone()).sum() * scale).backward();
        let gradient = input.grad(&grads).unwrap() / scale;
        let norm = gradient.clone().square().sum_dim(1).sqrt();
        let step = Tensor::from_inner(gradient / norm.clone()) * 0.05;
        let [up, down] = [rows() + step.clone(), rows() - step].map(|x| judge(&critic, x));
        let slope = (up - down) / 0.1;
        let off = values((slope.clone().inner() - norm.clone()).abs());
        assert!(off.iter().all(|off| *off < 0.02), "{off:?}");
        let grads = optim.backward((slope - 1.0).square().mean(), &critic);
        critic = optim.step(0.2, critic.clone(), grads);
        (norm - 1.0).square().mean().into_scalar::<f32>()
    });
    assert!(distances[199] < 0.1 * distances[0], "{distances:?}");
}

/// Fits a line with Burn's L-BFGS, whose closure repeats an evaluation until the scaler finds its gradients finite. The last loss, and how many evaluations
/// overflowed, and had a loss that was infinite.
fn fit(amp: &MixedPrecision, rate: f64) -> (f64, usize, usize) {
    let x = random(1, [32, 4], &flex());
    let y = x.clone().sum_dim(1) * 0.5 + 1.0;
    let mut model = amp.attach(fill(LinearConfig::new(4, 1).init(&flex()), 1, 0.5));
    let mut scaler = GradScaler::from(amp);
    let search = LBFGSConfig::new().with_line_search_fn(LineSearchFn::StrongWolfe);
    let mut optim = search.with_max_iter(4).init();
    let (mut last, mut repeated, mut infinite) = (f64::NAN, 0, 0);
    let mut evaluate = |model: Linear| loop {
        let output = amp.autocast(x.clone(), |x| model.forward(x));
        let loss = (output - y.clone()).square().mean();
        let value = loss.clone().into_scalar::<f64>();
        let grads = scaler.unscale(scaler.backward(loss, &model), &model);
        let grads = grads.unwrap();
        scaler.observe(&grads).unwrap();
        scaler.update().unwrap();
        infinite += usize::from(!value.is_finite());
        if !grads.status().has_overflow() || !value.is_finite() {
            break (value.min(f64::MAX), grads.into_params());
        }
        repeated += 1;
    };
    for _ in 0..4 {
        (model, last) = optim.step(rate, model, &mut evaluate);
    }
    (last, repeated, infinite)
}

#[test]
fn an_evaluation_is_repeated_until_it_is_finite() {
    let (last, repeated, _) = fit(&MixedPrecision::f32(), 1.0);
    assert!(last < 1e-5 && repeated == 0, "{last}");
    let amp = f16_under(at_scale(2f64.powi(30)));
    let (last, repeated, infinite) = fit(&amp, 1.0);
    assert!(last < 1e-5, "{last}");
    assert_eq!((repeated, infinite, amp.loss_scale()), (16, 0, 16384.0));
    // A first step that is far too long: there the loss is infinite, and the line search goes back.
    let (last, _, infinite) = fit(&f16_under(at_scale(1.0)), 2e5);
    assert!(last < 1e-4 && infinite > 0, "{last}");
}

/// Apex's `num_losses`, where gradients differ by many orders of magnitude in f16: those of the first are 1e-9, and those of the second 1e4. With one scale
/// for both, one of them is lost.
#[test]
fn a_scaler_for_each_loss_follows_its_own() {
    // Computes in f16 and does not scale: the scalers do.
    let f16 = f16_under(GradScalerConfig::new().with_enabled(false));
    let mut model = f16.attach(Pair::of(0.0));
    let mut scalers = [2f64.powi(24), 1.0].map(|scale| {
        let config = at_scale(scale).with_growth_interval(3);
        GradScaler::new(config).unwrap()
    });
    // A forward pass each: Burn's `backward` uses the graph up.
    let unscaled = |model: &Pair, scaler: &GradScaler, factor: f64| {
        let bias = f16.autocast((), |()| model.bias.val());
        let grads = scaler.backward(bias.sum() * factor, model);
        scaler.unscale(grads, model).unwrap()
    };
    // An overflow of the second skips the step and lowers its scale alone.
    for (poison, scales, moved) in [
        (1.0, [2f32.powi(24), 1.0], true),
        (f64::INFINITY, [2f32.powi(24), 0.5], false),
        (1.0, [2f32.powi(25), 0.5], true),
    ] {
        let before = model.values()[6];
        let [first, second] = [1e-9, 1e4 * poison];
        let grads = [
            unscaled(&model, &scalers[0], first),
            unscaled(&model, &scalers[1], second),
        ];
        for (scaler, grads) in scalers.iter_mut().zip(&grads) {
            scaler.observe(grads).unwrap();
            scaler.update().unwrap();
        }
        let [first, second] = grads;
        let sum = first.add_weighted(second, 1e-13);
        if !sum.has_overflow() {
            model = SgdConfig::new().init().step(1e6, model, sum.into_params());
        }
        assert_eq!(scalers.each_ref().map(|scaler| scaler.loss_scale()), scales);
        let step = model.values()[6] - before;
        // Both count: 1e6 times 1e-9, and 1e4 * 1e-13.
        let expected = if moved { -2e-3 } else { 0.0 };
        assert!((step - expected).abs() < 2e-6, "{step}");
    }
    assert!(unscaled(&model, &scalers[1], 1e-9).status().is_all_zero());
    assert!(unscaled(&model, &scalers[0], 1e4).has_overflow());
}

/// One optimizer, one scale and two losses with shared parameters: one backward pass through their sum; one each, and a sum of scaled gradients; or
/// unscaled separately, to weigh or clip each. Their gradients at a value of 0.25 are 2 * (0.25 - 1) + 0.5 and 1.
#[test]
fn two_losses_scaled_by_one_scale() {
    fn losses(model: &Pair) -> [Tensor<1>; 2] {
        let (weight, bias) = (model.weight.val(), model.bias.val());
        let first = (weight.clone() - 1.0).square().sum() + bias.sum();
        [first, weight.mul_scalar(0.5).sum()]
    }
    fn separately(run: &mut Trial) -> [UnscaledGradients; 2] {
        losses(&run.model).map(|loss| {
            let grads = run.backward(loss);
            run.optim.unscale(grads, &run.model).unwrap()
        })
    }
    let ways: [fn(&mut Trial); 4] = [
        |run| {
            let [first, second] = losses(&run.model);
            run.take(run.backward(first + second));
        },
        |run| {
            let mut sum = GradientsAccumulator::new();
            for loss in run.optim.scaler().scale(losses(&run.model).to_vec()) {
                let grads = GradientsParams::from_grads(loss.backward(), &run.model);
                sum.accumulate(&run.model, grads);
            }
            run.take(run.optim.scaler().scaled(sum.grads()).unwrap());
        },
        |run| {
            let [first, second] = separately(run);
            run.take(first + second);
        },
        // The other way round, too: the second knows the weight alone.
        |run| {
            let [first, second] = separately(run);
            run.take(second + first);
        },
    ];
    for way in ways {
        let mut run = Trial::new(sgd()).with_value(0.25);
        way(&mut run);
        assert_eq!(run.values(), [&[1.25; 6][..], &[-0.75; 4]].concat());
        assert_eq!(run.counters().steps(), 1);
    }
}
