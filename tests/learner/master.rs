//! Models whose parameters are f16 themselves.

use burn::{
    lr_scheduler::constant::ConstantLr,
    optim::AdamConfig,
    tensor::{DType, Device},
    train::metric::LossMetric,
};
use burn_amp::{GradScalerConfig, LossScaleMetric, MasterWeights, ScaledOptimizer};

use crate::support::{Net, Run, read_metric};

#[test]
fn master_weights_train_half_parameters_in_a_learner() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::with_half_parameters(&Device::flex().autodiff());
    let config = AdamConfig::new().with_epsilon(1e-5);
    let optim = MasterWeights::new(config.build()).init();
    let optim = ScaledOptimizer::new(optim, GradScalerConfig::new().init().unwrap());
    let monitor = optim.monitor();
    let learner = optim.into_learner(net, ConstantLr::new(0.02));
    let result = Run::default()
        .training(folder.path())
        .metrics((LossMetric::new(),))
        .metric_train_numeric(LossScaleMetric::new(&monitor))
        .launch(learner);
    assert!(result.error.is_none());
    let counters = result.model.scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (24, 0));
    assert_eq!(result.model.inner().hidden.weight.val().dtype(), DType::F16);

    let accuracy = read_metric(folder.path(), 4, "Accuracy");
    let last: f64 = accuracy
        .last()
        .unwrap()
        .trim_end_matches(",final")
        .parse()
        .unwrap();
    assert!(last > 95.0, "{accuracy:?}");
}
