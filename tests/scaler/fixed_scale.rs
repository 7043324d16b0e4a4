//! A static scale: overflowing steps are skipped, and the scale stays.

use burn::optim::SgdConfig;
use burn_amp::{GradScaler, GradScalerConfig, StepOutcome};

use crate::support::Model;

fn check(mut scaler: GradScaler) {
    let mut sgd = SgdConfig::new().init();
    let mut model = Model::new();
    for step in 0..20 {
        let overflow = step % 3 == 0;
        let grads = if overflow {
            model.overflowing(512.0)
        } else {
            model.clean(512.0)
        };
        let grads = scaler.unscale(grads, &model);
        let before = model.values();
        model = scaler.step(&mut sgd, 0.01, model, grads);
        let expected = if overflow {
            StepOutcome::Skipped
        } else {
            StepOutcome::Stepped
        };
        assert_eq!(scaler.update(), Some(expected));
        assert_eq!(before == model.values(), overflow);
        assert_eq!(scaler.loss_scale(), 512.0);
        assert_eq!(scaler.growth_tracker(), 0);
    }
    assert_eq!(scaler.counters().skipped(), 7);
}

#[test]
fn a_static_scale_stays() {
    let config = GradScalerConfig::new()
        .with_init_scale(512.0)
        .with_dynamic(false)
        .with_growth_interval(1);
    let scaler = config.init().unwrap();
    assert!(!scaler.config().dynamic);
    check(scaler);
}
