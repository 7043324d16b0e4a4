//! What a program without a logger gets to read.

use burn_amp_tests::prelude::*;
use std::process::Command;

const CHILD: &str = "BURN_AMP_TEST_WITHOUT_LOGGER";

/// What a test says to standard error in a process of its own.
fn told_by_child(name: &str) -> String {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let told = String::from_utf8(child.stderr).unwrap();
    assert!(child.status.success(), "{told}");
    told
}

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
    let told = told_by_child(name);
    let first = told.lines().find(|line| line.starts_with("burn-amp: "));
    says(&first.unwrap(), ["burn-amp: no `autocast`"]);
    says(
        &told,
        [
            "`env_logger::Builder::from_env(",
            "default_filter_or(\"warn\")",
        ],
    );
    assert_eq!(
        told.lines()
            .filter(|line| line.starts_with("burn-amp: "))
            .count(),
        2,
        "{told}"
    );
}

/// A bare `autocast` runs in f32. That is a mistake only in a program that computes in half precision, and is said once.
#[test]
fn a_bare_autocast_is_warned_of_where_half_precision_exists() {
    if std::env::var_os(CHILD).is_some() {
        let twice = || autocast(Tensor::<1>::ones([1], &Device::flex()), |x| x * 2.0);
        drop([twice(), MixedPrecision::f32().autocast(twice(), |x| x)]);
        eprintln!("f16 from here on");
        let _amp = MixedPrecision::f16();
        drop([twice(), twice()]);
        return;
    }
    let told = told_by_child(
        "precision::logger::a_bare_autocast_is_warned_of_where_half_precision_exists",
    );
    let (before, after) = told.split_once("f16 from here on").unwrap();
    let warnings = |told: &str| told.matches("`autocast(input, ..)` runs in f32").count();
    assert_eq!((warnings(before), warnings(after)), (0, 1), "{told}");
}
