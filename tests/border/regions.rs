//! Regions whose factors move: the cause of an overflow, how a step moves each factor, and that records hold them; and settings of regions that are refused.
//! What a fixed factor multiplies is in `skip_cause.rs`, and that nobody sees it outside in `nesting.rs`.

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
in one whose factor cannot go lower > [ {in:_2 T } L ] ^5 > -9: in 2
small gradients are lifted > [ {in:adaloss T } L ] ^-30 > +10: in 4
up to a limit > [ {in:<6 T } L ] ^-30 > +10: in 5
to one above > [ {in:<10 T } L ] ^-32 > +10: in 7
larger ones stay > [ {in:adaloss T } L ] ^-14 > +10: in 0
up to 8 in all > [ {in:%-3 T } L ] ^-30 > +10: in 3
up to 8 in all, and nested in other factors > [ {1 {1 {in:%-3 T } } } L ] ^-30 > +10: in 1
of another share > [ {in:%-2 T } L ] ^-30 > +10: in 2
it backs off and comes back > [ {in:<4 *-12 *-12 T *15 *15 *1 } ] ^-27 > +10: in 2 | -10: in 1 | +10: in 1 | +10: in 2 | -10: in 1 | +10: in 1 | +10: in 2
";

/// Where the gradient comes to a region, which is 2^8 or 2^10, the factor is the cause of an overflow in it; of nested regions the first. The loss scale
/// backs off in place of a factor that cannot. AdaLoss asks for 6e-8 / (0.00125 * deviation), rounded down to a power of two; the statistics of what comes to a
/// region say nothing of what is made of it inside.
#[test]
fn steps_move_the_factors_that_they_are_about() {
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
    // Where the scale cannot go lower, a factor still can.
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

    let mut fused = Player::with(fused(), net_of(1.0), &f16(two(10)));
    fused.optim.from_bytes(bytes).unwrap();
    (0..3).for_each(|_| _ = step(&mut fused, plain));
    // One of before, and all but the last, for which nobody waits. A GPU may answer later still.
    let steps = fused.counters().steps();
    assert!(steps == 1 + 2 || !on_flex() && steps <= 2, "{steps}");
}

#[test]
fn other_settings_of_one_name_are_warned_of() {
    // What a rule does not remember counts too.
    let other = AdaLoss::new(0.1, 8.0).unwrap();
    assert_ne!(other.region("a"), AdaLoss::default().region("a"));
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
    let output = run.amp.autocast(ones() * two(10), |x| {
        let part = |net, line| loss_of([&run.amp; 2], net, x.clone(), line);
        let frozen = part(&frozen, "{c:5 T } + T");
        part(&run.model, "{a:5 T }") + part(&other, "{b:5 T }") + frozen
    });
    assert_eq!(step_on(&mut run, output.sum()), "-10: a 4, b 4, c 5");
}

/// In a scope, and outside of one that opens in the region. The largest ones are taken.
#[test]
fn an_exponent_out_of_range_is_refused_by_the_scope() {
    let amp = f16(two(9));
    for (k, is_refused) in [(126, false), (-126, false), (127, true), (i32::MIN, true)] {
        let inside = amp.try_autocast(ones(), |x| by(k, x, |x| x)).err();
        let outside = by(k, ones(), |x| amp.try_autocast(x, |x| x)).err();
        assert_eq!((inside.is_some(), &outside), (is_refused, &inside));
        let field = "InvalidValue { field: \"power_of_two\"";
        if let Some(error) = &inside {
            is_error(error, field, ["between -126 and 126"]);
        }
    }
}

#[test]
fn settings_outside_their_range() {
    let (config, region) = (GradScalerConfig::new(), Rescale::dynamic("region"));
    let of_fixed = Rescale::power_of_two(3).with_scaler(config).unwrap_err();
    let of_region = region.with_scaler(config.with_growth_factor(1.0));
    for (field, error) in [
        ("underflow_share", AdaLoss::new(0.0, 16.0).unwrap_err()),
        ("total_limit", AdaLoss::new(0.1, f64::INFINITY).unwrap_err()),
        ("growth_factor", of_region.unwrap_err()),
        ("with_scaler", of_fixed),
    ] {
        let expected = format!("InvalidValue {{ field: \"{field}\"");
        is_error(&error, &expected, []);
    }
}
