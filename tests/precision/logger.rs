//! What a program without a logger gets to read.

use burn_amp_tests::prelude::*;

/// The first warning, and how to see the others.
#[test]
fn without_a_logger_the_first_warning_is_printed() {
    let name = "without_a_logger_the_first_warning_is_printed";
    let Some(told) = said_in_child(module_path!(), name) else {
        // No gradient at all, and then no scope: two warnings.
        let model = LinearConfig::new(2, 2).init(&flex());
        let (mut model, mut optim) = MixedPrecision::f16().prepare(model, SgdConfig::new().init());
        model = optim.step(0.1, model, GradientsParams::new());
        let loss = model.forward(Tensor::<2>::ones([1, 2], &flex())).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optim.step(0.1, model, grads);
        return;
    };
    let ours = told.lines().filter(|line| line.starts_with("burn-amp: "));
    let ours: Vec<&str> = ours.collect();
    assert_eq!(ours.len(), 2, "{told}");
    says(ours[0], ["burn-amp: no `autocast`"]);
    let logger = "`env_logger::Builder::from_env(";
    says(&told, [logger, "default_filter_or(\"warn\")"]);
}

/// A bare `autocast` runs in f32. That is a mistake only in a program that computes in half precision, and is said once.
#[test]
fn a_bare_autocast_is_warned_of_beside_half_precision() {
    let name = "a_bare_autocast_is_warned_of_beside_half_precision";
    let Some(told) = said_in_child(module_path!(), name) else {
        let twice = || autocast(Tensor::<1>::ones([1], &Device::flex()), |x| x * 2.0);
        drop([twice(), MixedPrecision::f32().autocast(twice(), |x| x)]);
        eprintln!("f16 from here on");
        let _amp = MixedPrecision::f16();
        drop([twice(), twice()]);
        return;
    };
    let (before, after) = told.split_once("f16 from here on").unwrap();
    let warnings = |told: &str| told.matches("`autocast(input, ..)` runs in f32").count();
    assert_eq!((warnings(before), warnings(after)), (0, 1), "{told}");
}
