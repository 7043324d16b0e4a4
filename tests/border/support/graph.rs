//! Losses that are written as a line of words, and what a step on them has done.

use super::*;
use std::mem::replace;
use std::str::SplitWhitespace;
use std::thread;

/// Three parts, and what stands outside of all scopes.
#[derive(Module, Debug)]
pub struct Net {
    pub trunk: Gain,
    pub left: Gain,
    pub right: Gain,
    pub outside: Gain,
}

impl Net {
    pub fn new([trunk, left, right, outside]: [Gain; 4]) -> Self {
        Self {
            trunk,
            left,
            right,
            outside,
        }
    }
}

pub fn net() -> Net {
    net_of(2.0)
}

pub fn net_of(value: f32) -> Net {
    Net::new([(); 4].map(|()| Gain::new(&[value; 2])))
}

/// The left part in scopes of the second handle, the others in those of the first.
pub fn attached(net: Net, [a, b]: [&MixedPrecision; 2]) -> Net {
    let [trunk, right, outside] = [net.trunk, net.right, net.outside].map(|gain| a.attach(gain));
    Net::new([trunk, b.attach(net.left), right, outside])
}

/// The loss that a line says of two ones.
pub fn loss(amp: &MixedPrecision, net: &Net, line: &str) -> Tensor<1> {
    loss_of([amp, amp], net, ones(), line)
}

/// The loss that a line says of an input. Its words are read from left to right, and each does something to the value before it: `[ .. ]` is a
/// scope, `( .. )` a part in f32, `{k .. }` a region. What stands between ` + ` begins with the input anew, and is summed. `=` keeps a value for later.
pub fn loss_of(amps: [&MixedPrecision; 2], net: &Net, input: Tensor<1>, line: &str) -> Tensor<1> {
    let mut walk = Walk {
        amps,
        net,
        words: line.split_whitespace(),
        kept: input.clone(),
    };
    let first = walk.on(input.clone());
    (line.split(" + ").skip(1)).fold(first, |sum, _| sum + walk.on(input.clone()))
}

/// What a scope says that gets what the first line makes of two ones, and does in it what the other line says.
pub fn scope_of(
    amps: [&MixedPrecision; 2],
    net: &Net,
    [before, inside]: [&str; 2],
) -> Result<Tensor<1>, AmpError> {
    let words = format!("{before} ] {inside}");
    let mut walk = Walk {
        amps,
        net,
        words: words.split_whitespace(),
        kept: ones(),
    };
    let input = walk.on(ones());
    amps[0].try_autocast(input, |x| walk.on(x))
}

struct Walk<'a> {
    amps: [&'a MixedPrecision; 2],
    net: &'a Net,
    words: SplitWhitespace<'a>,
    kept: Tensor<1>,
}

impl Walk<'_> {
    fn on(&mut self, mut y: Tensor<1>) -> Tensor<1> {
        let ([amp, other], net) = (self.amps, self.net);
        while let Some(word) = self.words.next() {
            y = match word {
                "]" | ")" | "}" | "+" => break,
                "[" => amp.autocast(y, |x| self.on(x)),
                // Of the other handle, of the nearest one that is around it, and of one in f32.
                "[b" => other.autocast(y, |x| self.on(x)),
                "[free" => autocast(y, |x| self.on(x)),
                "[f32" => MixedPrecision::f32().autocast(y, |x| self.on(x)),
                // One that gives twice its value, too.
                "[[" => {
                    let twice = |y: Tensor<1>| [y.clone(), y * 2.0];
                    let [once, kept] = amp.autocast(y, |x| twice(self.on(x)));
                    self.kept = kept;
                    once
                }
                "(" => in_f32(y, |x| self.on(x)),
                "thread(" => {
                    let scope = Scope::current();
                    let work = || scope.enter(|| self.on(y));
                    thread::scope(|threads| threads.spawn(work).join().unwrap())
                }
                _ if word.starts_with('{') => rescaled(region(word), y, |x| self.on(x)),
                // One that gets what is kept.
                _ if word.starts_with("&{") => {
                    let both = (y, self.kept.clone());
                    rescaled(region(&word[1..]), both, |(x, kept)| {
                        self.kept = kept;
                        self.on(x)
                    })
                }
                "a?" | "b?" | "f32?" => {
                    let expected = match word {
                        "a?" => amp.dtype(),
                        "b?" => other.dtype(),
                        _ => FloatDType::F32,
                    };
                    assert_eq!(y.dtype(), expected.into());
                    y
                }
                "T" => net.trunk.forward(y),
                "L" => net.left.forward(y),
                "R" => net.right.forward(y),
                "O" => net.outside.forward(y),
                "ones" => ones(),
                "tracked" => ones().require_grad(),
                "leaf" => y.detach().require_grad(),
                "half" => y.cast(amp.dtype()),
                "full" => y.cast(FloatDType::F32),
                // 40000 is in f16, twice that is not.
                "large" => vector(&[1.0, 4e4]),
                "=" => {
                    self.kept = y.clone();
                    y
                }
                "kept" => self.kept.clone(),
                "swap" => replace(&mut self.kept, y),
                "times" => y * self.kept.clone(),
                // What is inside already stays.
                "taken" => y * amp.cast(amp.cast(self.kept.clone())),
                "borrowed" => y * net.left.factor.val().cast(amp.dtype()),
                "backward" => {
                    y.clone().cast(FloatDType::F32).sum().backward();
                    y
                }
                "tanh" => tanh(y),
                "square" => y.square(),
                // A mask of minus infinity is not caused by the forward pass: its gradients are finite.
                "masked" => {
                    let second = Tensor::from_bool([false, true], &device());
                    y.mask_fill(second, f32::NEG_INFINITY)
                }
                "first" => y.slice(0..1),
                "infinite" => y * 6e4 * 6e4,
                // Values that stay, and whose gradient becomes NaN in f32: the root of a zero.
                "root" => y.clone() + (y * 0.0).sqrt(),
                "own" => {
                    let own = net.outside.factor.val();
                    y * (own.clone() + (own * 0.0).sqrt())
                }
                "penalty" => (net.trunk.factor.val() * 0.0).square().sum().sqrt(),
                // Values that stay, and whose gradient overflows in half precision on its way through.
                "deep" => y * two(-9) * two(-9) * two(9) * two(9),
                // Values that stay, and a gradient that f32 alone can hold.
                "wide" => y.clone() * two(20) - y.detach() * (two(20) - 1.0),
                "sum" => y.sum(),
                "zero" => y.sum() * 0.0,
                "flat" => y.sum() * two(-10),
                // Its gradient times the scale is beyond f16.
                "steep" => y.sum() * two(10),
                // The first gradient that rounds to infinity, and the one below.
                "last" => y.sum() * (65519.0 / SCALE),
                "beyond" => y.sum() * (65520.0 / SCALE),
                // Of a batch whose target is missing.
                "nan" => (y - vector(&[0.0, f32::NAN])).square().mean(),
                // By a power of two, and the sum of that.
                _ if word.starts_with('*') => y * two(power(&word[1..])),
                _ if word.starts_with('^') => y.sum() * two(power(&word[1..])),
                _ => panic!("no word: {word}"),
            };
        }
        y
    }
}

fn power(text: &str) -> i32 {
    text.parse().unwrap()
}

/// A region with the factor 2^k, `{k`; or one whose factor moves, and begins there, `{name:k`: it grows after three finite steps, and `_k` has no lower one.
/// One that is not enabled; those that other rules move; and AdaLoss up to 2^k, `<k`, and of the share 10^k in 8, `%k`.
fn region(word: &str) -> Rescale {
    let Some((name, kind)) = word[1..].split_once(':') else {
        return Rescale::power_of_two(power(&word[1..]));
    };
    let at = |k: &str| at_scale(two(power(k))).with_growth_interval(3);
    let eager = at_scale(16.0).with_growth_interval(1);
    let settings = match (kind, kind.split_at(1)) {
        ("adaloss", _) => return AdaLoss::default().region(name),
        ("off", _) => at_scale(8.0).with_enabled(false),
        ("eager", _) => eager,
        ("adaptive", _) => eager.with_schedule(Schedule::adaptive_interval()),
        ("logmax", _) => at_scale(1.0).with_schedule(Schedule::log_max()),
        (_, ("_", k)) => at(k).with_min_scale(Some(two(power(k)))),
        (_, ("%", k)) => {
            let share = 10f64.powi(power(k));
            return AdaLoss::new(share, 8.0).unwrap().region(name);
        }
        (_, ("<", k)) => {
            let config = at_scale(1.0).with_growth_interval(2);
            let schedule = config.with_max_scale(Some(two(power(k)))).schedule();
            let schedule = schedule.unwrap().with_rule(AdaLoss::default()).unwrap();
            return Rescale::dynamic(name).with_schedule(schedule).unwrap();
        }
        (k, _) => at(k),
    };
    Rescale::dynamic(name).with_scaler(settings).unwrap()
}

pub const SCALE: f64 = 1024.0;

pub fn handle() -> MixedPrecision {
    f16(SCALE)
}

/// What steps have done, in a word if one is skipped at most: how many are skipped, for a bad loss, and for a cause that is not known; and the scale.
pub fn outcome_of(amp: &MixedPrecision, counters: StepCounters) -> String {
    let (bad, unknown) = (counters.bad_losses(), counters.unknown_causes());
    let found = format!(
        "{} {bad} {unknown}: {}",
        counters.skipped(),
        amp.loss_scale()
    );
    let word = match found.as_str() {
        "0 0 0: 1024" => "fine",
        "1 0 0: 512" => "lowered",
        "1 1 0: 1024" => "bad",
        "1 1 1: 1024" => "unknown",
        _ => return found,
    };
    word.to_string()
}

/// A training of a net.
pub type Training<O = ModuleOptimizer> = Player<Net, O>;

pub fn training() -> Training {
    Player::new(net(), &handle())
}

/// What all steps of a training have done.
pub fn ended<O: ModuleOptim>(mut run: Training<O>) -> String {
    run.optim.synchronize().unwrap();
    outcome_of(&run.amp, run.counters())
}

/// The gradients of a line.
pub fn pass<O: ModuleOptim>(run: &Training<O>, line: &str) -> GradientsParams {
    run.gradients(loss(&run.amp, &run.model, line))
}

/// Whether a step on them is skipped.
pub fn step<O: ModuleOptim>(run: &mut Training<O>, line: &str) -> bool {
    run.step(0.01, pass(run, line))
}
