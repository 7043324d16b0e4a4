//! A recipe of the book that takes a scaler's own calls.

use crate::support::*;

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
    // Both count where they step: 1e6 times 1e-9, and 1e4 * 1e-13.
    for (poison, scales, moved) in [
        (1.0, [2f32.powi(24), 1.0], -2e-3),
        (f64::INFINITY, [2f32.powi(24), 0.5], 0.0),
        (1.0, [2f32.powi(25), 0.5], -2e-3),
    ] {
        let before = model.values()[6];
        let first = unscaled(&model, &scalers[0], 1e-9);
        let second = unscaled(&model, &scalers[1], 1e4 * poison);
        for (scaler, grads) in scalers.iter_mut().zip([&first, &second]) {
            scaler.observe(grads).unwrap();
            scaler.update().unwrap();
        }
        let sum = first.add_weighted(second, 1e-13);
        if !sum.has_overflow() {
            model = SgdConfig::new().init().step(1e6, model, sum.into_params());
        }
        assert_eq!(scalers.each_ref().map(|scaler| scaler.loss_scale()), scales);
        let step = model.values()[6] - before;
        assert!((step - moved).abs() < 2e-6, "{step}");
    }
    assert!(unscaled(&model, &scalers[1], 1e-9).status().is_all_zero());
    assert!(unscaled(&model, &scalers[0], 1e4).has_overflow());
}
