//! Mistakes that would train on garbage where a device does not refuse two dtypes, on the device that the features choose. None of them may train in
//! silence.

use burn::nn::{Embedding, Lstm, LstmConfig};
use burn::tensor::module::embedding;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread;

use crate::support::*;

/// Whether Burn refuses two dtypes in one operation here: CubeCL without fusion does not.
static REFUSES: LazyLock<bool> = LazyLock::new(|| {
    let half = || ones().inner().cast(halves()[0]);
    quietly(|| half() + ones().inner()).is_err()
});

/// Every mistake is one of this network.
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

    /// All of it in the scopes of a handle, none, the first layer, another model, or all but a parameter that Burn has made anew.
    fn attached(mut self, attaches: &str, amp: &MixedPrecision) -> Self {
        match attaches {
            "all" => return amp.attach(self),
            "part" => self.first = amp.attach(self.first),
            "another" => drop(Gain::at(&[1.0], amp)),
            "lost" => {
                self = amp.attach(self);
                self.last.bias = self.last.bias.map(|bias| bias.map(|bias| bias * 1.0));
            }
            _ => {}
        }
        self
    }
}

/// A mistake, what of the network is attached, which mistake it is in [`loss`], and, where two dtypes clash for sure, parts of the error.
const MISTAKES: &str = r#"
a mask that is captured > all > x * mask > parameter: Some("first.bias
a mask of booleans made float inside > all > x * bools > -
noise that is made inside > all > x + noise > -
a tensor that is captured before the first layer > all > early > attached: true .. parameter: None
a value where a mask holds > all > mask_where > -
a tensor that is joined > all > cat > -
a matrix that is captured > all > x @ square > -
a parameter that is read outside > all > x * gain > -
a weight that is read outside > all > x @ weight > -
a parameter that is read outside alone > all > gain alone > -
a parameter that has lost its casts > lost > x > parameter: Some("last.weight
a buffer > all > norm > parameter: Some("norm.
a buffer of a model in validation > all > validation > -
a state that a layer makes > all > lstm > -
a target, with the loss inside > all > target > -
a model that was not attached > none > x > attached: false .. parameter: None
one beside another that was > another > x > attached: true .. parameter: None
one that gets an input with gradients > none > tracked > -
one of tokens, which runs in f32 > none > tokens > -
a part that was not attached > part > x > -
a table that was not attached > part > table > -
the model of another handle > all > other > attached: false .. parameter: None
a thread that has not entered the scope > all > thread > parameter
an input in f64 > all > f64 > parameter: Some("first.
"#;

/// All that a scope captures is f32.
fn loss(net: &Net, amp: &MixedPrecision, mistake: &str) -> Tensor<1> {
    let input = || random::<2>(1, [6, 4], &device());
    let target = || random::<2>(2, [6, 4], &device());
    // Of two values that f16 cannot read out of the bytes of f32.
    let mask = random::<2>(3, [6, 4], &device()).greater_elem(0.0).float() * 1.1;
    let high = || mask.clone().greater_elem(0.5);
    let square = random::<2>(4, [4, 4], &device());
    let gain = net.gain.factor.val().unsqueeze::<2>();
    let weight = net.last.weight.val();
    let tokens = Tensor::<1, Int>::arange(0..6, &device());
    let layers = |x: Tensor<2>| net.last.forward(net.first.forward(x));
    let around = |middle: &dyn Fn(Tensor<2>) -> Tensor<2>| {
        let forward = |x| net.last.forward(middle(net.first.forward(x)));
        amp.autocast(input(), forward)
    };
    let output = match mistake {
        "x" => around(&|x| x),
        "x * mask" => around(&|x| x * mask.clone()),
        "x * bools" => around(&|x| x * high().float()),
        "x + noise" => around(&|x| x + Tensor::full([6, 4], 0.3, &device())),
        "early" => amp.autocast(input(), |x| layers(x - mask)),
        "mask_where" => around(&|x| x.mask_where(high(), target())),
        "cat" => around(&|x| Tensor::cat(vec![x, target()], 0).slice([3..9, 0..4])),
        "x @ square" => around(&|x| x.matmul(square.clone())),
        "x * gain" => around(&|x| x * gain.clone()),
        "x @ weight" => around(&|x| x.matmul(weight.clone())),
        "gain alone" => amp.autocast(input(), |x| x * gain),
        "norm" => around(&|x| net.norm.forward(x)),
        "validation" => {
            let valid = net.valid();
            let forward = |x| valid.norm.forward(valid.first.forward(x));
            let target = amp.autocast(input().inner(), forward);
            let output = amp.autocast(input(), |x| net.first.forward(x));
            return (output - Tensor::from_inner(target)).square().mean();
        }
        "lstm" => around(&|x| net.lstm.forward(x.unsqueeze_dim(1), None).0.squeeze_dim(1)),
        "target" => {
            let errors = |x| (net.first.forward(x) - target()).square();
            return amp.autocast(input(), errors).mean();
        }
        "tracked" => amp.autocast(input().require_grad(), layers),
        "tokens" => {
            let of = |tokens| layers(net.table.forward(tokens).squeeze_dim(1));
            amp.autocast(tokens.reshape([6, 1]), of)
        }
        "table" => around(&|x| {
            let at = tokens.clone().reshape([1, 6]);
            x + embedding(net.table.weight.val(), at).squeeze_dim::<2>(0)
        }),
        "other" => {
            let other = MixedPrecision::new(amp.dtype()).allow_unchecked_dtypes();
            other.autocast(input(), |x| net.first.forward(x))
        }
        "thread" => around(&|x| {
            thread::scope(|threads| {
                let there = threads.spawn(|| net.last.forward(x)).join();
                there.unwrap_or_else(|panic| resume_unwind(panic))
            })
        }),
        "f64" => amp.autocast(input().cast(FloatDType::F64), |x| net.first.forward(x)),
        other => panic!("{other}"),
    };
    (output - target()).square().mean()
}

/// What became of a program: as far from the loss in f32 as this, in parts of it; or a message, of `attach`, of `check`, of the training, or a warning.
type End = Result<f64, String>;

/// The loss after three steps.
fn trained(amp: &MixedPrecision, mut net: Net, mistake: &str) -> f64 {
    let mut optim = ScaledOptimizer::new(sgd(), amp);
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
    let said = |panic| panic_message::<()>(|| resume_unwind(panic));
    let trained = quietly(run).map_err(said)?;
    let full = MixedPrecision::f32();
    let expected = self::trained(&full, full.attach(Net::new()), mistake);
    Ok((trained / expected - 1.0).abs())
}

/// Words of burn-amp's own messages; what Burn says stands behind them.
const OURS: [&str; 3] = ["autocast", "MixedPrecision", "never tested"];

/// Whether it is said in words of burn-amp's, or trains right.
fn is_heard(end: &End) -> bool {
    match end {
        Err(text) => OURS.iter().any(|word| text.contains(word)),
        Ok(off) => *off < 0.05,
    }
}

#[test]
fn no_mistake_trains_in_silence() {
    for dtype in halves() {
        let amp = || MixedPrecision::new(dtype);
        let has_f64 = device().supports_dtype(DType::F64);
        let is_here = |[.., mistake, _]: &[&str; 4]| *mistake != "f64" || has_f64;
        for [name, attaches, mistake, parts] in rows(MISTAKES).filter(is_here) {
            let trained = end(attaches, mistake, &amp(), false);
            // By the handle, which asks the device; or because all of it runs in f32. Flex refuses all of them.
            let is_said = is_heard(&trained);
            assert!(is_said || *REFUSES && !on_flex(), "{name}: {trained:?}");
            // With fusion, Burn 0.22.1 multiplies matrices of two dtypes; without it, it refuses nothing. Where the program goes on all the same, a check is
            // what it has.
            if !(*REFUSES && is_said) {
                let checked = end(attaches, mistake, &amp().allow_unchecked_dtypes(), true);
                let is_burns = !*REFUSES && checked.is_err();
                println!("{dtype:?}, {name}: {trained:?}, checked {checked:?}");
                assert!(is_burns || is_heard(&checked), "{name}");
            }
            if *REFUSES && parts != "-" {
                assert_clash(&amp(), attaches, mistake, parts);
            }
        }
    }
}

/// What Burn says of two dtypes comes with what to write, and with the parameter that was read last.
fn assert_clash(amp: &MixedPrecision, attaches: &str, mistake: &str, parts: &str) {
    let net = Net::new().attached(attaches, amp);
    let checked = amp.check(&net, |net| loss(net, amp, mistake));
    let error = checked.unwrap_err();
    is_error(&error, "Border { what: Clash", []);
    let found = format!("{error:?}");
    let has = |part: &str| found.contains(part);
    assert!(parts.split(" .. ").all(has), "{mistake}: {found}");
    let said = error.to_string();
    // With fusion, Burn does not say which dtypes they are.
    let is_named = mistake == "f64" && (on_flex() || found.contains("F64"));
    assert_eq!(said.contains("f64"), is_named, "{said}");
    assert_eq!(end(attaches, mistake, amp, false), Err(said));
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
        if *REFUSES {
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
        assert_eq!(all_gradients(&grads, &gain), [[1.0; 2]]);
        return;
    };
    assert!(!said.contains("panicked"), "{said}");
}
