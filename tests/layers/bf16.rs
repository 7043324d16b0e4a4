//! bf16: said to need no scaling, and trains the same with it and without.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::AdamConfig,
    tensor::{Device, FloatDType, activation::tanh},
};
use burn_amp::{GradScalerConfig, MixedPrecision, ScaledOptimizer};

use crate::support::{fill, logs, parameters, tensor};

/// Set in the process that looks for the log line.
const CHILD: &str = "BURN_AMP_TEST_CHILD";

/// Said once in a process, when the first `MixedPrecision` for bf16 is built: another test may have built it before
/// the logger was there, so the line is looked for in a process of its own.
#[test]
fn the_log_says_that_scaling_is_usually_unnecessary() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["bf16::says_it", "--exact", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
#[ignore = "run by the test above"]
fn says_it() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let none = logs("bf16", || drop(MixedPrecision::f16()));
    assert!(none.is_empty(), "{none:?}");
    let lines = logs("bf16", || {
        MixedPrecision::bf16();
        MixedPrecision::bf16();
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("INFO"), "{lines:?}");
    assert!(lines[0].contains("usually unnecessary"), "{lines:?}");
}

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    head: Linear,
}

/// The parameters after some steps.
fn train(enabled: bool) -> Vec<(String, Vec<f32>, bool)> {
    let device = Device::flex().autodiff();
    let bf16 = MixedPrecision::bf16();
    let net = Net {
        hidden: LinearConfig::new(6, 8).init(&device),
        head: LinearConfig::new(8, 2).init(&device),
    };
    let mut net = fill(net).apply_reparameterization(bf16.clone());
    let scaler = GradScalerConfig::new().with_enabled(enabled);
    let mut optim = ScaledOptimizer::new(AdamConfig::new().init(), scaler.init().unwrap());
    for _ in 0..10 {
        let input = bf16.cast(tensor([5, 6], &device));
        let output = net.head.forward(tanh(net.hidden.forward(input)));
        let loss = output.cast(FloatDType::F32).square().mean();
        let grads = optim.backward(loss, &net);
        net = optim.step(0.01, net, grads);
    }
    assert_eq!(optim.scaler().counters().applied(), 10);
    parameters(&net)
}

/// A power of two only moves the exponent, of which bf16 has as many bits as f32.
#[test]
fn scaling_changes_nothing() {
    let scaled = train(true);
    assert_eq!(scaled, train(false));
    let start = fill(LinearConfig::new(6, 8).init(&Device::flex().autodiff()));
    assert!(
        scaled[0].1 != parameters(&start)[0].1,
        "nothing was trained"
    );
}
