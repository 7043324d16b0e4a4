//! Each verdict on twenty programs or more, of which half precision does the same thing in another way or at another size.

use burn::tensor::activation::{log_softmax, relu, tanh};
use burn_amp_report::{Audit, audit, probed};
use burn_amp_tests::{fill, prelude::*};
use std::convert::identity;

use crate::network::{Network, audit_of, batch, loss};
use crate::programs::*;

/// How a program is run.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// In f16, at a loss scale.
    At(f64),
    Bf16,
    /// Without probes, in f16.
    Unprobed,
    /// With the loss inside of autocast.
    Inside,
    /// With a loss that is carried out of it.
    LossOut,
    /// With an output that is carried out of it, in f16.
    OutputOut,
    /// With an output that leaves it by hand, in f32.
    Leak(f64),
}

use Way::*;

/// The scale of a run that says none.
pub const DEFAULT: Way = At(65536.0);

impl Way {
    /// Audits the network with something between its layers, on a loss of its output.
    pub fn audit(self, between: &dyn Fn(Tensor<2>) -> Tensor<2>, loss: &Loss) -> Audit {
        let amp = match self {
            At(scale) | Leak(scale) => f16_under(at_scale(scale)),
            Bf16 => MixedPrecision::bf16(),
            _ => MixedPrecision::f16(),
        };
        let forward = |m: &Network, x| m.forward(x, between);
        audit_of(&amp, Network::new(), |amp, m| match self {
            At(_) | Bf16 => loss(amp.autocast(batch(), |x| forward(m, x))),
            Unprobed => loss(plain(amp, m, batch(), between)),
            Inside => amp.autocast(batch(), |x| loss(forward(m, x))),
            LossOut => carried(amp, |x| loss(forward(m, x))),
            OutputOut => loss(carried(amp, |x| forward(m, x))),
            Leak(_) => loss(carried(amp, |x| forward(m, x).cast(FloatDType::F32))),
        })
    }
}

/// What leaves a scope in a variable.
fn carried<const D: usize>(
    amp: &MixedPrecision,
    make: impl FnOnce(Tensor<2>) -> Tensor<D>,
) -> Tensor<D> {
    let mut carried = None;
    amp.autocast(batch(), |x| carried = Some(make(x)));
    carried.unwrap()
}

/// A network without probes.
fn plain(
    amp: &MixedPrecision,
    model: &Network,
    x: Tensor<2>,
    between: &dyn Fn(Tensor<2>) -> Tensor<2>,
) -> Tensor<2> {
    amp.autocast(x, |x| {
        let x = between(relu(model.first.forward(x)));
        model.third.forward(relu(model.second.forward(x)))
    })
}

type Loss = dyn Fn(Tensor<2>) -> Tensor<1>;

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

/// What an audit finds, on which loss, of every one of the programs at every size in every way.
type Row<'a> = (&'a str, &'a Loss, &'a [Program], &'a [f64], &'a [Way]);

/// Of some rows, and of others by name, what is found is the kind, or with advice as [`found`] has it.
fn finds(rows: &[Row], others: &[(&str, &str, Audit)]) {
    let mut wrong = Vec::new();
    let mut check = |what: &str, finds: &str, audit: &Audit| {
        let found = found(audit);
        let kind = found.split(',').next().unwrap();
        if ![kind, &found].contains(&finds) {
            wrong.push(format!("{what}: {found}, and not {finds}\n{audit}"));
        }
    };
    for (finds, loss, programs, sizes, ways) in rows {
        for (what, between) in *programs {
            for size in *sizes {
                for way in *ways {
                    let audit = way.audit(&|x| between(x, *size), *loss);
                    check(&format!("{what}, {size}, {way:?}"), finds, &audit);
                }
            }
        }
    }
    for (finds, what, audit) in others {
        check(what, finds, audit);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A physics-informed network: derivatives of its output by its input, as differences.
fn physics(order: u32, step: f64) -> Audit {
    audit_of(&MixedPrecision::f16(), Network::new(), |amp, m| {
        let at = |shift: f64| plain(amp, m, batch() + shift, &tanh);
        let derivative = match order {
            1 => (at(step) - at(-step)) / (2.0 * step),
            _ => (at(step) - at(0.0) * 2.0 + at(-step)) / (step * step),
        };
        (derivative + 1.0).square().mean()
    })
}

/// Norms that return zeros, and other values that are lost, are no fault of the backend.
#[test]
fn values_lost_in_forward() {
    let (kind, overflow) = ("forward_overflow", "forward_overflow, between");
    let sizes = [1500.0, 6000.0, 20000.0];
    let rows: [Row; 5] = [
        (overflow, &loss, &NORMS, &sizes, &[DEFAULT]),
        (overflow, &loss, &LOST[..14], &[0.0], &[DEFAULT]),
        (kind, &loss, &LOST[14..], &[0.0], &[DEFAULT]),
        (kind, &loss, &NORMS, &sizes, &[Unprobed]),
        (kind, &loss, &LOST, &[0.0], &[Unprobed]),
    ];
    let derivatives = [(1, 1e-4), (1, 1e-5), (2, 3e-2), (2, 1e-2), (2, 1e-4)];
    let derivatives = derivatives.map(|(order, step)| (kind, "derivative", physics(order, step)));
    finds(&rows, &derivatives);
}

#[test]
fn what_half_precision_holds_is_fine() {
    let ways = [At(1024.0), At(16384.0), Bf16];
    finds(&[("fine", &loss, &FINE, &[0.0], &ways)], &[]);
}

#[test]
fn gradients_below_f16_underflow() {
    for weight in [1e-4, 1e-5, 1e-6, 1e-7, 1e-8] {
        let small = move |y: Tensor<2>| loss(y) * weight;
        let (finding, ways) = ("underflow, raise_to", [At(1.0), At(4.0)]);
        finds(&[(finding, &small, &FLAT, &[weight], &ways)], &[]);
    }
}

#[test]
fn gradients_above_f16_overflow() {
    let kind = "backward_overflow";
    let (lower, between) = ("backward_overflow, lower_to", "backward_overflow, between");
    let squares = |y: Tensor<2>| (y * 10.0).square().sum();
    let root: Program = ("a root of what is zero in f16", |x, _| {
        x.clone() + (x.square() * 1e-10 + 1e-12).sqrt()
    });
    let sizes = [300.0, 1000.0, 3000.0, 10000.0];
    let high = [30, 34, 38, 42].map(|exponent| At(2f64.powi(exponent)));
    let ways = [256.0, 1024.0, 4096.0, 16384.0].map(At);
    let rows: [Row; 6] = [
        (lower, &loss, &FINE[..2], &[0.0], &high),
        (lower, &squares, &FINE[..1], &[0.0], &[DEFAULT]),
        (kind, &loss, &STEEP, &sizes, &[DEFAULT]),
        (between, &loss, &[root], &[0.0], &[DEFAULT]),
        // Zeros without a layer that loses them, and what f16 alone gets wrong: range, as far as anybody can see.
        (kind, &loss, &WRONG_BACKWARD[..1], &[IN_BOTH], &[Unprobed]),
        (kind, &loss, &WRONG_BACKWARD, &[IN_F16], &ways),
    ];
    // Of nearly equal gradients, which are subtracted.
    let derivative = (kind, "a derivative", physics(1, 1e-3));
    finds(&rows, &[derivative]);
}

#[test]
fn a_wrong_backward_pass_of_both_half_precisions_is_of_the_backend() {
    let (kind, ways) = ("backend", [At(1024.0), At(16384.0), Bf16]);
    let zero: Program = ("a gradient that is zero", |x, _| without_gradient(x));
    let rows: [Row; 4] = [
        (kind, &loss, &WRONG_BACKWARD, &[IN_BOTH], &ways),
        (kind, &loss, &WRONG_BACKWARD, &[BEHIND_TANH], &ways[..1]),
        (kind, &loss, &WRONG_BACKWARD[1..], &[IN_BOTH], &[Unprobed]),
        ("backend, between", &loss, &[zero], &[0.0], &[DEFAULT]),
    ];
    finds(&rows, &[]);
}

/// Of a value in the batch.
pub fn in_the_data(value: f32) -> Audit {
    let data = batch().slice_fill([0..1, 0..1], value);
    audit_of(&MixedPrecision::f16(), Network::new(), |amp, m| {
        loss(plain(amp, m, data.clone(), &tanh))
    })
}

/// The second layer's parameters are multiplied.
fn multiplied(factor: f64) -> Network {
    let mut model = Network::new();
    model.second = fill(model.second, 2000, 0.2 * factor as f32);
    model
}

#[test]
fn what_is_not_finite_in_f32_is_no_fault_of_half_precision() {
    let (kind, ways) = ("not_finite", [DEFAULT, At(1.0), Bf16]);
    let data = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let of_data = data.map(|value| (kind, "a value in the data", in_the_data(value)));
    finds(&[(kind, &loss, &BROKEN, &[0.0], &ways)], &of_data);
    let of_model = audit_of(&MixedPrecision::f16(), multiplied(f64::NAN), |amp, m| {
        loss(amp.autocast(batch(), |x| m.forward(x, identity)))
    });
    finds(&[], &[(kind, "NaN in a parameter", of_model)]);
}

#[test]
fn gradients_of_zero_in_f32_too_are_dead() {
    let ways = [At(256.0), At(1024.0), At(16384.0), Bf16];
    finds(&[("dead", &loss, &DEAD, &[0.0], &ways)], &[]);
}

#[test]
fn a_loss_inside_is_named() {
    let losses: [&Loss; 5] = [
        &loss,
        &|y| y.sum(),
        &|y| y.abs().mean(),
        &|y| y.square().mean_dim(1).mean(),
        &|y| -log_softmax(y, 1).mean(),
    ];
    let (kind, programs) = ("loss_in_half", [FINE[0], ("tanh", |x, _| tanh(x))]);
    let rows = losses.map(|loss| -> Row { (kind, loss, &programs, &[0.0], &[Inside, LossOut]) });
    finds(&rows, &[]);
    finds(&[(kind, &loss, &FINE[..1], &[0.0], &[OutputOut])], &[]);
}

#[test]
fn a_tensor_that_leaves_by_hand_is_a_leak() {
    let ways = [64.0, 256.0, 1024.0, 4096.0, 16384.0].map(Leak);
    let larger = |y: Tensor<2>| loss(y * 8.0);
    finds(&[("leak", &larger, &FINE[..4], &[0.0], &ways)], &[]);
}

/// One branch has gradients near the top, the other ones below the bottom at the same scale.
fn span() -> Audit {
    let small = |x: Tensor<2>| (0..4).fold(x, |x, _| x * 1e-3) + 1.0;
    audit_of(&MixedPrecision::f16(), Network::new(), |amp, m| {
        let (near, far) = amp.autocast(batch(), |x| {
            let far = probed("far", x.clone(), |x| small(m.first.forward(x)));
            (probed("near", x, |x| m.second.forward(x)), far)
        });
        (near * 1e2).square().sum()
            + (far * 1e-1).sum()
            + loss(amp.autocast(batch(), |x| m.third.forward(x))) * 1e3
    })
}

/// Those of one kind each, which users have met.
#[test]
fn other_faults() {
    let f16 = MixedPrecision::f16();
    let weight = audit_of(&f16, multiplied(1e6), |amp, m| {
        loss(amp.autocast(batch(), |x| {
            let x = probed("first", x, |x| m.first.forward(x));
            let x = probed("second", x, |x| m.second.forward(x * 1e-3) * 1e-5);
            probed("third", x, |x| m.third.forward(x))
        }))
    });
    let inputs = audit_of(&f16, Network::new(), |amp, m| {
        loss(amp.autocast(batch() * 1e6, |x| m.forward(x, identity)) * 1e-6)
    });
    let small = Bf16.audit(&|x| (x * 1e-9) * 1e9, &loss);
    let digits = Bf16.audit(&|x| (x + 512.0) - 512.0, &loss);
    let others = [
        ("forward_overflow, second", "a weight above 65504", weight),
        ("forward_overflow", "inputs that are not normalized", inputs),
        ("underflow, far", "gradients that no scale holds", span()),
        ("fine", "a small factor, in bf16", small),
        (
            "forward_overflow, between",
            "too few digits in bf16",
            digits,
        ),
    ];
    finds(&[], &others);
}

/// It multiplies by 10^6 there, which f16 does not hold.
#[test]
fn a_head_of_a_handle_in_f32_stays_in_f32() {
    let (amp, in_f32) = (MixedPrecision::f16(), MixedPrecision::f32());
    let [body, head] = [(); 2].map(|()| LinearConfig::new(16, 16).init(&flex()));
    let loss = |(body, head): &(Linear, Linear)| {
        let hidden = amp.autocast(batch(), |x| body.forward(x));
        (in_f32.autocast(hidden, |x| head.forward(x) * 1e6) * 1e-6).mean()
    };
    let audit = audit(&(amp.attach(body), in_f32.attach(head)), &amp, loss).unwrap();
    assert!(audit.verdict().is_fine(), "{audit}");
}
