//! A loss that is taken inside `autocast`, in f16: its gradient is the scale, infinite there until the scale fits.

use burn_amp_tests::prelude::*;
use std::{env, process::Command};

fn train() {
    let device = Device::flex().autodiff();
    let config = at_scale(262144.0);
    let amp = MixedPrecision::f16().with_scaler(config).unwrap();
    let linear: Linear = LinearConfig::new(3, 1).init(&device);
    let mut model = linear.apply_reparameterization(amp.clone());
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), &amp);

    let input = Tensor::<2>::ones([1, 3], &device);
    let mut scales = Vec::new();
    for _ in 0..5 {
        scales.push(amp.loss_scale());
        let loss = amp.autocast(input.clone(), |x| model.forward(x).sum());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(0.01, model, grads);
    }
    // 32768 is the largest power of two that f16 holds.
    assert_eq!(scales, [262144.0, 131072.0, 65536.0, 32768.0, 32768.0]);
    assert_eq!(optim.scaler().counters().skipped(), 3);
    assert_eq!(optim.scaler().last_status().unwrap().max_abs(), 1.0);
}

#[test]
fn the_scale_comes_down_to_what_f16_holds() {
    train();
}

/// Set in the process that looks for the log line.
const CHILD: &str = "BURN_AMP_TEST_CHILD";

/// Said once in a process, which another test may have made it say already: looked for in a process of its own.
#[test]
fn the_log_says_to_take_it_outside() {
    let output = Command::new(env::current_exe().unwrap())
        .args([
            "precision::half_loss::says_it",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
#[ignore = "run by the test above"]
fn says_it() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let said = |action: &mut dyn FnMut()| {
        let lines = logs("single F16 value", action).into_iter();
        lines.filter(|line| line.contains("outside")).count()
    };
    let device = Device::flex().autodiff();
    let amp = MixedPrecision::f16();
    // Many values, or one without gradients, are no loss.
    let none = said(&mut || {
        let many = Tensor::<1>::ones([2], &device).require_grad();
        drop(amp.autocast(many, |x| x));
        drop(amp.autocast(Tensor::<1>::ones([1], &device), |x| x));
    });
    assert_eq!(none, 0);
    assert_eq!(said(&mut train), 1);
}
