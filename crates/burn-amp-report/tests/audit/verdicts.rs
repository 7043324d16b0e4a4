//! Each verdict on twenty programs or more, of which half precision does the same thing in another way or at another size.

use burn::tensor::activation::{gelu, log_softmax, relu, silu, softmax, tanh};
use burn::tensor::module::layer_norm;
use burn_amp_report::Audit;
use burn_amp_tests::prelude::*;

use crate::network::{Between, Network, at, audit_of, audit_with, batch, f16, loss, same};

/// What was audited, and what was found.
type Cases = Vec<(String, Audit)>;

/// Makes a loss of an output.
type Reduction = fn(Tensor<2>) -> Tensor<1>;

/// All of them get this verdict, and there are enough of them.
fn all_are(kind: &str, cases: Cases) {
    assert!(cases.len() >= 20, "{}", cases.len());
    let found = |audit: &Audit| serde_json::to_value(audit.verdict()).unwrap();
    let missed = (cases.iter()).filter(|(_, audit)| found(audit)["kind"] != kind);
    let missed: Vec<_> = missed
        .map(|(what, audit)| format!("{what}:\n{audit}"))
        .collect();
    assert!(
        missed.is_empty(),
        "{} are not {kind}\n{}",
        missed.len(),
        missed.join("\n")
    );
}

/// A network without probes.
fn plain(
    amp: &MixedPrecision,
    model: &Network,
    x: Tensor<2>,
    between: impl Fn(Tensor<2>) -> Tensor<2>,
) -> Tensor<2> {
    amp.autocast(x, |x| {
        let x = between(relu(model.first.forward(x)));
        model.third.forward(relu(model.second.forward(x)))
    })
}

fn unprobed(between: impl Fn(Tensor<2>) -> Tensor<2>) -> Audit {
    audit_of(Network::new(), |amp, m| {
        loss(plain(amp, m, batch(), &between))
    })
}

fn is_half(x: &Tensor<2>) -> bool {
    x.dtype() != DType::F32
}

/// Written by hand as in many models: `[samples, 16]` over the last dimension.
const NORMS: [(&str, Between); 5] = [
    ("x / sqrt(mean)", |x| {
        let mean = x.clone().square().mean_dim(1);
        x / (mean + 1e-5).sqrt()
    }),
    ("x * recip", |x| {
        let mean = x.clone().powf_scalar(2.0).mean_dim(1);
        x * (mean + 1e-5).sqrt().recip()
    }),
    ("the function layer_norm", |x| {
        let ones = Tensor::<1>::ones([16], &x.device()).cast(x.dtype());
        layer_norm(x, ones, None, 1e-5)
    }),
    ("variance", |x| {
        let (variance, mean) = x.clone().var_mean_bias(1);
        (x - mean) / (variance + 1e-5).sqrt()
    }),
    ("in a residual", |x| {
        let mean = x.clone().square().mean_dim(1);
        x.clone() / 50000.0 + x / (mean + 1e-5).sqrt()
    }),
];

#[test]
fn norms_that_return_zeros_are_no_fault_of_the_backend() {
    let mut cases = Cases::new();
    for (norm, between) in NORMS {
        for size in [1500.0, 6000.0, 20000.0] {
            let grown = |x: Tensor<2>| between((x + 0.5) * size);
            let named = |where_| format!("{norm} of {size}, {where_}");
            cases.push((named("probed"), audit_with(&f16(), grown, loss)));
            cases.push((named("unprobed"), unprobed(grown)));
        }
    }
    all_are("forward_overflow", cases);
}

/// A physics-informed network: derivatives of its output by its input, as differences.
fn physics(order: u32, step: f64) -> Audit {
    audit_of(Network::new(), |amp, m| {
        let at = |shift: f64| plain(amp, m, batch() + shift, tanh);
        let derivative = match order {
            1 => (at(step) - at(-step)) / (2.0 * step),
            _ => (at(step) - at(0.0) * 2.0 + at(-step)) / (step * step),
        };
        (derivative + 1.0).square().mean()
    })
}

/// Values that are lost in the forward pass, or in what the loss makes of them.
const LOST: [(&str, Between); 14] = [
    ("cancels at 1e4", |x| (x + 1e4) - 1e4),
    ("cancels at 3e4", |x| (x + 3e4) - 3e4),
    ("cancels, and keeps another branch", |x| {
        x.clone().slice_fill(0..16, 0.5) + (x * 1.5 + 3e4) - 3e4
    }),
    ("underflows", |x| (x * 1e-9) * 1e9),
    ("squares of 300", |x| {
        ((x + 1.0) * 300.0).square().sqrt() / 300.0
    }),
    ("exp", |x| (x + 12.0).exp().log()),
    ("exp of -20", |x| (x - 20.0).exp().log() + 20.0),
    ("a softmax by hand", |x| {
        let e = ((x + 0.5) * 30.0).exp();
        e.clone() / e.sum_dim(1)
    }),
    ("infinities that cancel", |x| {
        softmax((x * 1e5).clamp_min(-1e5), 1)
    }),
    ("sum / n", |x| {
        let many = x.repeat_dim(1, 4000) + 2.0;
        let [_, count] = many.dims();
        many.sum_dim(1).repeat_dim(1, 16) / count as f32
    }),
    ("a product", |x| {
        let product = (x.clone() + 3.0).cumprod(1);
        x + product / 1e7
    }),
    ("an epsilon of 1e-8", |x| {
        let x = relu(x - 2.0);
        x.clone() / (x.sum_dim(1) + 1e-8)
    }),
    ("a large logit by large keys", |x| {
        let x = x * 200.0;
        let logits = x.clone().matmul(x.clone().transpose()) / 1e4;
        softmax(logits, 1).matmul(x) / 200.0
    }),
    ("a difference quotient", |x| {
        let f = |x: Tensor<2>| tanh(x);
        (f(x.clone() + 1e-4) - f(x)) / 1e-4
    }),
];

#[test]
fn values_lost_in_forward_are_no_fault_of_the_backend() {
    let mut cases = Cases::new();
    for (order, step) in [(1, 1e-4), (1, 1e-5), (2, 3e-2), (2, 1e-2), (2, 1e-4)] {
        let what = format!("a derivative of order {order}, step {step}");
        cases.push((what, physics(order, step)));
    }
    for (what, between) in LOST {
        cases.push((what.to_string(), audit_with(&f16(), between, loss)));
        cases.push((format!("{what}, unprobed"), unprobed(between)));
    }
    all_are("forward_overflow", cases);
}

#[test]
fn what_f16_holds_is_fine() {
    let healthy: [(&str, Between); 7] = [
        ("nothing", same),
        ("gelu", |x| gelu(x * 10.0) / 10.0),
        ("silu", |x| silu(x * 10.0) / 10.0),
        ("softmax", |x| softmax(x * 5.0, 1)),
        ("log_softmax", |x| log_softmax(x, 1)),
        ("a norm", |x| NORMS[0].1(x + 1.0)),
        ("a mean of many", |x| {
            x.clone() + x.repeat_dim(1, 300).mean_dim(1)
        }),
    ];
    let mut cases = Cases::new();
    for (what, between) in healthy {
        for amp in [at(1024.0), at(16384.0), MixedPrecision::bf16()] {
            let dtype = amp.dtype();
            cases.push((
                format!("{what} in {dtype:?}"),
                audit_with(&amp, between, loss),
            ));
        }
    }
    all_are("fine", cases);
}

#[test]
fn gradients_below_f16_underflow() {
    let mut cases = Cases::new();
    for weight in [1e-4, 1e-5, 1e-6, 1e-7, 1e-8] {
        let small = |y: Tensor<2>| loss(y) * weight;
        let flat = |x: Tensor<2>| sigmoid(x * 0.01);
        for scale in [1.0, 4.0] {
            let named = |what: &str| format!("{what}, a loss times {weight} at {scale}");
            let tanhs = |x: Tensor<2>| tanh(x * 0.1) * 0.1;
            cases.push((named("sigmoid"), audit_with(&at(scale), flat, small)));
            cases.push((named("tanh"), audit_with(&at(scale), tanhs, small)));
        }
    }
    all_are("underflow", cases);
}

#[test]
fn gradients_above_f16_overflow() {
    let mut cases = Cases::new();
    for exponent in [30, 34, 38, 42] {
        for (what, between) in [("nothing", same as Between), ("tanh", tanh), ("gelu", gelu)] {
            let audit = audit_with(&at(2f64.powi(exponent)), between, loss);
            cases.push((format!("{what} at 2^{exponent}"), audit));
        }
    }
    // A divisor's gradient is divided by its square; a root's is infinite at zero. No scale helps, and the forward pass is right.
    for size in [300.0, 1000.0, 3000.0, 10000.0] {
        let divided =
            |x: Tensor<2>| (x.clone() * 0.2 + 1.5).recip() + size / (x * (0.3 * size) + size);
        cases.push((
            format!("divided by {size}"),
            audit_with(&f16(), divided, loss),
        ));
        let root = |x: Tensor<2>| x.clone() + (x / size).powf_scalar(4.0).sqrt();
        cases.push((
            format!("a root of fourth powers of 1/{size}"),
            audit_with(&f16(), root, loss),
        ));
    }
    // Of nearly equal gradients, which are subtracted.
    cases.push(("a derivative, step 1e-3".to_string(), physics(1, 1e-3)));
    all_are("backward_overflow", cases);
}

/// Operations whose forward pass is right and whose backward pass, in both half precisions, is that of something else.
const WRONG_BACKWARD: [(&str, Between); 5] = [
    ("zeros", |x| x.clone().slice_fill(0..32, 0.0)),
    ("three times", |x| x * 3.0),
    ("the sign", |x| -x),
    ("rows of others", |x| x.flip([0]) * 2.0),
    ("columns of others", |x| x.flip([1]) * 2.0),
];

/// `x`, with the gradient of another function of it.
fn with_backward_of(other: Between, x: Tensor<2>) -> Tensor<2> {
    match is_half(&x) {
        true => {
            let other = other(x.clone());
            x.detach() + (other.clone() - other.detach())
        }
        false => x,
    }
}

#[test]
fn a_wrong_backward_pass_of_both_half_precisions_is_of_the_backend() {
    let mut cases = Cases::new();
    for (what, other) in WRONG_BACKWARD {
        let wrong = |x: Tensor<2>| with_backward_of(other, x);
        for amp in [at(1024.0), at(16384.0), MixedPrecision::bf16()] {
            let named = format!("{what} in {:?}", amp.dtype());
            cases.push((named, audit_with(&amp, wrong, loss)));
        }
        let normed = |x: Tensor<2>| wrong(tanh(x) + 0.5);
        cases.push((
            format!("{what} after tanh"),
            audit_with(&at(1024.0), normed, loss),
        ));
        if what != "zeros" {
            cases.push((format!("{what}, unprobed"), unprobed(wrong)));
        }
    }
    all_are("backend", cases);
}

/// Zeros without a layer that loses them, and what f16 alone gets wrong: range, as far as anybody can see.
#[test]
fn what_range_may_explain_is_not_said_to_be_of_the_backend() {
    let zeros = WRONG_BACKWARD[0].1;
    let mut cases = Cases::new();
    cases.push((
        "zeros".to_string(),
        unprobed(|x| with_backward_of(zeros, x)),
    ));
    for (what, other) in WRONG_BACKWARD {
        let in_f16 = |x: Tensor<2>| match x.dtype() {
            DType::F16 => with_backward_of(other, x),
            _ => x,
        };
        for scale in [256.0, 1024.0, 4096.0, 16384.0] {
            let named = format!("{what} in f16 alone at {scale}");
            cases.push((named, audit_with(&at(scale), in_f16, loss)));
        }
    }
    all_are("backward_overflow", cases);
}

#[test]
fn what_is_not_finite_in_f32_is_no_fault_of_half_precision() {
    let broken: [(&str, Between); 6] = [
        ("a logarithm of zero", |x| x.clone() + (x * 0.0).log()),
        ("a root below zero", |x| (x - 100.0).sqrt()),
        ("a division by zero", |x| x.clone() / (x * 0.0)),
        ("an exponential", |x| (x + 200.0).exp()),
        ("a power", |x| (x + 1e20).powf_scalar(3.0)),
        ("the gradient of a root", |x| x.clone() + (x * 0.0).sqrt()),
    ];
    let mut cases = Cases::new();
    for (what, between) in broken {
        for amp in [f16(), at(1.0), MixedPrecision::bf16()] {
            let named = format!("{what} in {:?}", amp.dtype());
            cases.push((named, audit_with(&amp, between, loss)));
        }
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let data = batch().slice_fill([0..1, 0..1], value);
        let audit = audit_of(Network::new(), |amp, m| {
            loss(plain(amp, m, data.clone(), tanh))
        });
        cases.push((format!("{value} in the data"), audit));
    }
    all_are("not_finite", cases);
}

#[test]
fn gradients_of_zero_in_f32_too_are_dead() {
    let dead: [(&str, Between); 5] = [
        ("relu", |x| relu(x - 100.0)),
        ("a maximum", |x| x.clamp_max(-50.0) / 50.0),
        ("times zero", |x| x * 0.0),
        ("clamped", |x| (x - 50.0).clamp(-1.0, 1.0)),
        ("a sign", |x| x.sign()),
    ];
    let mut cases = Cases::new();
    for (what, between) in dead {
        for amp in [at(256.0), at(1024.0), at(16384.0), MixedPrecision::bf16()] {
            let named = format!("{what} in {:?} at {}", amp.dtype(), amp.loss_scale());
            cases.push((named, audit_with(&amp, between, loss)));
        }
    }
    all_are("dead", cases);
}

#[test]
fn a_loss_inside_is_named() {
    let losses: [(&str, Reduction); 5] = [
        ("mean", loss),
        ("sum", |y| y.sum()),
        ("abs", |y| y.abs().mean()),
        ("mean of means", |y| y.square().mean_dim(1).mean()),
        ("a logarithm", |y| -log_softmax(y, 1).mean()),
    ];
    let mut cases = Cases::new();
    for (what, loss) in losses {
        for between in [same as Between, tanh] {
            cases.push((
                what.to_string(),
                audit_of(Network::new(), |amp, m| {
                    amp.autocast(batch(), |x| loss(m.forward(x, between)))
                }),
            ));
            cases.push((
                format!("{what}, carried out"),
                audit_of(Network::new(), |amp, m| {
                    let mut carried = None;
                    amp.autocast(batch(), |x| carried = Some(loss(m.forward(x, between))));
                    carried.unwrap()
                }),
            ));
        }
    }
    all_are("loss_in_half", cases);
}

#[test]
fn a_tensor_that_leaves_by_hand_is_a_leak() {
    let mut cases = Cases::new();
    for scale in [64.0, 256.0, 1024.0, 4096.0, 16384.0] {
        for (what, between) in [
            ("nothing", same as Between),
            ("tanh", tanh),
            ("gelu", gelu),
            ("softmax", |x| softmax(x, 1)),
        ] {
            let amp = at(scale);
            let model = amp.attach(Network::new());
            let audit = burn_amp_report::audit(&model, &amp, |m: &Network| {
                let mut output = None;
                amp.autocast(batch(), |x| {
                    output = Some(m.forward(x, between).cast(FloatDType::F32));
                });
                loss(output.unwrap() * 8.0)
            });
            cases.push((format!("{what} at {scale}"), audit.unwrap()));
        }
    }
    all_are("leak", cases);
}
