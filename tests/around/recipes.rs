//! Recipes of the book that take a scaler's own calls, each on a small problem.

use burn::optim::{LBFGSConfig, LineSearchFn};

use crate::support::*;

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
