//! What was not finite first is the cause of a skip: graphs of any shape, with something bad anywhere, under whoever steps.

use crate::support::*;

/// Three parts, and what stands outside of all scopes.
#[derive(Module, Debug)]
pub struct Net {
    pub trunk: Gain,
    pub left: Gain,
    pub right: Gain,
    pub outside: Gain,
}

pub fn net() -> Net {
    let [trunk, left, right, outside] = [(); 4].map(|()| Gain::new(&[2.0, 2.0]));
    Net {
        trunk,
        left,
        right,
        outside,
    }
}

pub const SCALE: f64 = 1024.0;

/// What a step has done: skipped, the scale after it, bad losses, and those of which the cause is not known.
pub type Outcome = (bool, f64, u64, u64);

pub const FINE: Outcome = (false, SCALE, 0, 0);
pub const LOWERED: Outcome = (true, SCALE / 2.0, 0, 0);
pub const BAD: Outcome = (true, SCALE, 1, 0);
pub const UNKNOWN: Outcome = (true, SCALE, 1, 1);

/// A loss of a net.
pub type Loss = fn(&MixedPrecision, &Net) -> Tensor<1>;

pub fn flat(y: Tensor<1>) -> Tensor<1> {
    y.sum() * two(-10)
}

/// Its gradient times the scale is beyond f16.
pub fn steep(y: Tensor<1>) -> Tensor<1> {
    y.sum() * two(10)
}

/// Of a batch whose target is missing.
pub fn nan(y: Tensor<1>) -> Tensor<1> {
    (y - vector(&[0.0, f32::NAN])).square().mean()
}

/// Values that stay, and whose gradient becomes NaN in f32: the root of a zero.
pub fn root(x: Tensor<1>) -> Tensor<1> {
    x.clone() + (x * 0.0).sqrt()
}

/// Values that stay, and whose gradient overflows in half precision on its way through.
pub fn deep(x: Tensor<1>) -> Tensor<1> {
    x * two(-9) * two(-9) * two(9) * two(9)
}

pub fn scope(amp: &MixedPrecision, part: &Gain, x: Tensor<1>) -> Tensor<1> {
    amp.autocast(x, |x| part.forward(x))
}

pub fn deep_scope(amp: &MixedPrecision, part: &Gain, x: Tensor<1>) -> Tensor<1> {
    amp.autocast(x, |x| deep(part.forward(x)))
}

pub fn tracked() -> Tensor<1> {
    ones().require_grad()
}

/// A trunk with two heads, each in a scope of its own.
fn heads(amp: &MixedPrecision, net: &Net, losses: [fn(Tensor<1>) -> Tensor<1>; 2]) -> Tensor<1> {
    let hidden = scope(amp, &net.trunk, ones());
    let [left, right] = [&net.left, &net.right].map(|head| scope(amp, head, hidden.clone()));
    losses[0](left) + losses[1](right)
}

/// A critic's of the real and of the fake, which a generator has made.
fn gan(amp: &MixedPrecision, net: &Net, losses: [fn(Tensor<1>) -> Tensor<1>; 2]) -> Tensor<1> {
    let fake = scope(amp, &net.trunk, ones());
    let [real, fake] = [ones(), fake].map(|x| scope(amp, &net.left, x));
    losses[0](real) + losses[1](fake)
}

/// One after another, `between` in f32.
pub fn chain(amp: &MixedPrecision, net: &Net, between: fn(Tensor<1>) -> Tensor<1>) -> Tensor<1> {
    let hidden = between(scope(amp, &net.trunk, ones()));
    scope(amp, &net.left, hidden)
}

/// A part in f32 inside a scope.
fn island(amp: &MixedPrecision, net: &Net, inside: fn(Tensor<1>) -> Tensor<1>) -> Tensor<1> {
    amp.autocast(ones(), |x| {
        let hidden = net.trunk.forward(x);
        net.left
            .forward(in_f32(hidden, |x| inside(net.right.forward(x))))
    })
}

fn cases() -> Vec<(&'static str, Outcome, Loss)> {
    vec![
        ("three side by side, the first bad", BAD, |amp, net| {
            let [a, b, c] =
                [&net.trunk, &net.left, &net.right].map(|part| scope(amp, part, ones()));
            nan(a) + flat(b) + flat(c)
        }),
        ("three side by side, the second bad", BAD, |amp, net| {
            let [a, b, c] =
                [&net.trunk, &net.left, &net.right].map(|part| scope(amp, part, ones()));
            flat(a) + nan(b) + flat(c)
        }),
        (
            "three side by side, the second steep",
            LOWERED,
            |amp, net| {
                let [a, b, c] =
                    [&net.trunk, &net.left, &net.right].map(|part| scope(amp, part, ones()));
                flat(a) + steep(b) + flat(c)
            },
        ),
        ("side by side, the second deep", LOWERED, |amp, net| {
            flat(scope(amp, &net.trunk, ones())) + flat(deep_scope(amp, &net.left, ones()))
        }),
        (
            "side by side, the first output infinite",
            BAD,
            |amp, net| {
                let infinite = amp.autocast(ones(), |x| net.trunk.forward(x) * 6e4 * 6e4);
                flat(infinite.square()) + flat(scope(amp, &net.left, ones()))
            },
        ),
        ("a GAN", FINE, |amp, net| gan(amp, net, [flat, flat])),
        ("a GAN, the real bad", BAD, |amp, net| {
            gan(amp, net, [nan, flat])
        }),
        ("a GAN, the fake bad", BAD, |amp, net| {
            gan(amp, net, [flat, nan])
        }),
        ("a GAN, the real steep", LOWERED, |amp, net| {
            gan(amp, net, [steep, flat])
        }),
        ("a GAN, the fake steep", LOWERED, |amp, net| {
            gan(amp, net, [flat, steep])
        }),
        ("two heads", FINE, |amp, net| heads(amp, net, [flat, flat])),
        ("two heads, the first bad", BAD, |amp, net| {
            heads(amp, net, [nan, flat])
        }),
        ("two heads, the second bad", BAD, |amp, net| {
            heads(amp, net, [flat, nan])
        }),
        ("two heads, the first steep", LOWERED, |amp, net| {
            heads(amp, net, [steep, flat])
        }),
        ("two heads, the second steep", LOWERED, |amp, net| {
            heads(amp, net, [flat, steep])
        }),
        ("a chain", FINE, |amp, net| flat(chain(amp, net, |x| x))),
        ("a chain, bad", BAD, |amp, net| nan(chain(amp, net, |x| x))),
        ("NaN between two scopes", BAD, |amp, net| {
            flat(chain(amp, net, root))
        }),
        ("NaN between, of a second path alone", BAD, |amp, net| {
            let hidden = scope(amp, &net.trunk, ones());
            let other = flat(root(hidden.clone()));
            other + flat(scope(amp, &net.left, hidden))
        }),
        ("a chain, the last deep", LOWERED, |amp, net| {
            let hidden = scope(amp, &net.trunk, ones());
            flat(deep_scope(amp, &net.left, hidden))
        }),
        ("a chain, the first deep", LOWERED, |amp, net| {
            let hidden = deep_scope(amp, &net.trunk, ones());
            flat(scope(amp, &net.left, hidden))
        }),
        (
            "a part that is used twice, the inner bad",
            BAD,
            |amp, net| {
                let hidden = scope(amp, &net.trunk, ones());
                nan(hidden.clone()) + flat(scope(amp, &net.trunk, hidden))
            },
        ),
        ("an island", FINE, |amp, net| flat(island(amp, net, |x| x))),
        ("an island, NaN in it", BAD, |amp, net| {
            flat(island(amp, net, root))
        }),
        ("an island, steep", LOWERED, |amp, net| {
            steep(island(amp, net, |x| x))
        }),
        ("an island, deep before it", LOWERED, |amp, net| {
            flat(amp.autocast(ones(), |x| {
                let hidden = deep(net.trunk.forward(x));
                in_f32(hidden, |x| net.right.forward(x))
            }))
        }),
        ("an island, deep after it", LOWERED, |amp, net| {
            flat(amp.autocast(ones(), |x| {
                deep(in_f32(net.trunk.forward(x), |x| net.right.forward(x)))
            }))
        }),
        ("an island, its cast overflows", LOWERED, |amp, net| {
            // Values that stay, and a gradient that f32 alone can hold.
            let large = |x: Tensor<1>| x.clone() * two(20) - x.detach() * (two(20) - 1.0);
            flat(amp.autocast(ones(), |x| in_f32(net.trunk.forward(x), large)))
        }),
        ("a scope in an island", LOWERED, |amp, net| {
            flat(amp.autocast(ones(), |x| {
                in_f32(net.trunk.forward(x), |x| deep_scope(amp, &net.right, x))
            }))
        }),
        ("a scope in an island, NaN after it", BAD, |amp, net| {
            flat(amp.autocast(ones(), |x| {
                in_f32(net.trunk.forward(x), |x| root(scope(amp, &net.right, x)))
            }))
        }),
        ("a scope in a scope", LOWERED, |amp, net| {
            flat(amp.autocast(ones(), |x| deep_scope(amp, &net.left, net.trunk.forward(x))))
        }),
        ("a scope in a scope, bad", BAD, |amp, net| {
            nan(amp.autocast(ones(), |x| scope(amp, &net.left, net.trunk.forward(x))))
        }),
        ("an input that requires gradients", FINE, |amp, net| {
            flat(scope(amp, &net.trunk, tracked()))
        }),
        ("an input made by f32, deep", LOWERED, |amp, net| {
            let input = root(net.outside.forward(tracked()));
            flat(deep_scope(amp, &net.trunk, input))
        }),
        ("an f32 layer before, NaN in it", UNKNOWN, |amp, net| {
            let input = root(net.outside.forward(tracked()));
            flat(scope(amp, &net.trunk, input))
        }),
        (
            "an f32 layer behind, NaN in its own gradient",
            UNKNOWN,
            |amp, net| {
                let output = scope(amp, &net.trunk, ones());
                let own = root(net.outside.factor.val());
                flat(output * own)
            },
        ),
        ("a penalty whose root is zero", UNKNOWN, |amp, net| {
            let penalty = (net.trunk.factor.val() * 0.0).square().sum().sqrt();
            flat(scope(amp, &net.trunk, ones())) + penalty
        }),
        ("a captured tensor", LOWERED, |amp, net| {
            let captured = net.outside.forward(ones());
            flat(amp.autocast(ones(), |x| deep(net.trunk.forward(x) * amp.cast(captured))))
        }),
        ("a region whose factor stays", LOWERED, |amp, net| {
            let up = || Rescale::power_of_two(20);
            flat(amp.autocast(ones(), |x| rescaled(up(), x, |x| net.trunk.forward(x))))
        }),
        ("two exits, one bad", BAD, |amp, net| {
            let [a, b] = amp.autocast(ones(), |x| {
                let y = net.trunk.forward(x);
                [y.clone(), y * 2.0]
            });
            flat(a) + nan(b)
        }),
    ]
}

pub fn handle() -> MixedPrecision {
    f16(SCALE)
}

pub fn outcome_of(amp: &MixedPrecision, counters: StepCounters) -> Outcome {
    let skipped = counters.skipped() > 0;
    let scale = amp.loss_scale().into();
    (
        skipped,
        scale,
        counters.bad_losses(),
        counters.unknown_causes(),
    )
}

/// Takes the step of a loss, and ones that are fine.
type Executor = fn(Loss) -> Outcome;

pub const GOOD: Loss = |amp, net| flat(scope(amp, &net.trunk, ones()));

fn stepped<O: ModuleOptim>(mut run: Player<Net, O>, losses: &[Loss]) -> Outcome {
    for loss in losses.iter().chain([&GOOD; 2]) {
        let loss = loss(&run.amp, &run.model);
        run.train(0.01, loss);
    }
    run.optim.synchronize().unwrap();
    outcome_of(&run.amp, run.counters())
}

fn accumulated(losses: [Loss; 2]) -> Outcome {
    let amp = handle();
    let mut run = Player::new(net(), &amp);
    run.optim = run.optim.with_accumulation(2);
    stepped(run, &losses)
}

const EXECUTORS: [(&str, Executor); 10] = [
    ("Burn's", |loss| {
        stepped(Player::new(net(), &handle()), &[loss])
    }),
    ("fused", |loss| {
        let fused = FusedSgd::new(SgdConfig::new());
        stepped(Player::with(fused, net(), &handle()), &[loss])
    }),
    ("the first of a window", |loss| accumulated([loss, GOOD])),
    ("the last of a window", |loss| accumulated([GOOD, loss])),
    ("each of a window", |loss| {
        let mut run = Player::new(net(), &handle());
        let each = AccumulationConfig::new(1).with_skip_micro_batch(true);
        run.optim = run.optim.with_accumulation(each);
        for loss in [loss, GOOD] {
            let loss = loss(&run.amp, &run.model);
            run.train(0.01, loss);
        }
        let (counters, scale) = (run.counters(), run.scale());
        let (bad, unknown) = (counters.bad_losses(), counters.unknown_causes());
        (counters.dropped() > 0, scale, bad, unknown)
    }),
    ("Burn's accumulator", |loss| {
        let mut run = Player::new(net(), &handle());
        let mut sum = GradientsAccumulator::new();
        for loss in [GOOD, loss, GOOD] {
            sum.accumulate(&run.model, run.gradients(loss(&run.amp, &run.model)));
        }
        run.step(0.01, sum.grads());
        outcome_of(&run.amp, run.counters())
    }),
    ("a scaler", |loss| {
        let amp = handle();
        let mut model = amp.attach(net());
        let (mut sgd, mut scaler) = (SgdConfig::new().init(), GradScaler::from(&amp));
        for loss in [loss, GOOD] {
            let grads = scaler.backward(loss(&amp, &model), &model);
            let grads = scaler.unscale(grads, &model).unwrap();
            model = scaler.step(&mut sgd, 0.01, model, grads);
            scaler.update().unwrap();
        }
        outcome_of(&amp, scaler.counters())
    }),
    ("pipelined", |loss| {
        let amp = handle();
        let (mut model, optim) = amp.prepare(net(), SgdConfig::new().init());
        let mut optim = PipelinedOptimizer::new(optim, flex()).unwrap();
        for loss in [loss, GOOD, GOOD] {
            let grads = GradientsParams::from_grads(loss(&amp, &model).backward(), &model);
            model = optim.step(0.01, model, grads);
        }
        optim.synchronize(model).unwrap();
        outcome_of(&amp, optim.synchronized_scaler().counters())
    }),
    ("in one call", |loss| {
        let amp = handle();
        let (model, optim) = amp.prepare(net(), FusedSgd::new(SgdConfig::new()));
        let (handle, mut losses) = (amp.clone(), vec![GOOD, loss]);
        let next = |net: &Net, _: Tensor<1>| losses.pop().unwrap()(&handle, net);
        let mut step = CapturedStep::new(model, optim, next).unwrap();
        (0..2).for_each(|_| drop(step.step(0.01, ones()).unwrap()));
        step.synchronize().unwrap();
        outcome_of(&amp, step.optim().scaler().counters())
    }),
    ("one of two", |loss| {
        let amp = handle();
        let [mut run, mut other] = [(); 2].map(|()| Player::new(net(), &amp));
        for loss in [GOOD, loss, GOOD] {
            let (own, others) = (loss(&amp, &run.model), GOOD(&amp, &other.model));
            run.train(0.01, own);
            other.train(0.01, others);
        }
        let (ours, theirs) = (run.counters(), other.counters());
        assert_eq!(theirs.skipped(), 0);
        outcome_of(&amp, ours)
    }),
];

/// In any graph, with something bad anywhere.
#[track_caller]
fn assert_causes(executors: &[(&str, Executor)]) {
    let mut wrong = Vec::new();
    for ((what, expected, loss), (executor, run)) in cases()
        .iter()
        .flat_map(|case| executors.iter().map(move |executor| (case, executor)))
    {
        let found = run(*loss);
        if found != *expected {
            wrong.push(format!("{what}, {executor}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_was_not_finite_first_is_the_cause_whoever_steps() {
    assert_causes(&EXECUTORS[5..]);
}

#[test]
fn what_was_not_finite_first_is_the_cause_of_a_window_too() {
    assert_causes(&EXECUTORS[..5]);
}
