//! One scaler for each loss, as Apex's `num_losses`: losses whose gradients differ by many orders of magnitude in f16.

use crate::support::*;

struct Setup {
    /// Computes in f16 and does not scale: the scalers do.
    f16: MixedPrecision,
    model: Linear,
    optim: ModuleOptimizer,
    scalers: [GradScaler; 2],
}

impl Setup {
    fn new() -> Self {
        let device = Device::default().autodiff();
        let layer: Linear = filled(LinearConfig::new(4, 4).with_bias(false).init(&device), 0);
        let scaler = |scale: f64| {
            let config = GradScalerConfig::new().with_growth_interval(3);
            config.with_init_scale(scale).init().unwrap()
        };
        let off = GradScalerConfig::new().with_enabled(false);
        let f16 = MixedPrecision::f16().with_scaler(off).unwrap();
        Self {
            model: layer.apply_reparameterization(f16.clone()),
            f16,
            optim: SgdConfig::new().init(),
            // The first loss has gradients of about 1e-9, the second of about 1e4.
            scalers: [scaler(2f64.powi(24)), scaler(1.0)],
        }
    }

    fn losses(&self) -> [Tensor<1>; 2] {
        // A forward pass each: Burn's `backward` uses the graph up.
        let output = || {
            let data = TensorData::new((1..=8).map(|v| v as f32 * 0.25).collect(), [2, 4]);
            let input = Tensor::<2>::from_data(data, &Device::default().autodiff());
            self.f16.autocast(input, |x| self.model.forward(x)).sum()
        };
        [output() * 1e-9, output() * 1e4]
    }

    fn step(&mut self, poison: [f32; 2]) {
        let [first, second] = self.losses();
        let [a, b] = &mut self.scalers;
        let first = unscaled(a, first * poison[0], &self.model);
        let second = unscaled(b, second * poison[1], &self.model);
        a.observe(&first).unwrap();
        b.observe(&second).unwrap();
        let sum = first.add_weighted(second, 1e-13);
        if !sum.has_overflow() {
            let grads = sum.into_params();
            let model = self.model.clone();
            self.model = ModuleOptim::step(&mut self.optim, 1e6.into(), model, grads);
        }
        a.update().unwrap();
        b.update().unwrap();
    }
}

/// The gradients of a loss that this scaler scales.
fn unscaled(scaler: &GradScaler, loss: Tensor<1>, model: &Linear) -> UnscaledGradients {
    let grads = scaler.backward(loss, model);
    scaler.unscale(grads, model).unwrap()
}

#[test]
fn each_scale_follows_its_own_loss() {
    let mut setup = Setup::new();
    let before = values(setup.model.weight.base());
    setup.step([1.0, 1.0]);
    // Both count: the input's sums over the batch, times 1e-9 and 1e4 * 1e-13.
    let sums = [1.5f32, 2.0, 2.5, 3.0];
    let after = values(setup.model.weight.base());
    for (index, (before, after)) in before.iter().zip(after).enumerate() {
        let found = f64::from(before - after);
        let moved = 1e6 * 2e-9 * f64::from(sums[index / 4]);
        let is_near = (found - moved).abs() < 1e-3 * moved + 1e-7;
        assert!(is_near, "{found} {moved}");
    }

    // An overflow of the second skips the step and lowers its scale alone.
    let model = parameters(&setup.model);
    setup.step([1.0, f32::INFINITY]);
    assert_eq!(parameters(&setup.model), model);
    assert_eq!(setup.scalers[0].last_outcome(), Some(StepOutcome::Stepped));
    assert_eq!(setup.scalers[1].last_outcome(), Some(StepOutcome::Skipped));
    assert_eq!(setup.scalers[1].loss_scale(), 0.5);
    assert_eq!(setup.scalers[0].growth_tracker(), 2);
    setup.step([1.0, 1.0]);
    assert_ne!(parameters(&setup.model), model);
    assert_eq!(setup.scalers[0].loss_scale(), 2f32.powi(25));
    assert_eq!(setup.scalers[1].loss_scale(), 0.5);
}

#[test]
fn with_one_scale_for_both_one_of_them_is_lost() {
    let setup = Setup::new();
    let [first, second] = setup.losses();
    let gradients = |loss, scale| {
        let config = at_scale(scale);
        unscaled(&config.init().unwrap(), loss, &setup.model)
    };
    assert!(gradients(first, 1.0).status().is_all_zero());
    assert!(gradients(second, 2f64.powi(24)).has_overflow());
}

#[test]
fn observing_twice_needs_an_update_between() {
    let mut setup = Setup::new();
    let [first, _] = setup.losses();
    let scaler = &mut setup.scalers[0];
    let grads = unscaled(scaler, first, &setup.model);
    assert_eq!(scaler.observe(&grads), Ok(StepOutcome::Stepped));
    assert!(scaler.observe(&grads).is_err());
    scaler.update().unwrap();
    assert_eq!(scaler.observe(&grads), Ok(StepOutcome::Stepped));
    assert_eq!(scaler.counters().steps(), 2);
}
