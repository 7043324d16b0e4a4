//! Each verdict on twenty programs or more, of which half precision does the same thing in another way or at another size.

use burn::tensor::activation::{log_softmax, relu, tanh};
use burn_amp_report::{Audit, audit, probed};
use burn_amp_tests::{fill, prelude::*};
use std::convert::identity;

use crate::network::{Network, at, audit_of, audit_with, batch, loss};
use crate::programs::*;

/// How a program is run.
#[derive(Clone, Copy, Debug)]
enum Way {
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
const DEFAULT: Way = At(65536.0);

impl Way {
    fn audit(self, between: &dyn Fn(Tensor<2>) -> Tensor<2>, loss: &Loss) -> Audit {
        let forward = |m: &Network, x| m.forward(x, between);
        let audit = |loss: &dyn Fn(&MixedPrecision, &Network) -> Tensor<1>| {
            let scale = if let Leak(scale) = self {
                scale
            } else {
                65536.0
            };
            audit_of(&at(scale), Network::new(), loss)
        };
        match self {
            At(scale) => audit_with(&at(scale), between, loss),
            Bf16 => audit_with(&MixedPrecision::bf16(), between, loss),
            Unprobed => audit(&|amp, m| loss(plain(amp, m, batch(), between))),
            Inside => audit(&|amp, m| amp.autocast(batch(), |x| loss(forward(m, x)))),
            LossOut => audit(&|amp, m| carried(amp, |x| loss(forward(m, x)))),
            OutputOut => audit(&|amp, m| loss(carried(amp, |x| forward(m, x)))),
            Leak(_) => audit(&|amp, m| loss(carried(amp, |x| forward(m, x).cast(FloatDType::F32)))),
        }
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

/// What was audited, and what was found that is something else.
#[derive(Default)]
struct Cases {
    count: usize,
    wrong: Vec<String>,
}

impl Cases {
    /// `finds` is the kind, or with advice as [`found`] has it.
    fn add(&mut self, what: &str, finds: &str, audit: &Audit) {
        self.count += 1;
        let found = found(audit);
        let kind = found.split(',').next().unwrap();
        if ![kind, &found].contains(&finds) {
            self.wrong
                .push(format!("{what}: {found}, and not {finds}\n{audit}"));
        }
    }

    /// Every program at every size in every way.
    fn all(&mut self, finds: &str, programs: &[Program], sizes: &[f64], ways: &[Way]) {
        self.all_on(&loss, finds, programs, sizes, ways);
    }

    fn all_on(
        &mut self,
        loss: &Loss,
        finds: &str,
        programs: &[Program],
        sizes: &[f64],
        ways: &[Way],
    ) {
        for (what, between) in programs {
            for size in sizes {
                for way in ways {
                    let audit = way.audit(&|x| between(x, *size), loss);
                    self.add(&format!("{what}, {size}, {way:?}"), finds, &audit);
                }
            }
        }
    }

    fn end(self) {
        assert!(self.count >= 20, "{}", self.count);
        let wrong = self.wrong.len();
        assert_eq!(wrong, 0, "{}", self.wrong.join("\n"));
    }
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
    let mut cases = Cases::default();
    let overflow = "forward_overflow, between";
    cases.all(overflow, &NORMS, &[1500.0, 6000.0, 20000.0], &[DEFAULT]);
    cases.all(overflow, &LOST[..14], &[0.0], &[DEFAULT]);
    let kind = "forward_overflow";
    cases.all(kind, &LOST[14..], &[0.0], &[DEFAULT]);
    cases.all(kind, &NORMS, &[1500.0, 6000.0, 20000.0], &[Unprobed]);
    cases.all(kind, &LOST, &[0.0], &[Unprobed]);
    for (order, step) in [(1, 1e-4), (1, 1e-5), (2, 3e-2), (2, 1e-2), (2, 1e-4)] {
        let what = format!("a derivative of order {order}, step {step}");
        cases.add(&what, kind, &physics(order, step));
    }
    cases.end();
}

#[test]
fn what_half_precision_holds_is_fine() {
    let mut cases = Cases::default();
    cases.all("fine", &FINE, &[0.0], &[At(1024.0), At(16384.0), Bf16]);
    cases.end();
}

#[test]
fn gradients_below_f16_underflow() {
    let mut cases = Cases::default();
    for weight in [1e-4, 1e-5, 1e-6, 1e-7, 1e-8] {
        let small = move |y: Tensor<2>| loss(y) * weight;
        let finds = "underflow, raise_to";
        cases.all_on(&small, finds, &FLAT, &[weight], &[At(1.0), At(4.0)]);
    }
    cases.end();
}

#[test]
fn gradients_above_f16_overflow() {
    let mut cases = Cases::default();
    let ways = [30, 34, 38, 42].map(|exponent| At(2f64.powi(exponent)));
    cases.all("backward_overflow, lower_to", &FINE[..2], &[0.0], &ways);
    let squares = |y: Tensor<2>| (y * 10.0).square().sum();
    cases.all_on(
        &squares,
        "backward_overflow, lower_to",
        &FINE[..1],
        &[0.0],
        &[DEFAULT],
    );
    let kind = "backward_overflow";
    cases.all(kind, &STEEP, &[300.0, 1000.0, 3000.0, 10000.0], &[DEFAULT]);
    // Of nearly equal gradients, which are subtracted.
    cases.add("a derivative, step 1e-3", kind, &physics(1, 1e-3));
    let root: Program = ("a root of what is zero in f16", |x, _| {
        x.clone() + (x.square() * 1e-10 + 1e-12).sqrt()
    });
    cases.all("backward_overflow, between", &[root], &[0.0], &[DEFAULT]);
    // Zeros without a layer that loses them, and what f16 alone gets wrong: range, as far as anybody can see.
    cases.all(kind, &WRONG_BACKWARD[..1], &[IN_BOTH], &[Unprobed]);
    let ways = [256.0, 1024.0, 4096.0, 16384.0].map(At);
    cases.all(kind, &WRONG_BACKWARD, &[IN_F16], &ways);
    cases.end();
}

#[test]
fn a_wrong_backward_pass_of_both_half_precisions_is_of_the_backend() {
    let mut cases = Cases::default();
    let ways = [At(1024.0), At(16384.0), Bf16];
    cases.all("backend", &WRONG_BACKWARD, &[IN_BOTH], &ways);
    cases.all("backend", &WRONG_BACKWARD, &[BEHIND_TANH], &ways[..1]);
    cases.all("backend", &WRONG_BACKWARD[1..], &[IN_BOTH], &[Unprobed]);
    let zero: Program = ("a gradient that is zero", |x, _| without_gradient(x));
    cases.all("backend, between", &[zero], &[0.0], &[DEFAULT]);
    cases.end();
}

/// NaN in a batch.
pub fn nan_in_the_data() -> Audit {
    in_the_data(f32::NAN)
}

fn in_the_data(value: f32) -> Audit {
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
    let mut cases = Cases::default();
    let ways = [DEFAULT, At(1.0), Bf16];
    cases.all("not_finite", &BROKEN, &[0.0], &ways);
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let what = format!("{value} in the data");
        cases.add(&what, "not_finite", &in_the_data(value));
    }
    let audit = audit_of(&MixedPrecision::f16(), multiplied(f64::NAN), |amp, m| {
        loss(amp.autocast(batch(), |x| m.forward(x, identity)))
    });
    cases.add("NaN in a parameter", "not_finite", &audit);
    cases.end();
}

#[test]
fn gradients_of_zero_in_f32_too_are_dead() {
    let mut cases = Cases::default();
    let ways = [At(256.0), At(1024.0), At(16384.0), Bf16];
    cases.all("dead", &DEAD, &[0.0], &ways);
    cases.end();
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
    let mut cases = Cases::default();
    for loss in losses {
        let programs = [FINE[0], ("tanh", |x, _| tanh(x))];
        cases.all_on(loss, "loss_in_half", &programs, &[0.0], &[Inside, LossOut]);
    }
    cases.all("loss_in_half", &FINE[..1], &[0.0], &[OutputOut]);
    cases.end();
}

#[test]
fn a_tensor_that_leaves_by_hand_is_a_leak() {
    let mut cases = Cases::default();
    let ways = [64.0, 256.0, 1024.0, 4096.0, 16384.0].map(Leak);
    let larger = |y: Tensor<2>| loss(y * 8.0);
    cases.all_on(&larger, "leak", &FINE[..4], &[0.0], &ways);
    cases.end();
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
    let mut cases = Cases::default();
    let weight = audit_of(&MixedPrecision::f16(), multiplied(1e6), |amp, m| {
        loss(amp.autocast(batch(), |x| {
            let x = probed("first", x, |x| m.first.forward(x));
            let x = probed("second", x, |x| m.second.forward(x * 1e-3) * 1e-5);
            probed("third", x, |x| m.third.forward(x))
        }))
    });
    cases.add("a weight above 65504", "forward_overflow, second", &weight);
    let inputs = audit_of(&MixedPrecision::f16(), Network::new(), |amp, m| {
        loss(amp.autocast(batch() * 1e6, |x| m.forward(x, identity)) * 1e-6)
    });
    let what = "inputs that are not normalized";
    cases.add(what, "forward_overflow", &inputs);
    cases.add("gradients that no scale holds", "underflow, far", &span());
    let small = Bf16.audit(&|x| (x * 1e-9) * 1e9, &loss);
    cases.add("a small factor, in bf16", "fine", &small);
    let digits = Bf16.audit(&|x| (x + 512.0) - 512.0, &loss);
    let what = "too few digits in bf16";
    cases.add(what, "forward_overflow, between", &digits);
    assert_eq!(cases.wrong, Vec::<String>::new());
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
