//! The cause of a skip: a loss scale that was too high is lowered, one that is not the cause stays. In graphs of any shape, with something bad anywhere, under
//! whoever steps. What one scope, a chain of two, or two side by side give is drawn in `tests/oracle`.

use crate::support::{graph::*, *};

/// Graphs that any device computes alike. At a scale of 2^10, a gradient of 2^6 is the first that does not fit; factors of regions are multiplied. f32 needs
/// none, but what is in half precision in it has that of the region.
const CASES: &str = "
infinite by design > fine > [ T masked ] first flat
the last that does not round to infinity > fine > [ T ] last
two exits > fine > [[ T ] flat + kept flat
the first that does > lowered > [ T ] beyond
deep inside > lowered > [ T *9 *-9 *9 ] sum
infinite by design, too steep > lowered > [ T masked ] first steep
two exits, the second steep > lowered > [[ T ] flat + kept steep
a chain, steep in the second alone > lowered > [ T ] square [ T *15 ] flat
in a scope without a scale > bad > [f32 [ T ] ] nan
two exits, the first bad > bad > [[ T ] nan + kept flat
a chain, its output infinite > bad > large [ T ] square [ T ] flat
side by side, both bad > bad > [ T ] nan + [ T ] nan
side by side, the second output infinite > bad > [ T ] flat + large [ T ] square flat
side by side, the first output infinite > bad > large [ T ] square flat + [ T ] flat
a scope, the last that fits > fine > [ T ] ^5
a scope, the first that does not > lowered > [ T ] ^6
a region, the last that fits > fine > [ {4 T } ] ^1
a region, the first that does not > lowered > [ {4 T } ] ^2
a scope in a region, the last that fits > fine > {4 [ T ] } ^1
a scope in a region, the first that does not > lowered > {4 [ T ] } ^2
a region in a region, the last that fits > fine > [ {3 {4 T } } ] ^-2
a region in a region, the first that does not > lowered > [ {3 {4 T } } ] ^-1
regions around scopes, the last that fits > fine > {4 [ {3 [free T ] } ] } ^-2
regions around scopes, the first that does not > lowered > {4 [ {3 [free T ] } ] } ^-1
a region in an island, the last that fits > fine > [ ( {4 T } ) ] ^5
a region in an island, the first that does not > lowered > [ ( {4 T } ) ] ^6
a scope in a region in an island, the last that fits > fine > [ ( {4 [free T ] } ) ] ^1
a scope in a region in an island, the first that does not > lowered > [ ( {4 [free T ] } ) ] ^2
";

/// Others.
const OF_FLEX: &str = "
three side by side, the second bad > bad > [ T ] flat + [ L ] nan + [ R ] flat
three side by side, the second steep > lowered > [ T ] flat + [ L ] steep + [ R ] flat
side by side, the second deep > lowered > [ T ] flat + [ L deep ] flat
side by side, the first infinite inside > bad > [ T infinite ] square flat + [ L ] flat
a GAN, the fake bad > bad > [ T ] = ones [ L ] flat + kept [ L ] nan
a GAN, the real steep > lowered > [ T ] = ones [ L ] steep + kept [ L ] flat
NaN between two scopes > bad > [ T ] root [ L ] flat
NaN between, of a second path alone > bad > [ T ] = root flat + kept [ L ] flat
scopes in a row, the last deep > lowered > [ T ] [ L deep ] flat
scopes in a row, the first deep > lowered > [ T deep ] [ L ] flat
a part that is used twice, the inner bad > bad > [ T ] = nan + kept [ T ] flat
an island, NaN in it > bad > [ T ( R root ) L ] flat
an island, deep before it > lowered > [ T deep ( R ) ] flat
an island, deep after it > lowered > [ T ( R ) deep ] flat
an island, its cast overflows > lowered > [ T ( wide ) ] flat
a scope in an island > lowered > [ T ( [ R deep ] ) ] flat
a scope in an island, NaN after it > bad > [ T ( [ R ] root ) ] flat
a scope in a scope > lowered > [ T [ L deep ] ] flat
an input that requires gradients > fine > tracked [ T ] flat
an input made by f32, deep > lowered > tracked O root [ T deep ] flat
an f32 layer before, NaN in it > unknown > tracked O root [ T ] flat
an f32 layer behind, NaN in its own gradient > unknown > [ T ] own flat
a penalty whose root is zero > unknown > [ T ] flat + penalty
a captured tensor > lowered > O = ones [ T taken deep ] flat
a region whose factor stays > lowered > [ {20 T } ] flat
";

const GOOD: &str = "[ T ] flat";

/// What steps on these losses have done, and ones that are fine.
fn stepped<O: ModuleOptim>(mut run: Training<O>, lines: &[&str]) -> String {
    for line in lines.iter().chain(&[GOOD; 2]) {
        step(&mut run, line);
    }
    ended(run)
}

/// By Burn's optimizer, by a fused one, and as the last of a window. Every way to step is an executor in `tests/oracle`.
#[test]
fn what_was_not_finite_first_is_the_cause_whoever_steps() {
    let others = if on_flex() { OF_FLEX } else { "" };
    if !on_flex() {
        skipped(
            "the root of zero has a finite gradient, and steps of one scope alone are recorded",
        );
    }
    for [name, right, line] in rows(CASES).chain(rows(others)) {
        assert_eq!(stepped(training(), &[line]), right, "{name}");
        if on_flex() {
            let fused = Player::with(fused(), net(), &handle());
            assert_eq!(stepped(fused, &[line]), right, "{name}, fused");
            let mut run = training();
            run.optim = run.optim.with_accumulation(2);
            assert_eq!(stepped(run, &[GOOD, line]), right, "{name}, in a window");
        }
    }
}

/// With a scaler, whose iteration the error of gradients that were dropped ends.
#[test]
fn an_iteration_ends_with_a_bad_loss_that_was_dropped() {
    let none = at_scale(SCALE).with_max_consecutive_skips(Some(0));
    let run = Player::new(net(), &f16_under(none));
    let (mut sgd, mut scaler) = (sgd(), GradScaler::from(&run.amp));
    let tested = |scaler: &GradScaler, line: &str| {
        let grads = scaler.backward(loss(&run.amp, &run.model, line), &run.model);
        scaler.unscale(grads, &run.model).unwrap()
    };
    for _ in 0..2 {
        let grads = tested(&scaler, "[ T ] flat");
        scaler.step(&mut sgd, 0.01, run.model.clone(), grads);
        drop(tested(&scaler, "[ T ] nan"));
        is_error(&scaler.update().unwrap_err(), "LossNotFinite", []);
    }
}

/// The loss, the values of the left part, and what the error says: whether the output is finite, and which parameters are to blame, and were read last.
const ENDS: &str = r#"
[ T ] nan > 2 > output_finite: true, parameter: None, last_read: Some("trunk.factor")
large [ T ] square flat > 2 > output_finite: false, parameter: None, last_read: Some("trunk.factor")
[ T ] [ L ] nan > 2 > output_finite: true, parameter: None, last_read: Some("left.factor")
[ T ] [ L ] nan > inf > output_finite: false, parameter: Some("left.factor"), last_read: Some("left.factor")
"#;

/// As many as are allowed, which a finite step counts anew, and a record in a run with other settings: so that a run goes on that they have ended.
#[test]
fn bad_losses_in_a_row_end_the_run_and_leave_the_scale() {
    for [bad, left, output] in rows(ENDS) {
        let with = |most| {
            let config = at_scale(SCALE).with_max_consecutive_skips(Some(most));
            let left = Gain::new(&[left.parse().unwrap(); 2]);
            Player::new(Net { left, ..net() }, &f16_under(config))
        };
        let ends = |run: &mut Training, most: u32| {
            assert!((0..most).all(|_| step(run, bad)));
            let error = run.try_step(0.01, pass(run, bad)).unwrap_err();
            let skips = most + 1;
            let expected = format!("LossNotFinite {{ skips: {skips}, {output}");
            is_error(&error, &expected, []);
            assert_eq!(run.scale(), SCALE);
        };
        let mut run = with(2);
        assert!((0..2).all(|_| step(&mut run, bad)) && !step(&mut run, GOOD));
        ends(&mut run, 2);
        assert_eq!(run.counters().bad_losses(), 5);
        let mut resumed = with(3);
        resumed.optim.load_record(run.optim.to_record()).unwrap();
        ends(&mut resumed, 3);
    }
}

/// From the third in a row on.
#[test]
fn skips_in_a_row_are_warned_of() {
    let mut run = Player::new(net(), &f16(3.0 * two(20)));
    let mut warned = |line: &str, steps: usize| {
        let mut steps = (0..steps).map(|_| step(&mut run, line));
        captured(Level::Warn, || assert!(steps.all(|skipped| skipped)))
    };
    let wording = [(18, 3), (17, 4)].map(|(exponent, skips)| {
        let scale = 3.0 * two(exponent);
        format!("{skips} overflows in a row at loss scale {scale}")
    });
    assert_eq!(warned("[ T ] steep", 4), wording);
    // A bad loss names its cause.
    let bad = warned("[ T ] nan", 3).concat();
    says(&bad, ["of the loss is infinite or NaN, 3 in a row"]);
}

/// A window of Burn's own accumulator, which knows nothing of scales: the sum shows what one of its micro-batches has done, whether or not all forward passes
/// come first, and however many scopes they have.
#[test]
fn micro_batches_in_burns_accumulator() {
    let long = on_flex().then_some((120, 4, 1));
    let windows = [(4, 0, 0), (4, 0, 1), (4, 0, 3)].into_iter().chain(long);
    let windows = windows.flat_map(|window| [(window, 0), (window, window.0)]);
    for ((micro_batches, more, at), first) in windows {
        for (odd, expected) in [("flat", "fine"), ("steep", "lowered"), ("nan", "bad")] {
            let (mut run, mut sum) = (training(), GradientsAccumulator::new());
            let forward = |micro| {
                let line = format!("[ L ] {}", if micro == at { odd } else { "flat" });
                let line = line + &" + [ T ] flat".repeat(more);
                loss(&run.amp, &run.model, &line)
            };
            let early: Vec<_> = (0..first).map(forward).collect();
            let late = (first..micro_batches).map(forward);
            for loss in early.into_iter().chain(late) {
                sum.accumulate(&run.model, run.gradients(loss));
            }
            let warned = captured(Level::Warn, || _ = run.step(0.01, sum.grads()));
            assert!(!warned.concat().contains("never tested"), "{warned:?}");
            // And the next window is a fresh one.
            let case = format!("{odd} at {at} of {micro_batches}, {first} first");
            assert!(!step(&mut run, GOOD), "{case}");
            assert_eq!(ended(run), expected, "{case}");
        }
    }
}
