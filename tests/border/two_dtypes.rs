//! Mistakes that would train on garbage where a device does not refuse two dtypes, on the device that the features choose. None of them may train in
//! silence.

use burn::nn::{Embedding, Lstm, LstmConfig, conv::Conv1d, conv::Conv1dConfig};
use burn::tensor::module::embedding;
use std::any::Any;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread;

use crate::support::*;

/// Whether Burn refuses two dtypes in one operation here: CubeCL without fusion does not.
fn refuses() -> bool {
    static REFUSES: OnceLock<bool> = OnceLock::new();
    *REFUSES.get_or_init(|| {
        let half = || ones().inner().cast(halves()[0]);
        quietly(|| half() + ones().inner()).is_err()
    })
}

/// Every mistake is one of this network: it doubles what comes in, and rounds nothing.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    gain: Gain,
    last: Linear,
    norm: BatchNorm,
    conv: Conv1d,
    lstm: Lstm,
    table: Embedding,
}

impl Net {
    fn new() -> Self {
        let device = device();
        let linear = |seed| fill(LinearConfig::new(4, 4).init(&device), seed);
        Self {
            first: linear(1),
            gain: Gain::new(&[0.5, 1.5, -1.0, 0.75]),
            last: linear(2),
            norm: BatchNormConfig::new(4).init(&device),
            conv: fill(Conv1dConfig::new(4, 4, 1).init(&device), 3),
            lstm: fill(LstmConfig::new(4, 4, true).init(&device), 4),
            table: fill(EmbeddingConfig::new(8, 4).init(&device), 5),
        }
    }
}

/// What a program has beside its network, on its device and in f32.
struct Data {
    amp: MixedPrecision,
    /// Another handle, which half the program uses by mistake.
    other: MixedPrecision,
    input: Tensor<2>,
    target: Tensor<2>,
    /// Of two values that f16 cannot read out of the bytes of f32.
    mask: Tensor<2>,
    square: Tensor<2>,
    row: Tensor<1>,
}

impl Data {
    fn new(amp: &MixedPrecision) -> Self {
        let device = device();
        Self {
            amp: amp.clone(),
            other: match amp.dtype() {
                FloatDType::F32 => MixedPrecision::f32(),
                dtype => MixedPrecision::new(dtype).allow_unchecked_dtypes(),
            },
            input: random(1, [6, 4], &device),
            target: random(2, [6, 4], &device),
            mask: random::<2>(3, [6, 4], &device).greater_elem(0.0).float() * 1.1,
            square: random(4, [4, 4], &device),
            row: random(5, [4], &device),
        }
    }

    /// The network's loss, with something in the middle of its scope.
    fn around(&self, net: &Net, middle: impl FnOnce(Tensor<2>) -> Tensor<2>) -> Tensor<1> {
        let output = self.amp.autocast(self.input.clone(), |x| {
            net.last.forward(middle(net.first.forward(x)))
        });
        self.loss(output)
    }

    fn loss(&self, output: Tensor<2>) -> Tensor<1> {
        (output - self.target.clone()).square().mean()
    }
}

type Attach = fn(&MixedPrecision, Net) -> Net;
type Loss = fn(&Net, &Data) -> Tensor<1>;

fn attached(amp: &MixedPrecision, net: Net) -> Net {
    amp.attach(net)
}

fn not_attached(_: &MixedPrecision, net: Net) -> Net {
    net
}

fn in_part(amp: &MixedPrecision, net: Net) -> Net {
    let first = amp.attach(net.first);
    Net { first, ..net }
}

/// A mistake, how it attaches the network, and its loss.
const MISTAKES: &[(&str, Attach, Loss)] = &[
    ("a mask that is captured", attached, |net, data| {
        data.around(net, |x| x * data.mask.clone())
    }),
    ("a mask on the left", attached, |net, data| {
        data.around(net, |x| data.mask.clone() * x)
    }),
    (
        "a mask of booleans made float inside",
        attached,
        |net, data| data.around(net, |x| x * data.mask.clone().greater_elem(0.5).float()),
    ),
    ("noise that is made inside", attached, |net, data| {
        data.around(net, |x| x + Tensor::full([6, 4], 0.3, &device()))
    }),
    ("a row that is added", attached, |net, data| {
        data.around(net, |x| x + data.row.clone().unsqueeze())
    }),
    ("a value to clamp by", attached, |net, data| {
        data.around(net, |x| x.max_pair(data.mask.clone()))
    }),
    ("a value where a mask holds", attached, |net, data| {
        let is_high = data.mask.clone().greater_elem(0.5);
        data.around(net, |x| x.mask_where(is_high, data.target.clone()))
    }),
    ("rows that are written", attached, |net, data| {
        let rows = data.target.clone().slice([0..3, 0..4]);
        data.around(net, |x| x.slice_assign([0..3, 0..4], rows))
    }),
    ("a tensor that is joined", attached, |net, data| {
        data.around(net, |x| {
            Tensor::cat(vec![x, data.target.clone()], 0).slice([3..9, 0..4])
        })
    }),
    ("a matrix that is captured", attached, |net, data| {
        data.around(net, |x| x.matmul(data.square.clone()))
    }),
    ("a matrix on the left", attached, |net, data| {
        let rows = data.square.clone().repeat_dim(0, 2).slice([0..6, 0..4]);
        data.around(net, |x| rows.matmul(x.slice([0..4, 0..4])))
    }),
    ("a parameter that is read outside", attached, |net, data| {
        let gain = net.gain.factor.val();
        data.around(net, |x| x * gain.unsqueeze())
    }),
    (
        "a parameter read outside, on the left",
        attached,
        |net, data| {
            let gain = net.gain.factor.val();
            data.around(net, |x| gain.unsqueeze() * x)
        },
    ),
    ("a weight that is read outside", attached, |net, data| {
        let weight = net.last.weight.val();
        data.around(net, |x| x.matmul(weight))
    }),
    (
        "a parameter that is read outside alone",
        attached,
        |net, data| {
            let gain: Tensor<2> = net.gain.factor.val().unsqueeze();
            let output = data.amp.autocast(data.input.clone(), |x| x * gain);
            data.loss(output)
        },
    ),
    ("a buffer", attached, |net, data| {
        data.around(net, |x| net.norm.forward(x))
    }),
    (
        "a buffer of a model in validation",
        attached,
        |net, data| {
            let (valid, input) = (net.valid(), data.input.clone().inner());
            let target = data
                .amp
                .autocast(input, |x| valid.norm.forward(valid.first.forward(x)));
            let output = data
                .amp
                .autocast(data.input.clone(), |x| net.first.forward(x));
            (output - Tensor::from_inner(target)).square().mean()
        },
    ),
    ("a state that a layer makes", attached, |net, data| {
        data.around(net, |x| {
            net.lstm.forward(x.unsqueeze_dim(1), None).0.squeeze_dim(1)
        })
    }),
    ("a target, with the loss inside", attached, |net, data| {
        let output = data.amp.autocast(data.input.clone(), |x| {
            (net.first.forward(x) - data.target.clone()).square()
        });
        output.mean()
    }),
    (
        "a model that was not attached",
        not_attached,
        |net, data| data.around(net, |x| x),
    ),
    (
        "one that gets an input with gradients",
        not_attached,
        |net, data| {
            let input = data.input.clone().require_grad();
            let output = data
                .amp
                .autocast(input, |x| net.last.forward(net.first.forward(x)));
            data.loss(output)
        },
    ),
    ("one without biases", not_attached, |net, data| {
        let weights = [&net.first, &net.last].map(|linear| linear.weight.val());
        let output = data.amp.autocast(data.input.clone(), |x| {
            let [first, last] = weights;
            x.matmul(first).matmul(last)
        });
        data.loss(output)
    }),
    (
        "one of tokens, which runs in f32",
        not_attached,
        |net, data| {
            let tokens = Tensor::<1, Int>::arange(0..6, &device()).reshape([6, 1]);
            let output = data.amp.autocast(tokens, |tokens| {
                let x = net.table.forward(tokens).squeeze_dim::<2>(1);
                net.last.forward(net.first.forward(x))
            });
            data.loss(output)
        },
    ),
    ("a part that was not attached", in_part, |net, data| {
        data.around(net, |x| x)
    }),
    (
        "a convolution that was not attached",
        in_part,
        |net, data| {
            let output = data.amp.autocast(data.input.clone(), |x| {
                let x = net.conv.forward(net.first.forward(x).unsqueeze_dim(2));
                x.squeeze_dim::<2>(2)
            });
            data.loss(output)
        },
    ),
    ("a table that was not attached", in_part, |net, data| {
        let at = Tensor::<1, Int>::arange(0..6, &device()).reshape([1, 6]);
        data.around(net, |x| {
            x + embedding(net.table.weight.val(), at).squeeze_dim::<2>(0)
        })
    }),
    ("the model of another handle", attached, |net, data| {
        let output = data
            .other
            .autocast(data.input.clone(), |x| net.first.forward(x));
        data.loss(output)
    }),
    (
        "a thread that has not entered the scope",
        attached,
        |net, data| {
            let work = |x: Tensor<2>| {
                thread::scope(|threads| {
                    let there = threads.spawn(|| net.last.forward(x)).join();
                    there.unwrap_or_else(|panic| resume_unwind(panic))
                })
            };
            data.around(net, work)
        },
    ),
    ("an input in f64", attached, |net, data| {
        let output = data
            .amp
            .autocast(data.input.clone().cast(wide()), |x| net.first.forward(x));
        data.loss(output)
    }),
];

/// f64, where there is any.
fn wide() -> FloatDType {
    match device().supports_dtype(DType::F64) {
        true => FloatDType::F64,
        false => FloatDType::F32,
    }
}

/// What became of a program.
#[derive(Debug)]
enum End {
    /// A message: of `attach`, of `check`, of the training, or a warning.
    Said(String),
    /// As far from the loss in f32 as this, in parts of it.
    Trained(f64),
}

/// Attaches, and trains three steps, or checks.
fn end(attach: Attach, loss: Loss, amp: &MixedPrecision, checks: bool) -> End {
    let said = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        End::Said(text.unwrap_or_default())
    };
    let train = |amp: &MixedPrecision, net: Net| {
        let data = Data::new(amp);
        let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), amp);
        let mut net = net;
        for _ in 0..3 {
            let grads = GradientsParams::from_grads(loss(&net, &data).backward(), &net);
            net = optim.step(0.1, net, grads);
        }
        loss(&net, &data).into_scalar::<f32>()
    };
    let net = match quietly(|| attach(amp, Net::new())) {
        Ok(net) => net,
        Err(panic) => return said(panic),
    };
    if checks {
        let data = Data::new(amp);
        match quietly(|| amp.check(&net, |net| loss(net, &data))) {
            Ok(Err(error)) => return End::Said(error.to_string()),
            Err(panic) => return said(panic),
            Ok(Ok(_)) => {}
        }
    }
    let mut found = None;
    let warnings = captured(Level::Warn, || found = Some(quietly(|| train(amp, net))));
    let trained = match found.unwrap() {
        Ok(trained) => f64::from(trained),
        Err(panic) => return said(panic),
    };
    if let Some(warning) = warnings.first() {
        return End::Said(warning.clone());
    }
    let full = MixedPrecision::f32();
    let expected = f64::from(train(&full, full.attach(Net::new())));
    End::Trained((trained / expected - 1.0).abs())
}

/// Words of burn-amp's own messages; what Burn says stands behind them.
const OURS: [&str; 3] = ["autocast", "MixedPrecision", "never tested"];

/// Whether it is said in words of burn-amp's, or trains right.
fn is_heard(end: &End) -> bool {
    match end {
        End::Said(text) => OURS.iter().any(|word| text.contains(word)),
        End::Trained(off) => *off < 0.05,
    }
}

#[test]
fn no_mistake_trains_in_silence() {
    let mut silent = Vec::new();
    for dtype in halves() {
        let amp = || MixedPrecision::new(dtype);
        for &(name, attach, loss) in MISTAKES {
            let trained = end(attach, loss, &amp(), false);
            // By the handle, which asks the device; or because all of it runs in f32.
            assert!(refuses() || is_heard(&trained), "{name}: {trained:?}");
            // Flex refuses all of them. With fusion, Burn 0.22.1 multiplies matrices of two dtypes; without it, it refuses nothing.
            let is_flex = format!("{:?}", device()).contains("Flex");
            if refuses() && (is_heard(&trained) || is_flex) {
                if !is_heard(&trained) {
                    silent.push(format!("{dtype:?}, {name}: {trained:?}"));
                }
                continue;
            }
            // Where the program goes on all the same, a check is what it has.
            let checked = end(attach, loss, &amp().allow_unchecked_dtypes(), true);
            println!("{dtype:?}, {name}: {trained:?}, checked {checked:?}");
            if !(is_heard(&checked) || !refuses() && matches!(checked, End::Said(_))) {
                silent.push(format!("{dtype:?}, {name}: {checked:?}"));
            }
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}

/// The device is asked once, and where the handle meets it first.
#[test]
fn a_device_that_does_not_refuse_two_dtypes_is_refused() {
    for dtype in halves() {
        let amp = MixedPrecision::new(dtype);
        let checked = amp.check_device(&device());
        assert_eq!(amp.check_device(&device().inner()), checked);
        let allowing = MixedPrecision::new(dtype).allow_unchecked_dtypes();
        let allowing = allowing.with_scaler(at_scale(two(9))).unwrap();
        for amp in [&allowing, &MixedPrecision::f32()] {
            amp.check_device(&device()).unwrap();
            assert_eq!(values(amp.autocast(ones(), |x| x * 2.0)), [2.0; 2]);
        }
        if refuses() {
            checked.unwrap();
            continue;
        }
        let error = checked.unwrap_err();
        is_error(
            &error,
            "UncheckedDTypes",
            ["Cube(", "Burn's feature `fusion`"],
        );
        says(
            &error,
            [
                "`cubecl` does not",
                "`MixedPrecision::allow_unchecked_dtypes`",
            ],
        );
        assert_eq!(panic_message(|| Gain::at(&[2.0], &amp)), error.to_string());
        // A model that was not attached.
        let scope = amp.try_autocast(ones(), |x| x * 2.0).map(drop);
        assert_eq!(scope.unwrap_err(), error);
        let frozen = Gain::new(&[2.0, 2.0]);
        let checked = amp.check(&frozen, |m| amp.autocast(ones(), |x| m.forward(x)).mean());
        assert_eq!(checked.map(drop).unwrap_err(), error);
    }
}

/// Neither a panic's message, nor an error that the device has kept.
#[test]
fn asking_a_device_leaves_nothing_behind() {
    let name = "asking_a_device_leaves_nothing_behind";
    let Some(said) = said_in_child(module_path!(), name) else {
        for dtype in halves() {
            let _ = MixedPrecision::new(dtype).check_device(&device());
        }
        let gain = Gain::new(&[2.0, 4.0]);
        let grads = backward(gain.forward(ones()).sum(), &gain);
        assert_eq!(gradient(&grads, gain.factor.id), [1.0; 2]);
        return;
    };
    assert!(!said.contains("panicked"), "{said}");
}
