//! What a program without a logger gets to read.

use burn_amp_tests::prelude::*;

/// The first warning, and how to see the others.
#[test]
fn without_a_logger_the_first_warning_is_printed() {
    let name = "without_a_logger_the_first_warning_is_printed";
    let Some(printed) = said_in_child(module_path!(), name) else {
        // No gradient at all, and then no scope: two warnings.
        let model: Linear = LinearConfig::new(2, 2).init(&flex());
        let mut run = Player::new(model, &MixedPrecision::f16());
        run.step(0.1, GradientsParams::new());
        let output = run.model.forward(Tensor::<2>::ones([1, 2], &flex()));
        run.train(0.1, output.sum());
        return;
    };
    assert_eq!(printed.matches("burn-amp: ").count(), 2, "{printed}");
    let logger = "`env_logger::Builder::from_env(";
    let warn = "default_filter_or(\"warn\")";
    says(&printed, ["burn-amp: no `autocast`", logger, warn]);
}

/// A bare `autocast` runs in f32. That is a mistake only in a program that computes in half precision, and is said once.
#[test]
fn a_bare_autocast_is_warned_of_beside_half_precision() {
    let name = "a_bare_autocast_is_warned_of_beside_half_precision";
    let Some(printed) = said_in_child(module_path!(), name) else {
        let twice = || autocast(Tensor::<1>::ones([1], &Device::flex()), |x| x * 2.0);
        drop([twice(), MixedPrecision::f32().autocast(twice(), |x| x)]);
        eprintln!("f16 from here on");
        let _amp = MixedPrecision::f16();
        drop([twice(), twice()]);
        return;
    };
    let (before, after) = printed.split_once("f16 from here on").unwrap();
    let warnings = |printed: &str| printed.matches("`autocast(input, ..)` runs in f32").count();
    assert_eq!((warnings(before), warnings(after)), (0, 1), "{printed}");
}
