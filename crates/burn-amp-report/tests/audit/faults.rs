//! Faults of the kinds that users have met, one in each program.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{
        DType, FloatDType, Tensor,
        activation::{sigmoid, softmax},
    },
};
use burn_amp::{GradScalerConfig, MixedPrecision};
use burn_amp_report::{Audit, Verdict, audit, probed};

use crate::network::{Network, audit_with, batch, device, loss, same};

fn f16() -> MixedPrecision {
    MixedPrecision::f16()
}

fn at(scale: f32) -> MixedPrecision {
    f16()
        .with_scaler(GradScalerConfig::new().with_init_scale(scale.into()))
        .unwrap()
}

fn is_half(x: &Tensor<2>) -> bool {
    x.dtype() != DType::F32
}

/// What the user should be told.
#[derive(Debug, PartialEq)]
enum Kind {
    Raise,
    /// No scale serves all.
    Wide,
    Lower,
    /// A gradient overflows at every scale.
    Backward,
    Forward,
    Backend,
    NotFinite,
    Dead,
    LossInHalf,
    Leak,
    Fine,
}

fn kind(audit: &Audit) -> Kind {
    match audit.verdict() {
        Verdict::Fine => Kind::Fine,
        Verdict::Underflow {
            raise_to: Some(_), ..
        } => Kind::Raise,
        Verdict::Underflow { .. } => Kind::Wide,
        Verdict::BackwardOverflow {
            lower_to: Some(_), ..
        } => Kind::Lower,
        Verdict::BackwardOverflow { .. } => Kind::Backward,
        Verdict::ForwardOverflow { .. } => Kind::Forward,
        Verdict::Backend { .. } => Kind::Backend,
        Verdict::NotFinite { .. } => Kind::NotFinite,
        Verdict::Dead { .. } => Kind::Dead,
        Verdict::LossInHalf => Kind::LossInHalf,
        Verdict::Leak { .. } => Kind::Leak,
        other => panic!("{other:?}"),
    }
}

/// The layers that the audit would run in f32.
fn in_f32(audit: &Audit) -> Vec<&str> {
    let layers = match audit.verdict() {
        Verdict::Underflow { in_f32, .. }
        | Verdict::BackwardOverflow { in_f32, .. }
        | Verdict::ForwardOverflow { in_f32, .. }
        | Verdict::Backend { in_f32, .. } => in_f32.as_slice(),
        _ => &[],
    };
    layers.iter().map(String::as_str).collect()
}

struct Planted {
    what: &'static str,
    kind: Kind,
    in_f32: &'static [&'static str],
    audit: fn() -> Audit,
}

const BETWEEN: &[&str] = &["between"];

const PLANTED: &[Planted] = &[
    Planted {
        what: "underflow in one layer",
        kind: Kind::Raise,
        in_f32: &[],
        audit: || audit_with(&at(1.0), |x| sigmoid(x * 1e-2) * 1e-3, loss),
    },
    Planted {
        what: "a deep network without a scale",
        kind: Kind::Raise,
        in_f32: &[],
        audit: || audit_with(&at(1.0), |x| sigmoid(x * 0.01), |y| loss(y) * 1e-4),
    },
    Planted {
        what: "a scale that is far too high",
        kind: Kind::Lower,
        in_f32: &[],
        audit: || audit_with(&at(2f32.powi(40)), same, loss),
    },
    Planted {
        what: "a loss that is a sum of large squares",
        kind: Kind::Lower,
        in_f32: &[],
        audit: || audit_with(&f16(), same, |y| (y * 10.0).square().sum()),
    },
    Planted {
        what: "a mask of -1e9 that is multiplied and added",
        kind: Kind::Forward,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| {
                    let hidden = x.clone().lower_elem(0.1).float().cast(x.dtype());
                    softmax(x + hidden * -1e9, 1)
                },
                loss,
            )
        },
    },
    Planted {
        what: "attention logits that explode",
        kind: Kind::Forward,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| {
                    let x = x * 200.0;
                    let logits = x.clone().matmul(x.clone().transpose());
                    softmax(logits * 1e-5, 1).matmul(x) / 200.0
                },
                loss,
            )
        },
    },
    Planted {
        what: "a norm in f16, whose squares overflow",
        kind: Kind::Forward,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| {
                    let x = x * 1000.0;
                    let square = x.clone().square().mean_dim(1);
                    x / (square + 1e-5).sqrt()
                },
                loss,
            )
        },
    },
    Planted {
        what: "a loss taken inside autocast",
        kind: Kind::LossInHalf,
        in_f32: &[],
        audit: || {
            let amp = f16();
            let model = Network::new(&device()).apply_reparameterization(amp.clone());
            audit(&model, &amp, |m| {
                amp.autocast(batch(), |x| loss(m.forward(x, same)))
            })
            .unwrap()
        },
    },
    Planted {
        what: "a loss of outputs that were carried out of autocast",
        kind: Kind::LossInHalf,
        in_f32: &[],
        audit: || {
            let amp = f16();
            let model = Network::new(&device()).apply_reparameterization(amp.clone());
            audit(&model, &amp, |m| {
                let mut output = None;
                amp.autocast(batch(), |x| output = Some(m.forward(x, same)));
                loss(output.unwrap())
            })
            .unwrap()
        },
    },
    Planted {
        what: "a layer that is dead",
        kind: Kind::Dead,
        in_f32: &[],
        audit: || audit_with(&f16(), |x| burn::tensor::activation::relu(x - 100.0), loss),
    },
    Planted {
        what: "NaN in the data",
        kind: Kind::NotFinite,
        in_f32: &[],
        audit: || {
            let amp = f16();
            let model = Network::new(&device()).apply_reparameterization(amp.clone());
            let batch = batch().slice_fill([0..1, 0..1], f32::NAN);
            audit(&model, &amp, |m| {
                loss(amp.autocast(batch.clone(), |x| m.forward(x, same)))
            })
            .unwrap()
        },
    },
    Planted {
        what: "NaN in a parameter",
        kind: Kind::NotFinite,
        in_f32: &[],
        audit: || {
            let amp = f16();
            let mut model = Network::new(&device());
            model.second = model.second.map(&mut Multiply(f64::NAN));
            let model = model.apply_reparameterization(amp.clone());
            audit(&model, &amp, |m| {
                loss(amp.autocast(batch(), |x| m.forward(x, same)))
            })
            .unwrap()
        },
    },
    Planted {
        what: "a kernel whose gradient is zero in half precision",
        kind: Kind::Backend,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| match is_half(&x) {
                    true => x.clone().detach() + (x.clone() - x.detach()) * 0.0,
                    false => x,
                },
                loss,
            )
        },
    },
    Planted {
        what: "a kernel that is wrong in half precision",
        kind: Kind::Backend,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| match is_half(&x) {
                    true => x * 3.0,
                    false => x,
                },
                loss,
            )
        },
    },
    Planted {
        what: "a kernel that flushes subnormals",
        kind: Kind::Forward,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| {
                    let x = x * 2e-5;
                    let x = match x.dtype() {
                        DType::F16 => {
                            let tiny = x.clone().abs().lower_elem(6.1e-5);
                            x.mask_fill(tiny, 0.0)
                        }
                        _ => x,
                    };
                    x * 5e4
                },
                loss,
            )
        },
    },
    Planted {
        what: "a tensor that leaves autocast by hand",
        kind: Kind::Leak,
        in_f32: &[],
        audit: || {
            let amp = f16();
            let model = Network::new(&device()).apply_reparameterization(amp.clone());
            audit(&model, &amp, |m| {
                let mut output = None;
                amp.autocast(batch(), |x| {
                    output = Some(m.forward(x, same).cast(FloatDType::F32));
                });
                loss(output.unwrap())
            })
            .unwrap()
        },
    },
    Planted {
        what: "an epsilon that is zero in f16",
        kind: Kind::Forward,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| {
                    let x = x - 1.5;
                    let x = burn::tensor::activation::relu(x);
                    x.clone() / (x.sum_dim(1) + 1e-8)
                },
                loss,
            )
        },
    },
    Planted {
        what: "a weight above 65504",
        kind: Kind::Forward,
        in_f32: &["second"],
        audit: || {
            let amp = f16();
            let mut model = Network::new(&device());
            model.second = model.second.map(&mut Multiply(1e6));
            let model = model.apply_reparameterization(amp.clone());
            audit(&model, &amp, |m| {
                loss(amp.autocast(batch(), |x| {
                    let x = probed("first", x, |x| m.first.forward(x));
                    let x = probed("second", x, |x| m.second.forward(x * 1e-3) * 1e-5);
                    probed("third", x, |x| m.third.forward(x))
                }))
            })
            .unwrap()
        },
    },
    Planted {
        what: "inputs that are not normalized",
        kind: Kind::Forward,
        in_f32: &[],
        audit: || {
            let amp = f16();
            let model = Network::new(&device()).apply_reparameterization(amp.clone());
            audit(&model, &amp, |m| {
                loss(amp.autocast(batch() * 1e6, |x| m.forward(x, same)) * 1e-6)
            })
            .unwrap()
        },
    },
    Planted {
        what: "a sum of many values",
        kind: Kind::Forward,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| {
                    let many = x.clone().repeat_dim(1, 5000) + 1.0;
                    let [_, count] = many.dims();
                    x + many.sum_dim(1) / count as f32
                },
                loss,
            )
        },
    },
    Planted {
        what: "an exponential",
        kind: Kind::Forward,
        in_f32: BETWEEN,
        audit: || audit_with(&f16(), |x| (x + 12.0).exp().log1p() * 0.1, loss),
    },
    Planted {
        what: "a root of what is zero in f16 alone",
        kind: Kind::Backward,
        in_f32: BETWEEN,
        audit: || {
            audit_with(
                &f16(),
                |x| x.clone() + (x.square() * 1e-10 + 1e-12).sqrt(),
                loss,
            )
        },
    },
    Planted {
        what: "a span of gradients that no scale holds",
        kind: Kind::Wide,
        in_f32: &["far"],
        audit: span,
    },
];

/// One branch has gradients near the top, the other ones below the bottom at the same scale.
fn span() -> Audit {
    let amp = f16();
    let model = Network::new(&device()).apply_reparameterization(amp.clone());
    let small = |x: Tensor<2>| x * 1e-3;
    audit(&model, &amp, |m| {
        let (near, far) = amp.autocast(batch(), |x| {
            let far = probed("far", x.clone(), |x| {
                small(small(small(small(m.first.forward(x))))) + 1.0
            });
            (probed("near", x, |x| m.second.forward(x)), far)
        });
        (near * 1e2).square().sum()
            + (far * 1e-1).sum()
            + loss(amp.autocast(batch(), |x| m.third.forward(x))) * 1e3
    })
    .unwrap()
}

/// Multiplies all parameters.
struct Multiply(f64);

impl ModuleMapper for Multiply {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| Tensor::from_inner(value.inner().mul_scalar(self.0)).require_grad())
    }
}

#[test]
fn planted_faults_are_told_apart() {
    let mut missed = Vec::new();
    for planted in PLANTED {
        let audit = (planted.audit)();
        let found = (kind(&audit), in_f32(&audit));
        println!("{}: {}", planted.what, audit.verdict());
        if found.0 != planted.kind || found.1 != planted.in_f32 {
            missed.push(format!(
                "{}: expected {:?} {:?}\n{audit}",
                planted.what, planted.kind, planted.in_f32
            ));
        }
    }
    assert!(PLANTED.len() >= 20);
    assert!(
        missed.is_empty(),
        "{} of {}\n{}",
        missed.len(),
        PLANTED.len(),
        missed.join("\n")
    );
}
