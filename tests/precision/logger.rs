//! What a program without a logger gets to read.

use burn_amp_tests::prelude::*;
use std::process::Command;

const CHILD: &str = "BURN_AMP_TEST_WITHOUT_LOGGER";

/// The first warning, and how to see the others. In a process of its own: a logger can be installed only once.
#[test]
fn without_a_logger_the_first_warning_is_on_standard_error() {
    if std::env::var_os(CHILD).is_some() {
        // No gradient at all, and then no scope: two warnings.
        let amp = MixedPrecision::f16();
        let device = Device::flex().autodiff();
        let model = burn::nn::LinearConfig::new(2, 2).init(&device);
        let (mut model, mut optim) = amp.prepare(model, SgdConfig::new().init());
        model = optim.step(0.1, model, GradientsParams::new());
        let loss = model.forward(Tensor::<2>::ones([1, 2], &device)).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optim.step(0.1, model, grads);
        return;
    }
    let name = "precision::logger::without_a_logger_the_first_warning_is_on_standard_error";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let told = String::from_utf8(child.stderr).unwrap();
    assert!(child.status.success(), "{told}");
    says(&told, ["burn-amp: ", "`env_logger::init();` to `main`"]);
    assert_eq!(
        told.lines()
            .filter(|line| line.starts_with("burn-amp: "))
            .count(),
        2,
        "{told}"
    );
}
