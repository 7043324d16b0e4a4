//! What was not finite first is the cause of a skip: graphs of any shape, with something bad anywhere, under whoever steps.

use crate::skip_cause;
use crate::support::{graph::*, *};

/// More than those of `skip_cause`.
const CASES: &str = "
three side by side, the first bad > bad > [ T ] nan + [ L ] flat + [ R ] flat
three side by side, the second bad > bad > [ T ] flat + [ L ] nan + [ R ] flat
three side by side, the second steep > lowered > [ T ] flat + [ L ] steep + [ R ] flat
side by side, the second deep > lowered > [ T ] flat + [ L deep ] flat
side by side, the first infinite inside > bad > [ T infinite ] square flat + [ L ] flat
a GAN > fine > [ T ] = ones [ L ] flat + kept [ L ] flat
a GAN, the real bad > bad > [ T ] = ones [ L ] nan + kept [ L ] flat
a GAN, the fake bad > bad > [ T ] = ones [ L ] flat + kept [ L ] nan
a GAN, the real steep > lowered > [ T ] = ones [ L ] steep + kept [ L ] flat
a GAN, the fake steep > lowered > [ T ] = ones [ L ] flat + kept [ L ] steep
two heads > fine > [ T ] = [ L ] flat + kept [ R ] flat
two heads, the first bad > bad > [ T ] = [ L ] nan + kept [ R ] flat
two heads, the second bad > bad > [ T ] = [ L ] flat + kept [ R ] nan
two heads, the first steep > lowered > [ T ] = [ L ] steep + kept [ R ] flat
two heads, the second steep > lowered > [ T ] = [ L ] flat + kept [ R ] steep
scopes in a row > fine > [ T ] [ L ] flat
scopes in a row, bad > bad > [ T ] [ L ] nan
NaN between two scopes > bad > [ T ] root [ L ] flat
NaN between, of a second path alone > bad > [ T ] = root flat + kept [ L ] flat
scopes in a row, the last deep > lowered > [ T ] [ L deep ] flat
scopes in a row, the first deep > lowered > [ T deep ] [ L ] flat
a part that is used twice, the inner bad > bad > [ T ] = nan + kept [ T ] flat
an island > fine > [ T ( R ) L ] flat
an island, NaN in it > bad > [ T ( R root ) L ] flat
an island, steep > lowered > [ T ( R ) L ] steep
an island, deep before it > lowered > [ T deep ( R ) ] flat
an island, deep after it > lowered > [ T ( R ) deep ] flat
an island, its cast overflows > lowered > [ T ( wide ) ] flat
a scope in an island > lowered > [ T ( [ R deep ] ) ] flat
a scope in an island, NaN after it > bad > [ T ( [ R ] root ) ] flat
a scope in a scope > lowered > [ T [ L deep ] ] flat
a scope in a scope, bad > bad > [ T [ L ] ] nan
an input that requires gradients > fine > tracked [ T ] flat
an input made by f32, deep > lowered > tracked O root [ T deep ] flat
an f32 layer before, NaN in it > unknown > tracked O root [ T ] flat
an f32 layer behind, NaN in its own gradient > unknown > [ T ] own flat
a penalty whose root is zero > unknown > [ T ] flat + penalty
a captured tensor > lowered > O = ones [ T taken deep ] flat
a region whose factor stays > lowered > [ {20 T } ] flat
";

const GOOD: &str = "[ T ] flat";

/// Takes the step of a loss, and ones that are fine.
pub type Executor = fn(&MixedPrecision, &str) -> Outcome;

fn stepped<O: ModuleOptim>(mut run: Training<O>, lines: &[&str]) -> Outcome {
    for line in lines.iter().chain(&[GOOD; 2]) {
        step(&mut run, line);
    }
    ended(run)
}

fn accumulated(amp: &MixedPrecision, lines: [&str; 2]) -> Outcome {
    let mut run = Player::new(net(), amp);
    run.optim = run.optim.with_accumulation(2);
    stepped(run, &lines)
}

pub const EXECUTORS: [(&str, Executor); 10] = [
    ("Burn's", |amp, line| {
        stepped(Player::new(net(), amp), &[line])
    }),
    ("fused", |amp, line| stepped(fused(amp), &[line])),
    ("the first of a window", |amp, line| {
        accumulated(amp, [line, GOOD])
    }),
    ("the last of a window", |amp, line| {
        accumulated(amp, [GOOD, line])
    }),
    ("each of a window", |amp, line| {
        let mut run = Player::new(net(), amp);
        let each = AccumulationConfig::new(1).with_skip_micro_batch(true);
        run.optim = run.optim.with_accumulation(each);
        for line in [line, GOOD] {
            step(&mut run, line);
        }
        let is_dropped = run.counters().dropped() > 0;
        let (_, scale, bad, unknown) = ended(run);
        (is_dropped, scale, bad, unknown)
    }),
    ("Burn's accumulator", |amp, line| {
        let (mut run, mut sum) = (Player::new(net(), amp), GradientsAccumulator::new());
        for line in [GOOD, line, GOOD] {
            sum.accumulate(&run.model, pass(&run, line));
        }
        run.step(0.01, sum.grads());
        ended(run)
    }),
    ("a scaler", |amp, line| {
        let (mut model, mut sgd) = (amp.attach(net()), SgdConfig::new().init());
        let mut scaler = GradScaler::from(amp);
        for line in [line, GOOD] {
            let grads = scaler.backward(loss(amp, &model, line), &model);
            let grads = scaler.unscale(grads, &model).unwrap();
            model = scaler.step(&mut sgd, 0.01, model, grads);
            scaler.update().unwrap();
        }
        outcome_of(amp, scaler.counters())
    }),
    ("pipelined", |amp, line| {
        let Player { model, optim, .. } = Player::new(net(), amp);
        let mut optim = PipelinedOptimizer::new(optim, flex()).unwrap();
        let model = [line, GOOD, GOOD].iter().fold(model, |model, line| {
            let grads = backward(loss(amp, &model, line), &model);
            optim.step(0.01, model, grads)
        });
        optim.synchronize(model).unwrap();
        outcome_of(amp, optim.synchronized_scaler().counters())
    }),
    ("in one call", |amp, line| {
        let Player { model, optim, .. } = fused(amp);
        let (handle, mut lines) = (
            amp.clone(),
            [line.to_string(), GOOD.to_string()].into_iter(),
        );
        let next = move |net: &Net, _: Tensor<1>| loss(&handle, net, &lines.next().unwrap());
        let mut step = CapturedStep::new(model, optim, next).unwrap();
        (0..2).for_each(|_| drop(step.step(0.01, ones()).unwrap()));
        step.synchronize().unwrap();
        outcome_of(amp, step.optim().scaler().counters())
    }),
    ("one of two", |amp, line| {
        let [mut run, mut other] = [(); 2].map(|()| Player::new(net(), amp));
        for line in [GOOD, line, GOOD] {
            let (own, others) = (pass(&run, line), pass(&other, GOOD));
            run.step(0.01, own);
            other.step(0.01, others);
        }
        assert_eq!(other.counters().skipped(), 0);
        ended(run)
    }),
];

/// In any graph, with something bad anywhere.
#[track_caller]
fn assert_causes(executors: &[(&str, Executor)]) {
    if !on_flex() {
        return skipped(
            "the root of zero has a finite gradient, and steps of one scope alone are recorded",
        );
    }
    let mut wrong = Vec::new();
    for (name, expected, line) in cases(skip_cause::CASES).chain(cases(CASES)) {
        for (executor, run) in executors {
            let found = run(&handle(), line);
            if found != expected {
                wrong.push(format!("{name}, {executor}: {found:?}, not {expected:?}"));
            }
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
