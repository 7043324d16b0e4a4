//! Mistakes that would train on garbage where a device does not refuse two dtypes, on the device that the features choose. None of them may train in
//! silence.

use burn::nn::{Embedding, Lstm, LstmConfig};
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
            lstm: fill(LstmConfig::new(4, 4, true).init(&device), 4),
            table: fill(EmbeddingConfig::new(8, 4).init(&device), 5),
        }
    }

    /// All of it in the scopes of a handle, none, or the first layer.
    fn attached(self, attaches: &str, amp: &MixedPrecision) -> Self {
        match attaches {
            "all" => amp.attach(self),
            "none" => self,
            _ => Self {
                first: amp.attach(self.first),
                ..self
            },
        }
    }
}

/// A mistake, what of the network is attached, and which mistake it is in [`loss`] or in [`middle`].
const MISTAKES: &str = "
a mask that is captured > all > x * mask
a mask of booleans made float inside > all > x * bools
noise that is made inside > all > x + noise
a value where a mask holds > all > mask_where
a tensor that is joined > all > cat
a matrix that is captured > all > x @ square
a parameter that is read outside > all > x * gain
a weight that is read outside > all > x @ weight
a parameter that is read outside alone > all > gain alone
a buffer > all > norm
a buffer of a model in validation > all > validation
a state that a layer makes > all > lstm
a target, with the loss inside > all > target
a model that was not attached > none > x
one that gets an input with gradients > none > tracked
one of tokens, which runs in f32 > none > tokens
a part that was not attached > part > x
a table that was not attached > part > table
the model of another handle > all > other
a thread that has not entered the scope > all > thread
an input in f64 > all > f64
";

fn input() -> Tensor<2> {
    random(1, [6, 4], &device())
}

fn target() -> Tensor<2> {
    random(2, [6, 4], &device())
}

/// What is in the middle of the network's scope. All that it captures is f32.
fn middle(net: &Net, mistake: &str) -> impl FnOnce(Tensor<2>) -> Tensor<2> {
    // Of two values that f16 cannot read out of the bytes of f32.
    let mask = random::<2>(3, [6, 4], &device()).greater_elem(0.0).float() * 1.1;
    let high = mask.clone().greater_elem(0.5);
    let square = random::<2>(4, [4, 4], &device());
    let gain = net.gain.factor.val().unsqueeze();
    let weight = net.last.weight.val();
    let at = Tensor::<1, Int>::arange(0..6, &device()).reshape([1, 6]);
    move |x| match mistake {
        "x" => x,
        "x * mask" => x * mask,
        "x * bools" => x * high.float(),
        "x + noise" => x + Tensor::full([6, 4], 0.3, &device()),
        "mask_where" => x.mask_where(high, target()),
        "cat" => Tensor::cat(vec![x, target()], 0).slice([3..9, 0..4]),
        "x @ square" => x.matmul(square),
        "x * gain" => x * gain,
        "x @ weight" => x.matmul(weight),
        "norm" => net.norm.forward(x),
        "lstm" => net.lstm.forward(x.unsqueeze_dim(1), None).0.squeeze_dim(1),
        "table" => x + embedding(net.table.weight.val(), at).squeeze_dim::<2>(0),
        "thread" => thread::scope(|threads| {
            let there = threads.spawn(|| net.last.forward(x)).join();
            there.unwrap_or_else(|panic| resume_unwind(panic))
        }),
        other => panic!("{other}"),
    }
}

fn loss(net: &Net, amp: &MixedPrecision, mistake: &str) -> Tensor<1> {
    let layers = |x: Tensor<2>| net.last.forward(net.first.forward(x));
    let output = match mistake {
        "gain alone" => {
            let gain: Tensor<2> = net.gain.factor.val().unsqueeze();
            amp.autocast(input(), |x| x * gain)
        }
        "validation" => {
            let valid = net.valid();
            let forward = |x| valid.norm.forward(valid.first.forward(x));
            let target = amp.autocast(input().inner(), forward);
            let output = amp.autocast(input(), |x| net.first.forward(x));
            return (output - Tensor::from_inner(target)).square().mean();
        }
        "target" => {
            let errors = |x| (net.first.forward(x) - target()).square();
            return amp.autocast(input(), errors).mean();
        }
        "tracked" => amp.autocast(input().require_grad(), layers),
        "tokens" => {
            let tokens = Tensor::<1, Int>::arange(0..6, &device()).reshape([6, 1]);
            let of = |tokens| layers(net.table.forward(tokens).squeeze_dim(1));
            amp.autocast(tokens, of)
        }
        "other" => {
            let other = match amp.dtype() {
                FloatDType::F32 => MixedPrecision::f32(),
                dtype => MixedPrecision::new(dtype).allow_unchecked_dtypes(),
            };
            other.autocast(input(), |x| net.first.forward(x))
        }
        "f64" => amp.autocast(input().cast(wide()), |x| net.first.forward(x)),
        _ => {
            let middle = middle(net, mistake);
            amp.autocast(input(), |x| net.last.forward(middle(net.first.forward(x))))
        }
    };
    (output - target()).square().mean()
}

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

/// The loss after three steps.
fn trained(amp: &MixedPrecision, mut net: Net, mistake: &str) -> f64 {
    let mut optim = ScaledOptimizer::new(SgdConfig::new().init(), amp);
    for _ in 0..3 {
        let grads = backward(loss(&net, amp, mistake), &net);
        net = optim.step(0.1, net, grads);
    }
    loss(&net, amp, mistake).into_scalar::<f32>().into()
}

/// Attaches, and trains three steps, or checks.
fn end(attaches: &str, mistake: &str, amp: &MixedPrecision, checks: bool) -> End {
    let run = || {
        let net = Net::new().attached(attaches, amp);
        if checks {
            let checked = amp.check(&net, |net| loss(net, amp, mistake));
            checked.unwrap_or_else(|error| panic!("{error}"));
        }
        let mut loss = 0.0;
        let warnings = captured(Level::Warn, || loss = trained(amp, net, mistake));
        if let Some(warning) = warnings.first() {
            panic!("{warning}");
        }
        loss
    };
    let trained = match quietly(run) {
        Err(panic) => return End::Said(said(&*panic)),
        Ok(trained) => trained,
    };
    let full = MixedPrecision::f32();
    let expected = self::trained(&full, full.attach(Net::new()), mistake);
    End::Trained((trained / expected - 1.0).abs())
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    let text = text.or(panic.downcast_ref::<String>().cloned());
    text.unwrap_or_default()
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
    for dtype in halves() {
        let amp = || MixedPrecision::new(dtype);
        for [name, attaches, mistake] in rows(MISTAKES) {
            let trained = end(attaches, mistake, &amp(), false);
            // By the handle, which asks the device; or because all of it runs in f32. Flex refuses all of them.
            let is_said = is_heard(&trained);
            assert!(is_said || refuses() && !on_flex(), "{name}: {trained:?}");
            // With fusion, Burn 0.22.1 multiplies matrices of two dtypes; without it, it refuses nothing. Where the program goes on all the same, a check is
            // what it has.
            if !(refuses() && is_said) {
                let checked = end(attaches, mistake, &amp().allow_unchecked_dtypes(), true);
                let is_burns = !refuses() && matches!(checked, End::Said(_));
                println!("{dtype:?}, {name}: {trained:?}, checked {checked:?}");
                assert!(is_burns || is_heard(&checked), "{name}");
            }
        }
    }
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
        is_error(&error, "UncheckedDTypes", ["Cube("]);
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
