//! Regions whose factors move: the cause of an overflow, how a step moves each factor, and that records hold them.

use crate::support::{graph::*, *};

fn run() -> Training {
    Player::new(net_of(1.0), &f16(two(10)))
}

/// Whether a step is taken (+) or skipped (-), the exponent of the scale after it, and those of the regions' factors.
fn step_on(run: &mut Training, loss: Tensor<1>) -> String {
    let before = numbers(&run.model);
    // So small a step that the gradients of the next are the same.
    let skipped = run.train(1e-30, loss);
    assert_eq!(numbers(&run.model), before);
    let sign = if skipped { '-' } else { '+' };
    let scale = exponent(run.amp.loss_scale());
    format!("{sign}{scale}: {}", regions(run))
}

fn take(run: &mut Training, line: &str) -> String {
    step_on(run, loss(&run.amp, &run.model, line))
}

/// With a loss of 2^`weight`, and the first part in this region.
fn take_in(run: &mut Training, region: &Rescale, weight: i32) -> String {
    let output = run.amp.autocast(ones(), |x| {
        let hidden = rescaled(region.clone(), x, |x| run.model.trunk.forward(x));
        run.model.left.forward(hidden)
    });
    step_on(run, output.sum() * two(weight))
}

/// The exponents of the regions' factors, after their names.
fn regions<O>(run: &Training<O>) -> String {
    let regions = run.amp.regions().into_iter();
    let regions = regions.map(|(name, factor)| format!("{name} {}", exponent(factor)));
    regions.collect::<Vec<_>>().join(", ")
}

fn exponent(scale: f32) -> i32 {
    let exponent = scale.log2();
    assert_eq!(exponent.fract(), 0.0);
    exponent as i32
}

/// What the steps of a line show.
const STEPS: &str = "
where it comes to the region > [ {in:11 T } L ] ^-2 > -10: in 10 | -10: in 9 | -10: in 8 | -10: in 7 | +10: in 7
deep in the region > [ {in:11 *8 T *-8 *8 *-8 } L ] ^-2 > -10: in 10 | -10: in 9 | -10: in 8 | -10: in 7 | +10: in 7
in a parameter's gradient > [ {in:11 *8 T *-8 } L ] ^-2 > -10: in 10 | -10: in 9 | -10: in 8 | -10: in 7 | +10: in 7
in the outer of two first > [ {out:7 {in:1 T } L } ] ^0 > -10: in 1, out 6
in the inner of two first > [ {out:2 {in:5 T } L } ] ^0 > -10: in 4, out 2 | -10: in 3, out 2 | +10: in 3, out 2
before it comes to the region > [ {in:3 T } L ] ^8 > -9: in 3
in a parameter outside > [ {in:3 T *12 } L *-6 ] ^1 > -9: in 3
in the loss > [ {in:3 T } L ] nan > -10: in 3
in a scope in a region > {all:7 [ T L ] } ^0 > -10: all 6 | -10: all 5 | +10: all 5
";

/// Where the gradient comes to a region, which is 2^8 or 2^10, the factor is the cause of an overflow in it; of nested regions the first.
#[test]
fn an_overflow_in_a_region_lowers_its_factor_alone() {
    for [name, line, expected] in rows(STEPS) {
        let mut run = run();
        for (step, expected) in expected.split(" | ").enumerate() {
            assert_eq!(take(&mut run, line), expected, "{name}, step {step}");
        }
        let skipped = expected.matches('-').count() as u64;
        let bad = u64::from(line.ends_with("nan"));
        let counters = run.counters();
        let found = (counters.skipped(), counters.bad_losses());
        assert_eq!(found, (skipped, bad), "{name}");
    }
    // The loss scale backs off in place of a factor that cannot. Where the scale cannot go lower, a factor still can.
    let floor = dynamic("in", at_scale(4.0).with_min_scale(Some(4.0)));
    assert_eq!(take_in(&mut run(), &floor, 5), "-9: in 2");
    let floor = at_scale(two(10)).with_min_scale(Some(two(10)));
    let floor = floor.with_raise_error_at_min_scale(true);
    let mut run = Player::new(net_of(1.0), &f16_under(floor));
    assert_eq!(take(&mut run, "[ {in:11 T } L ] ^-2"), "-10: in 10");
}

#[test]
fn clean_steps_let_those_grow_that_were_opened() {
    let mut run = run();
    let steps = [(); 3].map(|()| {
        take(&mut run, "[ {a:0 T } L ] ^-4");
        take(&mut run, "[ {a:0 T } {b:0 L } ] ^-4")
    });
    assert_eq!(steps[2], "+10: a 2, b 1");
    // One overflow, and the other region waits.
    let found = take(&mut run, "[ {a:0 T } {b:0 L *10 } *-10 ] ^5");
    assert_eq!(found, "-10: a 2, b 0");
    run.optim.scaler_mut().reset();
    assert_eq!(regions(&run), "a 0, b 0");
}

fn adaloss(config: GradScalerConfig) -> Rescale {
    let schedule = config.schedule().unwrap();
    let schedule = schedule.with_rule(AdaLoss::default()).unwrap();
    Rescale::dynamic("in").with_schedule(schedule).unwrap()
}

/// 6e-8 / (0.00125 * deviation), rounded down to a power of two.
#[test]
fn adaloss_lifts_small_gradients() {
    let up_to = |limit: f64| adaloss(at_scale(1.0).with_max_scale(Some(limit)));
    let plain = || AdaLoss::default().region("in");
    let share = |share: f64| AdaLoss::new(share, 8.0).unwrap().region("in");
    for (region, weight, expected) in [
        (plain(), -30, "+10: in 4"),
        (up_to(64.0), -30, "+10: in 5"),
        (up_to(1024.0), -32, "+10: in 7"),
        (plain(), -14, "+10: in 0"),
        // Nested in another factor, up to 1024 in all, and here up to 8.
        (share(1e-3), -30, "+10: in 3"),
        (share(1e-2), -30, "+10: in 2"),
    ] {
        assert_eq!(take_in(&mut run(), &region, weight), expected, "{weight}");
    }
    // What a rule does not remember counts too.
    let other = AdaLoss::new(0.1, 8.0).unwrap();
    assert_ne!(other.region("a"), AdaLoss::default().region("a"));
}

/// However many micro-batches a window has, and in whatever order they come.
#[test]
fn a_long_window_shows_a_region_all_of_its_gradients() {
    let seen = |weights: [i32; 2]| {
        let mut run = run();
        run.optim = run.optim.with_accumulation(200);
        for weight in weights.into_iter().flat_map(|weight| [weight; 100]) {
            let line = format!("[ {{in:adaloss T }} L ] ^{weight}");
            run.step(0.01, pass(&run, &line));
        }
        regions(&run)
    };
    assert_eq!([seen([-30, -30]), seen([-30, -14])], ["in 4", "in 0"]);
    assert_eq!(seen([-14, -30]), "in 0");
}

/// The statistics of what comes to a region say nothing of what is made of it inside.
#[test]
fn adaloss_backs_off_and_comes_back() {
    let config = at_scale(1.0).with_growth_interval(2);
    let region = adaloss(config.with_max_scale(Some(16.0)));
    let mut run = run();
    let mut step = || {
        // 2^-17 comes to the region and asks for 4, and to the parameter 2^31 times that, which holds 2.
        let output = run.amp.autocast(ones(), |x| {
            let lowered = |x: Tensor<1>| run.model.trunk.forward(x * two(-12) * two(-12));
            let inside = |x| lowered(x) * two(15) * two(15) * 2.0;
            rescaled(region.clone(), x, inside)
        });
        step_on(&mut run, output.sum() * two(-27))
    };
    let cycle = ["-10: in 1", "+10: in 1", "+10: in 2"];
    for expected in [&cycle[2..], &cycle, &cycle].concat() {
        assert_eq!(step(), expected);
    }
}

/// One may be below the normal numbers of f32, and scopes use 2^-126 then. Runs that go on from records are drawn in `tests/oracle`.
#[test]
fn a_record_holds_a_factor_of_any_size() {
    for k in [-126, -127, -140] {
        let (mut before, mut resumed) = (run(), run());
        take(&mut before, &format!("[ {{low:{k} T }} L ] ^0"));
        let bytes = before.optim.into_bytes().unwrap();
        resumed.optim.from_bytes(bytes).unwrap();
        assert_eq!(regions(&resumed), format!("low {k}"));
    }
}

/// Gradients of zero say nothing of a factor, whether its rule looks at them or counts.
#[test]
fn zeros_move_no_factor() {
    for rule in ["eager", "adaptive", "logmax"] {
        let (mut run, line) = (run(), format!("[ {{a:{rule} T }} L ]"));
        let first = take(&mut run, &format!("{line} ^-20"));
        for _ in 0..60 {
            assert_eq!(take(&mut run, &format!("{line} zero")), first);
        }
    }
}

/// Of a window that goes on, whether they were tested before or not.
#[test]
fn gradients_that_are_discarded_move_no_factor() {
    for is_tested in [false, true] {
        let mut run = run();
        run.optim = run.optim.with_accumulation(2);
        let loss = loss(&run.amp, &run.model, "[ {a:logmax T } L ] ^5");
        if is_tested {
            let grads = run.optim.backward(loss, &run.model);
            let grads = run.optim.unscale(grads, &run.model).unwrap();
            run.optim.discard(grads).unwrap();
        } else {
            run.optim.discard(run.gradients(loss)).unwrap();
        }
        let found = [(); 2].map(|()| take(&mut run, "[ {a:logmax T } L ] ^-10"));
        assert_eq!(found[1], "+10: a 1", "{is_tested}");
    }
}

/// It has no factor, and gradients that come to it are not those that come to the region around it.
#[test]
fn a_region_that_is_not_enabled_is_none() {
    // The gradient in the region is 2^15 times that of the loss, and would overflow at 8 times that.
    assert_eq!(take(&mut run(), "[ {off:off T } L ] ^5"), "+10: ");
    let steps = |line: &str| {
        let mut run = run();
        [(); 8].map(|()| take(&mut run, line))
    };
    let without = steps("[ {a:logmax T *10 } ] ^-10");
    assert_eq!(steps("[ {a:logmax {off:off T } *10 } ] ^-10"), without);
    assert_ne!(without[0], without[7]);
}

/// A program that has no such region any more is warned, and keeps it for one that has; it holds no fused optimizer up.
#[test]
fn a_region_of_a_record_that_is_not_opened_waits() {
    let (opening, plain) = ("[ {old:4 T } L ] ^0", "[ T L ] ^0");
    let (mut before, mut resumed) = (run(), run());
    take(&mut before, opening);
    let bytes = before.optim.into_bytes().unwrap();
    resumed.optim.from_bytes(bytes.clone()).unwrap();
    warns_once(["region `old`", "has not opened it"], || {
        (0..3).for_each(|_| _ = take(&mut resumed, plain));
    });
    let again = resumed.optim.into_bytes().unwrap();
    resumed.optim.from_bytes(again.clone()).unwrap();
    resumed.optim.scaler_mut().reset();
    assert_eq!(regions(&resumed), "");
    resumed.optim.from_bytes(again).unwrap();
    assert_eq!(take(&mut resumed, opening), take(&mut before, opening));

    let fused = FusedSgd::new(SgdConfig::new());
    let mut fused = Player::with(fused, net_of(1.0), &f16(two(10)));
    fused.optim.from_bytes(bytes).unwrap();
    (0..3).for_each(|_| _ = step(&mut fused, plain));
    // One of before, and all but the last, for which nobody waits. A GPU may answer later still.
    let steps = fused.counters().steps();
    assert!(steps == 1 + 2 || !on_flex() && steps <= 2, "{steps}");
}

#[test]
fn other_settings_of_one_name_are_warned_of() {
    let mut run = run();
    let lines = logs("region `twice` is opened with other settings", || {
        let found = take(&mut run, "[ {twice:2 T } {twice:3 L } ] ^-4");
        assert_eq!(found, "+10: twice 2");
    });
    only(&lines);
    assert!(format!("{:?}", run.amp).contains("(\"twice\", 4.0)"));
}

/// The gradient of a parameter overflows in a region, and another model has read one of the same path in another: both factors are lowered.
/// A model without gradients is no reader.
#[test]
fn regions_of_two_models_with_the_same_paths() {
    let mut run = run();
    let [other, frozen] = [(); 2].map(|()| run.amp.attach(net_of(1.0)));
    let frozen = frozen.no_grad();
    let region = |name, net: &Net, x| {
        let region = dynamic(name, at_scale(two(5)));
        rescaled(region, x, |x| net.trunk.forward(x))
    };
    let output = run.amp.autocast(ones() * two(10), |x| {
        let frozen = region("c", &frozen, x.clone()) + frozen.trunk.forward(x.clone());
        region("a", &run.model, x.clone()) + region("b", &other, x) + frozen
    });
    assert_eq!(step_on(&mut run, output.sum()), "-10: a 4, b 4, c 5");
}
