//! Parts whose factors move: whose fault an overflow is, what each learns from a step, and that records hold it.

use crate::support::*;

#[derive(Module, Debug)]
struct Net {
    inner: Gain,
    last: Gain,
}

const KEPT: i32 = 10;

fn run() -> Run<Net> {
    let gain = || Gain::new(&[1.0, 1.0]);
    let (inner, last) = (gain(), gain());
    Run::new(Net { inner, last }, f16(two(KEPT)))
}

/// A part that begins at 2^k.
fn dynamic(name: &str, k: i32) -> Rescale {
    let config = at_scale(two(k)).with_growth_interval(3);
    Rescale::dynamic(name).with_scaler(config).unwrap()
}

/// The first layer is a part.
fn one(part: Rescale) -> impl Fn(&Net, Tensor<1>) -> Tensor<1> {
    move |net, x| {
        let hidden = rescaled(part.clone(), x, |x| net.inner.forward(x));
        net.last.forward(hidden)
    }
}

impl Run<Net> {
    fn output(&self, forward: impl Fn(&Net, Tensor<1>) -> Tensor<1>) -> Tensor<1> {
        let input = vector(&[1.0, 1.0]);
        self.amp.autocast(input, |x| forward(&self.model, x))
    }

    /// Whether a step is skipped, and the exponent of the scale after it.
    fn step_on(&mut self, loss: Tensor<1>) -> (bool, i32) {
        let before = numbers(&self.model);
        // So small a step that the gradients of the next are the same.
        let skipped = self.step(1e-30, self.gradients(loss));
        assert_eq!(numbers(&self.model), before);
        (skipped, exponent(self.amp.loss_scale()))
    }

    /// A step with a loss of 2^`weight` times the sum of the outputs.
    fn take(&mut self, weight: i32, forward: impl Fn(&Net, Tensor<1>) -> Tensor<1>) -> (bool, i32) {
        self.step_on(self.output(forward).sum() * two(weight))
    }

    /// The exponents of the parts' factors, after their names.
    fn parts(&self) -> String {
        let parts = self.amp.parts().into_iter();
        let parts = parts.map(|(name, factor)| format!("{name} {}", exponent(factor)));
        parts.collect::<Vec<_>>().join(", ")
    }
}

fn exponent(scale: f32) -> i32 {
    let exponent = scale.log2();
    assert_eq!(exponent.fract(), 0.0);
    exponent as i32
}

/// Where the gradient comes to the part, deep in it, and where only that of a parameter does so.
#[test]
fn an_overflow_in_a_part_lowers_its_factor_alone() {
    let parts: [fn(&Net, Tensor<1>) -> Tensor<1>; 3] = [
        |net, x| net.inner.forward(x),
        |net, x| net.inner.forward(x * two(8)) * two(-8) * two(8) * two(-8),
        |net, x| net.inner.forward(x * two(8)) * two(-8),
    ];
    for (index, part) in parts.into_iter().enumerate() {
        let mut run = run();
        let forward = |net: &Net, x: Tensor<1>| {
            let hidden = rescaled(dynamic("inner", 11), x, |x| part(net, x));
            net.last.forward(hidden)
        };
        // The gradient that comes is 2^8, and 2^16 is too much.
        for k in [10, 9, 8, 7] {
            assert_eq!(run.take(-2, forward), (true, KEPT), "part {index}");
            assert_eq!(run.parts(), format!("inner {k}"));
        }
        assert_eq!(run.take(-2, forward), (false, KEPT));
        assert_eq!(run.parts(), "inner 7");
        assert_eq!(run.counters().skipped(), 4);
    }
}

/// Before it comes to the part, or in the loss: the factor is not to blame.
#[test]
fn an_overflow_outside_leaves_the_part() {
    let forward = one(dynamic("inner", 3));
    let mut run = self::run();
    assert_eq!(run.take(8, &forward), (true, KEPT - 1));
    assert_eq!(run.parts(), "inner 3");
    // In the parameter of the last part.
    let late = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(dynamic("inner", 3), x, |x| net.inner.forward(x) * two(12));
        net.last.forward(hidden) * two(-6)
    };
    assert_eq!(run.take(1, late), (true, KEPT - 2));
    assert_eq!(run.parts(), "inner 3");
    // In the loss.
    let mut run = self::run();
    let loss = (run.output(&forward) * f32::NAN).sum();
    assert_eq!(run.step_on(loss), (true, KEPT));
    assert_eq!(run.parts(), "inner 3");
    assert_eq!(run.counters().bad_losses(), 1);
}

#[test]
fn of_nested_parts_the_first_is_to_blame() {
    let forward = |outer: i32, inner: i32| {
        let (outer, inner) = (dynamic("outer", outer), one(dynamic("inner", inner)));
        move |net: &Net, x: Tensor<1>| rescaled(outer.clone(), x, |x| inner(net, x))
    };
    // The gradient that comes is 2^10.
    let mut run = self::run();
    assert_eq!(run.take(0, forward(7, 1)), (true, KEPT));
    assert_eq!(run.parts(), "inner 1, outer 6");
    let mut run = self::run();
    for (skipped, parts) in [
        (true, "inner 4, outer 2"),
        (true, "inner 3, outer 2"),
        (false, "inner 3, outer 2"),
    ] {
        assert_eq!(run.take(0, forward(2, 5)), (skipped, KEPT));
        assert_eq!(run.parts(), parts);
    }
}

/// In f32, a part is that of the scope that opens inside.
#[test]
fn a_scope_in_a_part() {
    let mut run = run();
    for (skipped, parts) in [(true, "all 6"), (true, "all 5"), (false, "all 5")] {
        let forward = |x| run.model.last.forward(run.model.inner.forward(x));
        let scope = |x| run.amp.autocast(x, forward);
        let output = rescaled(dynamic("all", 7), vector(&[1.0, 1.0]), scope);
        assert_eq!(run.step_on(output.sum()), (skipped, KEPT));
        assert_eq!(run.parts(), parts);
    }
}

#[test]
fn clean_steps_let_those_grow_that_were_opened() {
    let both = |lift: i32| {
        move |net: &Net, x: Tensor<1>| {
            let hidden = rescaled(dynamic("a", 0), x, |x| net.inner.forward(x));
            let last = |x| net.last.forward(x) * two(lift);
            rescaled(dynamic("b", 0), hidden, last) * two(-lift)
        }
    };
    let mut run = run();
    for step in 1..=6 {
        let (skipped, _) = match step % 2 {
            0 => run.take(-4, both(0)),
            _ => run.take(-4, one(dynamic("a", 0))),
        };
        assert!(!skipped);
    }
    assert_eq!(run.parts(), "a 2, b 1");
    // One overflow, and the other part waits.
    assert_eq!(run.take(5, both(10)), (true, KEPT));
    assert_eq!(run.parts(), "a 2, b 0");
    run.optim.scaler_mut().reset();
    assert_eq!(run.parts(), "a 0, b 0");
}

/// The loss scale backs off in place of a factor that cannot.
#[test]
fn a_part_at_its_floor() {
    let part = Rescale::dynamic("inner").with_scaler(at_scale(4.0).with_min_scale(Some(4.0)));
    let mut run = run();
    assert_eq!(run.take(5, one(part.unwrap())), (true, KEPT - 1));
    assert_eq!(run.parts(), "inner 2");
}

/// 6e-8 / (0.00125 * deviation), rounded down to a power of two.
#[test]
fn adaloss_lifts_small_gradients() {
    let adaloss = |limit: f64| {
        let config = at_scale(limit).with_max_scale(Some(limit));
        Rescale::adaloss("inner").with_scaler(config).unwrap()
    };
    let plain = || Rescale::adaloss("inner");
    let share = |share: f64| plain().with_statistics(share, 8.0).unwrap();
    for (part, weight, expected) in [
        (plain(), -20, 4),
        (adaloss(64.0), -20, 5),
        (adaloss(1024.0), -22, 7),
        (plain(), -16, 1),
        (plain(), -4, 0),
        // Nested in another factor, up to 1024 in all, and here up to 8.
        (share(1e-3), -20, 3),
        (share(1e-2), -20, 2),
    ] {
        let mut run = run();
        assert_eq!(run.take(weight - KEPT, one(part)), (false, KEPT));
        assert_eq!(run.parts(), format!("inner {expected}"), "{weight}");
    }
}

/// The statistics of what comes to a part say nothing of what is made of it inside.
#[test]
fn adaloss_backs_off_and_comes_back() {
    let config = at_scale(16.0)
        .with_max_scale(Some(16.0))
        .with_growth_interval(2);
    let adaloss = Rescale::adaloss("inner").with_scaler(config).unwrap();
    // 2^-17 comes to the part and asks for 4, and to the parameter 2^31 times that, which holds 2.
    let forward = |net: &Net, x: Tensor<1>| {
        let part =
            |x: Tensor<1>| net.inner.forward(x * two(-12) * two(-12)) * two(15) * two(15) * 2.0;
        net.last.forward(rescaled(adaloss.clone(), x, part))
    };
    let mut run = run();
    let cycle = [(true, "inner 1"), (false, "inner 1"), (false, "inner 2")];
    let expected = [cycle[2]].into_iter().chain(cycle).chain(cycle);
    for (step, (skipped, parts)) in expected.enumerate() {
        assert_eq!(run.take(-17 - KEPT, forward), (skipped, KEPT), "{step}");
        assert_eq!(run.parts(), parts, "{step}");
    }
}

/// A run that is interrupted, and one that is not.
#[test]
fn records_hold_the_parts() {
    let forward = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(Rescale::adaloss("a"), x, |x| net.inner.forward(x));
        rescaled(dynamic("b", 4), hidden, |x| net.last.forward(x))
    };
    let weight = |step: i32| if step % 4 == 1 { 4 } else { -25 };
    let steps = |run: &mut Run<Net>, steps: std::ops::Range<i32>| -> Vec<_> {
        let step = |step| (run.take(weight(step), forward), run.parts());
        steps.map(step).collect()
    };
    let seen = steps(&mut run(), 0..12);
    assert!(seen.iter().any(|((skipped, _), _)| *skipped));
    for stop in 1..12 {
        let mut run = self::run();
        steps(&mut run, 0..stop);
        let bytes = run.optim.to_record().into_bytes().unwrap();
        let record = AmpRecord::from_bytes(bytes).unwrap();
        assert!(format!("{record:?}").contains("\"b\""), "{record:?}");
        let mut resumed = self::run();
        resumed.optim.load_record(record).unwrap();
        assert_eq!(resumed.parts(), run.parts());
        let found = steps(&mut resumed, stop..12);
        assert_eq!(found, seen[stop as usize..], "stopped at {stop}");
    }
}

#[test]
fn other_settings_of_one_name_are_warned_of() {
    let mut run = run();
    let forward = |net: &Net, x| {
        let hidden = rescaled(dynamic("twice", 2), x, |x| net.inner.forward(x));
        rescaled(dynamic("twice", 3), hidden, |x| net.last.forward(x))
    };
    let warning = "part `twice` is opened with other settings";
    let lines = logs(warning, || assert!(!run.take(-4, forward).0));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(run.parts(), "twice 2");
    assert!(format!("{:?}", run.amp).contains("(\"twice\", 4.0)"));
}
