//! One scaler for each loss, as Apex's `num_losses`: losses whose gradients differ by many orders of magnitude in f16.

use crate::support::*;

struct Setup {
    /// Computes in f16 and does not scale: the scalers do.
    f16: MixedPrecision,
    model: Pair,
    optim: ModuleOptimizer,
    scalers: [GradScaler; 2],
}

impl Setup {
    fn new() -> Self {
        let f16 = f16_under(GradScalerConfig::new().with_enabled(false));
        let scalers = [2f64.powi(24), 1.0].map(|scale| {
            let config = at_scale(scale).with_growth_interval(3);
            config.init().unwrap()
        });
        Self {
            model: f16.attach(Pair::of(0.0)),
            f16,
            optim: SgdConfig::new().init(),
            scalers,
        }
    }

    /// The gradients of the first are 1e-9, and those of the second 1e4.
    fn losses(&self) -> [Tensor<1>; 2] {
        // A forward pass each: Burn's `backward` uses the graph up.
        [1e-9, 1e4].map(|factor| {
            let bias = self.f16.autocast((), |()| self.model.bias.val());
            bias.sum() * factor
        })
    }

    /// The gradients of a loss that the scaler of this number scales.
    fn unscaled(&self, scaler: usize, loss: Tensor<1>) -> UnscaledGradients {
        let (scaler, model) = (&self.scalers[scaler], &self.model);
        scaler.unscale(scaler.backward(loss, model), model).unwrap()
    }

    fn step(&mut self, poison: f32) {
        let [first, second] = self.losses();
        let grads = [self.unscaled(0, first), self.unscaled(1, second * poison)];
        for (scaler, grads) in self.scalers.iter_mut().zip(&grads) {
            scaler.observe(grads).unwrap();
            scaler.update().unwrap();
        }
        let [first, second] = grads;
        let sum = first.add_weighted(second, 1e-13);
        if !sum.has_overflow() {
            let (model, grads) = (self.model.clone(), sum.into_params());
            self.model = self.optim.step(1e6, model, grads);
        }
    }
}

#[test]
fn each_scale_follows_its_own_loss() {
    let mut setup = Setup::new();
    setup.step(1.0);
    // Both count: 1e6 times 1e-9, and 1e4 * 1e-13.
    let after = setup.model.values();
    let is_near = |value: &f64| (value / -2e-3 - 1.0).abs() < 1e-3;
    assert!(after[6..].iter().all(is_near), "{after:?}");

    // An overflow of the second skips the step and lowers its scale alone.
    setup.step(f32::INFINITY);
    assert_eq!(setup.model.values(), after);
    let outcomes = setup.scalers.each_ref().map(GradScaler::last_outcome);
    assert_eq!(outcomes, [false, true].map(outcome).map(Some));
    assert_eq!(setup.scalers[1].loss_scale(), 0.5);
    assert_eq!(setup.scalers[0].growth_tracker(), 2);
    setup.step(1.0);
    assert_ne!(setup.model.values(), after);
    let scales = setup.scalers.each_ref().map(GradScaler::loss_scale);
    assert_eq!(scales, [2f32.powi(25), 0.5]);
}

#[test]
fn with_one_scale_for_both_one_of_them_is_lost() {
    let setup = Setup::new();
    let [first, second] = setup.losses();
    assert!(setup.unscaled(1, first).status().is_all_zero());
    assert!(setup.unscaled(0, second).has_overflow());
}
