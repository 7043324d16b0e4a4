//! Faults of the kinds that users have met, one in each program.

use burn::tensor::activation::{relu, softmax};
use burn_amp_report::{Audit, probed};
use burn_amp_tests::{fill, prelude::*};

use crate::network::{Between, Network, at, audit_of, audit_with, batch, f16, loss, same};

fn is_half(x: &Tensor<2>) -> bool {
    x.dtype() != DType::F32
}

const RAISE: &str = "underflow, raise_to";
const LOWER: &str = "backward_overflow, lower_to";
const BACKWARD: &str = "backward_overflow";
const FORWARD: &str = "forward_overflow";
const IN_HALF: &str = "loss_in_half";
const BACKEND: &str = "backend";

/// The kind of an audit's verdict, which scale it advises, and the layers that it would run in f32.
fn found(audit: &Audit) -> String {
    let verdict = serde_json::to_value(audit.verdict()).unwrap();
    let mut found = vec![verdict["kind"].as_str().unwrap()];
    let scales = ["raise_to", "lower_to"].into_iter();
    found.extend(scales.filter(|scale| verdict[scale].is_number()));
    let layers = verdict["in_f32"].as_array().into_iter().flatten();
    found.extend(layers.map(|layer| layer.as_str().unwrap()));
    found.join(", ")
}

/// The fault, and what is found.
type Planted = (&'static str, &'static str, fn() -> Audit);

/// Faults between two layers of a network in f16 that is healthy elsewhere: there, f32 helps.
const BETWEEN: [(&str, &str, Between); 10] = [
    ("a mask of -1e9, multiplied and added", FORWARD, |x| {
        let hidden = x.clone().lower_elem(0.1).float().cast(x.dtype());
        softmax(x + hidden * -1e9, 1)
    }),
    ("attention logits that explode", FORWARD, |x| {
        let x = x * 200.0;
        let logits = x.clone().matmul(x.clone().transpose());
        softmax(logits * 1e-5, 1).matmul(x) / 200.0
    }),
    ("a norm in f16, whose squares overflow", FORWARD, |x| {
        let x = x * 1000.0;
        let square = x.clone().square().mean_dim(1);
        x / (square + 1e-5).sqrt()
    }),
    ("a gradient that is zero in f16", BACKEND, without_gradient),
    ("a kernel that is wrong in f16", FORWARD, |x| {
        let factor = if is_half(&x) { 3.0 } else { 1.0 };
        x * factor
    }),
    ("a kernel that flushes subnormals", FORWARD, |x| {
        let mut x = x * 2e-5;
        if x.dtype() == DType::F16 {
            let tiny = x.clone().abs().lower_elem(6.1e-5);
            x = x.mask_fill(tiny, 0.0);
        }
        x * 5e4
    }),
    ("an epsilon that is zero in f16", FORWARD, |x| {
        let x = relu(x - 2.0);
        x.clone() / (x.sum_dim(1) + 1e-8)
    }),
    ("a sum of many values", FORWARD, |x| {
        let many = x.clone().repeat_dim(1, 5000) + 1.0;
        let [_, count] = many.dims();
        x + many.sum_dim(1) / count as f32
    }),
    ("an exponential", FORWARD, |x| {
        (x + 12.0).exp().log1p() * 0.1
    }),
    ("a root of what is zero in f16 alone", BACKWARD, |x| {
        x.clone() + (x.square() * 1e-10 + 1e-12).sqrt()
    }),
];

/// Other faults.
const PLANTED: [Planted; 15] = [
    ("underflow in one layer", RAISE, || {
        audit_with(&at(1.0), |x| sigmoid(x * 1e-2) * 1e-3, loss)
    }),
    ("a deep network without a scale", RAISE, || {
        audit_with(&at(1.0), |x| sigmoid(x * 0.01), |y| loss(y) * 1e-4)
    }),
    ("a scale that is far too high", LOWER, || {
        audit_with(&at(2f64.powi(40)), same, loss)
    }),
    ("a loss that is a sum of large squares", LOWER, || {
        audit_with(&f16(), same, |y| (y * 10.0).square().sum())
    }),
    ("a loss taken inside autocast", IN_HALF, || {
        audit_of(Network::new(), |amp, m| {
            amp.autocast(batch(), |x| loss(m.forward(x, same)))
        })
    }),
    ("a loss of outputs carried out of autocast", IN_HALF, || {
        audit_of(Network::new(), |amp, m| loss(carried(amp, m, same)))
    }),
    ("a layer that is dead", "dead", || {
        audit_with(&f16(), |x| relu(x - 100.0), loss)
    }),
    ("NaN in the data", "not_finite", nan_in_the_data),
    ("NaN in a parameter", "not_finite", || {
        audit_of(multiplied(f64::NAN), |amp, m| loss_on(batch(), amp, m))
    }),
    ("a tensor that leaves autocast by hand", "leak", || {
        let by_hand = |output: Tensor<2>| output.cast(FloatDType::F32);
        audit_of(Network::new(), |amp, m| loss(carried(amp, m, by_hand)))
    }),
    ("a weight above 65504", "forward_overflow, second", || {
        audit_of(multiplied(1e6), |amp, m| {
            loss(amp.autocast(batch(), |x| {
                let x = probed("first", x, |x| m.first.forward(x));
                let x = probed("second", x, |x| m.second.forward(x * 1e-3) * 1e-5);
                probed("third", x, |x| m.third.forward(x))
            }))
        })
    }),
    ("inputs that are not normalized", FORWARD, || {
        audit_of(Network::new(), |amp, m| {
            loss(amp.autocast(batch() * 1e6, |x| m.forward(x, same)) * 1e-6)
        })
    }),
    ("gradients that no scale holds", "underflow, far", span),
    ("a small factor, in bf16", "fine", || {
        audit_with(&MixedPrecision::bf16(), |x| (x * 1e-9) * 1e9, loss)
    }),
    (
        "too few digits in bf16",
        "forward_overflow, between",
        || audit_with(&MixedPrecision::bf16(), |x| (x + 512.0) - 512.0, loss),
    ),
];

/// An output that leaves `autocast` in a variable.
fn carried(amp: &MixedPrecision, model: &Network, leave: Between) -> Tensor<2> {
    let mut output = None;
    amp.autocast(batch(), |x| output = Some(leave(model.forward(x, same))));
    output.unwrap()
}

pub fn without_gradient(x: Tensor<2>) -> Tensor<2> {
    match is_half(&x) {
        true => x.clone().detach() + (x.clone() - x.detach()) * 0.0,
        false => x,
    }
}

/// With gradients that are right.
pub fn another_loss() -> Audit {
    audit_of(Network::new(), |amp, m| {
        let mut off = 0.0;
        let output = amp.autocast(batch(), |x| {
            off = f32::from(u8::from(is_half(&x)));
            m.forward(x, same)
        });
        loss(output) + off
    })
}

pub fn nan_in_the_data() -> Audit {
    let batch = batch().slice_fill([0..1, 0..1], f32::NAN);
    audit_of(Network::new(), |amp, m| loss_on(batch.clone(), amp, m))
}

fn loss_on(batch: Tensor<2>, amp: &MixedPrecision, model: &Network) -> Tensor<1> {
    loss(amp.autocast(batch, |x| model.forward(x, same)))
}

/// One branch has gradients near the top, the other ones below the bottom at the same scale.
fn span() -> Audit {
    let small = |x: Tensor<2>| (0..4).fold(x, |x, _| x * 1e-3) + 1.0;
    audit_of(Network::new(), |amp, m| {
        let (near, far) = amp.autocast(batch(), |x| {
            let far = probed("far", x.clone(), |x| small(m.first.forward(x)));
            (probed("near", x, |x| m.second.forward(x)), far)
        });
        (near * 1e2).square().sum()
            + (far * 1e-1).sum()
            + loss(amp.autocast(batch(), |x| m.third.forward(x))) * 1e3
    })
}

/// The second layer's parameters are multiplied.
fn multiplied(factor: f64) -> Network {
    let mut model = Network::new();
    model.second = fill(model.second, 2000, 0.2 * factor as f32);
    model
}

#[test]
fn planted_defects_are_distinguished() {
    let mut missed = Vec::new();
    let mut check = |what: &str, expected: &str, audit: Audit| {
        if found(&audit) != expected {
            missed.push(format!("{what}: expected {expected}\n{audit}"));
        }
    };
    for (what, kind, between) in BETWEEN {
        let audit = audit_with(&f16(), between, loss);
        check(what, &format!("{kind}, between"), audit);
    }
    for (what, expected, audit) in PLANTED {
        check(what, expected, audit());
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
