//! Regions whose factors move: the cause of an overflow, how a step moves each factor, and that records hold them.

use crate::support::*;
use burn_amp_core::internal::StepGradients;

#[derive(Module, Debug)]
struct Net {
    inner: Gain,
    last: Gain,
}

type Run = Player<Net>;
type Forward = Box<dyn Fn(&Net, Tensor<1>) -> Tensor<1>>;

fn net() -> Net {
    let [inner, last] = [(); 2].map(|()| Gain::new(&[1.0, 1.0]));
    Net { inner, last }
}

fn run() -> Run {
    Player::new(net(), &f16(two(10)))
}

/// A region that begins at 2^k.
fn dynamic(name: &str, k: i32) -> Rescale {
    let config = at_scale(two(k)).with_growth_interval(3);
    Rescale::dynamic(name).with_scaler(config).unwrap()
}

fn adaloss(rule: AdaLoss, config: GradScalerConfig) -> Rescale {
    let schedule = config.schedule().unwrap().with_rule(rule).unwrap();
    Rescale::dynamic("inner").with_schedule(schedule).unwrap()
}

/// The first layer is a region.
fn one(region: Rescale) -> impl Fn(&Net, Tensor<1>) -> Tensor<1> {
    move |net, x| {
        let hidden = rescaled(region.clone(), x, |x| net.inner.forward(x));
        net.last.forward(hidden)
    }
}

fn output(run: &Run, forward: impl Fn(&Net, Tensor<1>) -> Tensor<1>) -> Tensor<1> {
    run.amp.autocast(ones(), |x| forward(&run.model, x))
}

/// Whether a step is taken (+) or skipped (-), the exponent of the scale after it, and those of the regions' factors.
fn step_on(run: &mut Run, loss: Tensor<1>) -> String {
    let before = numbers(&run.model);
    // So small a step that the gradients of the next are the same.
    let skipped = run.train(1e-30, loss);
    assert_eq!(numbers(&run.model), before);
    let sign = if skipped { '-' } else { '+' };
    let scale = exponent(run.amp.loss_scale());
    format!("{sign}{scale}: {}", regions(run))
}

/// A step with a loss of 2^`weight` times the sum of the outputs.
fn take(run: &mut Run, weight: i32, forward: impl Fn(&Net, Tensor<1>) -> Tensor<1>) -> String {
    step_on(run, output(run, forward).sum() * two(weight))
}

/// The exponents of the regions' factors, after their names.
fn regions(run: &Run) -> String {
    let regions = run.amp.regions().into_iter();
    let regions = regions.map(|(name, factor)| format!("{name} {}", exponent(factor)));
    regions.collect::<Vec<_>>().join(", ")
}

fn exponent(scale: f32) -> i32 {
    let exponent = scale.log2();
    assert_eq!(exponent.fract(), 0.0);
    exponent as i32
}

/// Where the gradient comes to a region, which is 2^8 or 2^10, the factor is the cause of an overflow, deep in the region, and in the
/// gradient of a parameter there; of nested regions the first. Before it comes to the region, in a parameter outside or in the loss, it is not.
#[test]
fn an_overflow_in_a_region_lowers_its_factor_alone() {
    fn inner(k: i32, region: fn(&Net, Tensor<1>) -> Tensor<1>) -> Forward {
        Box::new(move |net, x| {
            let hidden = rescaled(dynamic("inner", k), x, |x| region(net, x));
            net.last.forward(hidden)
        })
    }

    fn nested(k: i32, region: Forward) -> Forward {
        Box::new(move |net, x| rescaled(dynamic("outer", k), x, |x| region(net, x)))
    }

    let plain = |net: &Net, x| net.inner.forward(x);
    let deep = |net: &Net, x| net.inner.forward(x * two(8)) * two(-8) * two(8) * two(-8);
    let parameter = |net: &Net, x| net.inner.forward(x * two(8)) * two(-8);
    let late = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(dynamic("inner", 3), x, |x| net.inner.forward(x) * two(12));
        net.last.forward(hidden) * two(-6)
    };
    let floor = Rescale::dynamic("inner").with_scaler(at_scale(4.0).with_min_scale(Some(4.0)));
    let falling = "-10: inner 10 | -10: inner 9 | -10: inner 8 | -10: inner 7 | +10: inner 7";
    let both = "-10: inner 4, outer 2 | -10: inner 3, outer 2 | +10: inner 3, outer 2";
    let cases: [(i32, Forward, &str); 8] = [
        (-2, inner(11, plain), falling),
        (-2, inner(11, deep), falling),
        (-2, inner(11, parameter), falling),
        (0, nested(7, inner(1, plain)), "-10: inner 1, outer 6"),
        (0, nested(2, inner(5, plain)), both),
        (8, inner(3, plain), "-9: inner 3"),
        (1, Box::new(late), "-9: inner 3"),
        // The loss scale backs off in place of a factor that cannot.
        (5, Box::new(one(floor.unwrap())), "-9: inner 2"),
    ];
    for (index, (weight, forward, expected)) in cases.into_iter().enumerate() {
        let mut run = run();
        for (step, expected) in expected.split(" | ").enumerate() {
            let found = take(&mut run, weight, &forward);
            assert_eq!(found, expected, "case {index}, step {step}");
        }
        let skipped = expected.matches('-').count() as u64;
        assert_eq!(run.counters().skipped(), skipped, "case {index}");
    }
    let mut run = run();
    let loss = (output(&run, inner(3, plain)) * f32::NAN).sum();
    assert_eq!(step_on(&mut run, loss), "-10: inner 3");
    assert_eq!(run.counters().bad_losses(), 1);
}

/// In f32, a region is that of the scope that opens inside.
#[test]
fn a_scope_in_a_region() {
    let mut run = run();
    for expected in ["-10: all 6", "-10: all 5", "+10: all 5"] {
        let forward = |x| run.model.last.forward(run.model.inner.forward(x));
        let scope = |x| run.amp.autocast(x, forward);
        let output = rescaled(dynamic("all", 7), ones(), scope);
        assert_eq!(step_on(&mut run, output.sum()), expected);
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
    let steps = [(); 3].map(|()| {
        take(&mut run, -4, one(dynamic("a", 0)));
        take(&mut run, -4, both(0))
    });
    assert_eq!(steps[2], "+10: a 2, b 1");
    // One overflow, and the other region waits.
    assert_eq!(take(&mut run, 5, both(10)), "-10: a 2, b 0");
    run.optim.scaler_mut().reset();
    assert_eq!(regions(&run), "a 0, b 0");
}

/// 6e-8 / (0.00125 * deviation), rounded down to a power of two.
#[test]
fn adaloss_lifts_small_gradients() {
    let up_to = |limit: f64| {
        let config = at_scale(1.0).with_max_scale(Some(limit));
        adaloss(AdaLoss::default(), config)
    };
    let plain = || AdaLoss::default().region("inner");
    let share = |share: f64| AdaLoss::new(share, 8.0).unwrap().region("inner");
    for (region, weight, expected) in [
        (plain(), -20, 4),
        (up_to(64.0), -20, 5),
        (up_to(1024.0), -22, 7),
        (plain(), -4, 0),
        // Nested in another factor, up to 1024 in all, and here up to 8.
        (share(1e-3), -20, 3),
        (share(1e-2), -20, 2),
    ] {
        let found = take(&mut run(), weight - 10, one(region));
        assert_eq!(found, format!("+10: inner {expected}"), "{weight}");
    }
}

/// The statistics of what comes to a region say nothing of what is made of it inside.
#[test]
fn adaloss_backs_off_and_comes_back() {
    let config = at_scale(1.0).with_growth_interval(2);
    let config = config.with_max_scale(Some(16.0));
    let adaloss = adaloss(AdaLoss::default(), config);
    // 2^-17 comes to the region and asks for 4, and to the parameter 2^31 times that, which holds 2.
    let forward = |net: &Net, x: Tensor<1>| {
        let lowered = |x: Tensor<1>| net.inner.forward(x * two(-12) * two(-12));
        let region = |x| lowered(x) * two(15) * two(15) * 2.0;
        net.last.forward(rescaled(adaloss.clone(), x, region))
    };
    let mut run = run();
    let cycle = ["-10: inner 1", "+10: inner 1", "+10: inner 2"];
    for expected in [&cycle[2..], &cycle, &cycle].concat() {
        assert_eq!(take(&mut run, -27, forward), expected);
    }
}

/// A run that is interrupted, also inside a window, and one that is not.
#[test]
fn records_hold_the_regions() {
    let forward = |net: &Net, x: Tensor<1>| {
        let hidden = rescaled(AdaLoss::default().region("a"), x, |x| net.inner.forward(x));
        rescaled(dynamic("b", 4), hidden, |x| net.last.forward(x))
    };
    let model = net();
    for window in [1, 3] {
        // What shows the cause of a skip is not in records of a window.
        let weight = |step: i32| match step % 4 {
            1 if window == 1 => 4,
            size => -27 - size,
        };
        let steps = |run: &mut Run, steps: Range<i32>| -> Vec<String> {
            steps.map(|step| take(run, weight(step), forward)).collect()
        };
        let run = || {
            let mut run = Player::new(model.clone(), &f16(two(10)));
            run.optim = run.optim.with_accumulation(window);
            run
        };
        let seen = steps(&mut run(), 0..18);
        assert_eq!(seen.iter().any(|step| step.starts_with('-')), window == 1);
        for stop in 1..18 {
            let (mut before, mut resumed) = (run(), run());
            steps(&mut before, 0..stop);
            let bytes = before.optim.to_record().into_bytes().unwrap();
            let record = AmpRecord::from_bytes(bytes).unwrap();
            assert!(format!("{record:?}").contains("\"b\""), "{record:?}");
            resumed.optim.load_record(record).unwrap();
            assert_eq!(regions(&resumed), regions(&before));
            let found = steps(&mut resumed, stop..18);
            assert_eq!(found, seen[stop as usize..], "{window}, stopped at {stop}");
        }
    }
}

/// A window that is flushed before its run goes on moves what it has opened.
#[test]
fn a_record_of_an_open_window_that_is_flushed_at_once() {
    let eager = at_scale(two(4)).with_growth_interval(1);
    let eager = Rescale::dynamic("a").with_scaler(eager).unwrap();
    let step = |run: &mut Run| take(run, -10, one(eager.clone()));
    let flush = |run: &mut Run| run.model = run.optim.flush(1e-30, run.model.clone());
    let model = net();
    let windowed = || {
        let mut run = Player::new(model.clone(), &f16(two(10)));
        run.optim = run.optim.with_accumulation(3);
        run
    };
    let (mut straight, mut resumed) = (windowed(), windowed());
    (0..2).for_each(|_| _ = step(&mut straight));
    let bytes = straight.optim.into_bytes().unwrap();
    resumed.optim.from_bytes(bytes).unwrap();
    no_warning(|| [&mut straight, &mut resumed].into_iter().for_each(flush));
    assert_eq!(regions(&straight), "a 5");
    let [straight, resumed] = [straight, resumed].map(|mut run| {
        let seen: Vec<String> = (0..4).map(|_| step(&mut run)).collect();
        (seen, regions(&run))
    });
    assert_eq!(straight, resumed);
}

/// Gradients of zero say nothing of a factor, whether its rule looks at them or counts.
#[test]
fn zeros_move_no_factor() {
    let eager = |schedule| {
        let config = at_scale(two(4)).with_growth_interval(1);
        let config = config.with_schedule(schedule);
        Rescale::dynamic("a").with_scaler(config).unwrap()
    };
    let log_max = Schedule::log_max();
    for schedule in [
        Schedule::GrowthInterval,
        Schedule::adaptive_interval(),
        log_max,
    ] {
        let mut run = run();
        take(&mut run, -20, one(eager(schedule)));
        let before = regions(&run);
        for _ in 0..60 {
            let zero = output(&run, one(eager(schedule))).sum() * 0.0;
            assert_eq!(step_on(&mut run, zero), format!("+10: {before}"));
        }
    }
}

/// Where the scale cannot go lower, a factor still can.
#[test]
fn an_overflow_in_a_region_is_not_one_at_the_floor() {
    let floor = at_scale(two(10)).with_min_scale(Some(two(10)));
    let floor = floor.with_raise_error_at_min_scale(true);
    let mut run = Player::new(net(), &f16_under(floor));
    let found = take(&mut run, -2, one(dynamic("inner", 11)));
    assert_eq!(found, "-10: inner 10");
}

/// Of a window that goes on, whether they were tested before or not.
#[test]
fn gradients_that_are_discarded_move_no_factor() {
    let log_max = at_scale(1.0).with_schedule(Schedule::log_max());
    let log_max = Rescale::dynamic("a").with_scaler(log_max).unwrap();
    for is_tested in [false, true] {
        let mut run = run();
        run.optim = run.optim.with_accumulation(2);
        let loss = output(&run, one(log_max.clone())).sum() * two(5);
        let grads: StepGradients = match is_tested {
            false => run.gradients(loss).into(),
            true => {
                let grads = run.optim.backward(loss, &run.model);
                run.optim.unscale(grads, &run.model).unwrap().into()
            }
        };
        run.optim.discard(grads).unwrap();
        let found = [(); 2].map(|()| take(&mut run, -10, one(log_max.clone())));
        assert_eq!(found[1], "+10: a 1", "{is_tested}");
    }
}

#[test]
fn a_region_that_is_not_enabled_has_no_factor() {
    let off = GradScalerConfig::new().with_init_scale(8.0);
    let off = Rescale::dynamic("off").with_scaler(off.with_enabled(false));
    let mut run = run();
    // The gradient in the region is 2^15 times that of the loss, and would overflow at 8 times that.
    assert_eq!(take(&mut run, 5, one(off.unwrap())), "+10: ");
}

/// A factor may be below the normal numbers of f32, and scopes use 2^-126 then.
#[test]
fn records_hold_the_smallest_factors() {
    for k in [-126, -127, -140] {
        let mut run = run();
        take(&mut run, 0, one(dynamic("low", k)));
        let bytes = run.optim.into_bytes().unwrap();
        let mut resumed = self::run();
        resumed.optim.from_bytes(bytes).unwrap();
        assert_eq!(regions(&resumed), format!("low {k}"));
    }
}

/// A program that has no such region any more is warned, and keeps it for one that has; it holds no fused optimizer up.
#[test]
fn a_region_of_a_record_that_is_not_opened_waits() {
    let mut before = run();
    take(&mut before, 0, one(dynamic("old", 4)));
    let bytes = before.optim.into_bytes().unwrap();

    let mut resumed = run();
    resumed.optim.from_bytes(bytes.clone()).unwrap();
    let plain = |net: &Net, x| net.last.forward(net.inner.forward(x));
    let warning = ["region `old`", "has not opened it"];
    warns_once(warning, || {
        (0..3).for_each(|_| _ = take(&mut resumed, 0, plain));
    });
    let again = resumed.optim.into_bytes().unwrap();
    resumed.optim.from_bytes(again.clone()).unwrap();
    resumed.optim.scaler_mut().reset();
    assert_eq!(regions(&resumed), "");
    resumed.optim.from_bytes(again).unwrap();
    let opened = take(&mut resumed, 0, one(dynamic("old", 4)));
    assert_eq!(opened, take(&mut before, 0, one(dynamic("old", 4))));

    let fused = FusedSgd::new(SgdConfig::new());
    let mut fused = Player::with(fused, net(), &f16(two(10)));
    fused.optim.from_bytes(bytes).unwrap();
    for _ in 0..3 {
        let output = fused.amp.autocast(ones(), |x| plain(&fused.model, x));
        fused.train(0.1, output.sum());
    }
    // One of before, and all but the last, for which nobody waits. A GPU may answer later still.
    let steps = fused.counters().steps();
    let is_flex = Device::default() == Device::flex();
    assert!(steps == 1 + 2 || !is_flex && steps <= 2, "{steps}");
}

#[test]
fn other_settings_of_one_name_are_warned_of() {
    let mut run = run();
    let forward = |net: &Net, x| {
        let hidden = rescaled(dynamic("twice", 2), x, |x| net.inner.forward(x));
        rescaled(dynamic("twice", 3), hidden, |x| net.last.forward(x))
    };
    let warning = "region `twice` is opened with other settings";
    let lines = logs(warning, || {
        assert_eq!(take(&mut run, -4, forward), "+10: twice 2");
    });
    only(&lines);
    assert!(format!("{:?}", run.amp).contains("(\"twice\", 4.0)"));
    // What a rule does not remember counts too.
    let other = AdaLoss::new(0.1, 8.0).unwrap();
    assert_ne!(other.region("a"), AdaLoss::default().region("a"));
}

/// The gradient of a parameter overflows in a region, and another model has read one of the same path in another: both factors are lowered.
/// A model without gradients is no reader.
#[test]
fn regions_of_two_models_with_the_same_paths() {
    let mut run = run();
    let (other, frozen) = (run.amp.attach(net()), run.amp.attach(net()).no_grad());
    let region = |name, net: &Net, x| rescaled(dynamic(name, 5), x, |x| net.inner.forward(x));
    let output = run.amp.autocast(ones() * two(10), |x| {
        let frozen = region("c", &frozen, x.clone()) + frozen.inner.forward(x.clone());
        region("a", &run.model, x.clone()) + region("b", &other, x) + frozen
    });
    assert_eq!(step_on(&mut run, output.sum()), "-10: a 4, b 4, c 5");
}
