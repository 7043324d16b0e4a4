//! What was not finite first is the cause of a skip: passes in turn, long windows, several optimizers and trainings.

use crate::causes::*;
use crate::support::*;
use std::collections::VecDeque;
use std::thread;

/// Steps that look for a worse model or input first: what comes after is at fault of nothing. Whether the first pass is tested or not.
#[test]
fn an_overflow_that_nobody_tested_is_the_cause_of_what_follows() {
    fn ascend(net: &Net, first: GradientsParams) -> Net {
        SgdConfig::new().init().step(-1.0, net.clone(), first)
    }
    type First = fn(&MixedPrecision, &Net, Loss) -> (Net, Tensor<1>);
    let of = |amp: &MixedPrecision, net: &Net, loss: Loss| {
        GradientsParams::from_grads(loss(amp, net).backward(), net)
    };
    // Sharpness-aware minimization, meta-learning in several steps, and inputs that are made worse by their gradients.
    let sharpness: First = |amp, net, loss| {
        let first = GradientsParams::from_grads(loss(amp, net).backward(), net);
        (ascend(net, first), ones())
    };
    let meta: First = |amp, net, loss| {
        let mut inner = net.clone();
        for _ in 0..3 {
            let grads = GradientsParams::from_grads(loss(amp, &inner).backward(), &inner);
            inner = ascend(&inner, grads);
        }
        (inner, ones())
    };
    let adversarial: First = |amp, net, _| {
        let input = tracked();
        let grads = steep(scope(amp, &net.trunk, input.clone())).backward();
        let worse = Tensor::from_inner(input.grad(&grads).unwrap()) + ones();
        (net.clone(), worse)
    };
    let firsts: [Loss; 2] = [
        |amp, net| steep(scope(amp, &net.trunk, ones())),
        |amp, net| flat(deep_scope(amp, &net.trunk, ones())),
    ];
    let second = |amp: &MixedPrecision, (net, input): (Net, Tensor<1>)| {
        let loss = flat(scope(amp, &net.trunk, input)).square();
        GradientsParams::from_grads(loss.backward(), &net)
    };
    for (first, loss) in [sharpness, meta, adversarial]
        .into_iter()
        .flat_map(|f| firsts.map(|l| (f, l)))
    {
        let mut run = Player::new(net(), &handle());
        let grads = second(&run.amp, first(&run.amp, &run.model, loss));
        run.step(0.01, grads);
        assert_eq!(outcome_of(&run.amp, run.counters()), LOWERED);

        let fused = FusedSgd::new(SgdConfig::new());
        let mut run = Player::with(fused, net(), &handle());
        let grads = second(&run.amp, first(&run.amp, &run.model, loss));
        run.step(0.01, grads);
        run.optim.synchronize().unwrap();
        assert_eq!(outcome_of(&run.amp, run.counters()), LOWERED);
    }
    // The scale falls until training goes on.
    let mut run = Player::new(net(), &f16(65536.0));
    for _ in 0..12 {
        let first = of(&run.amp, &run.model, |amp, net| {
            scope(amp, &net.trunk, ones()).sum() * 10.0
        });
        let up = SgdConfig::new()
            .init()
            .step(-1e-3, run.model.clone(), first);
        let loss = scope(&run.amp, &up.trunk, ones()).square().sum() * 0.01;
        let grads = GradientsParams::from_grads(loss.backward(), &up);
        run.step(1e-3, grads);
    }
    assert_eq!((run.scale(), run.counters().skipped()), (4096.0, 4));
}

/// Gradients of a loss, tested and left aside.
fn look<O: ModuleOptim>(run: &mut Player<Net, O>, loss: Loss) {
    let loss = loss(&run.amp, &run.model);
    let grads = run.optim.backward(loss, &run.model);
    drop(run.optim.unscale(grads, &run.model).unwrap());
}

/// What is between a backward pass and its step takes no event of it away.
#[test]
fn events_stay_until_their_step() {
    type Between = fn(&mut Player<Net>);
    let nothing: Between = |_| ();
    let setter: Between = |run| run.optim.scaler_mut().set_growth_interval(7).unwrap();
    let scale: Between = |run| run.optim.scaler_mut().set_loss_scale(SCALE).unwrap();
    let bad: Loss = |amp, net| nan(scope(amp, &net.trunk, ones()));
    let over: Loss = |amp, net| steep(scope(amp, &net.trunk, ones()));
    let region: Loss = |amp, net| {
        let up = Rescale::dynamic("up")
            .with_scaler(at_scale(two(20)))
            .unwrap();
        flat(amp.autocast(ones(), |x| rescaled(up, x, |x| net.trunk.forward(x))))
    };
    for (looks, between, loss, expected) in [
        (true, nothing, bad, BAD),
        (true, nothing, over, LOWERED),
        (true, nothing, region, (true, SCALE, 0, 0)),
        (false, setter, bad, BAD),
        (false, scale, bad, BAD),
        (false, setter, region, (true, SCALE, 0, 0)),
        (true, setter, bad, BAD),
    ] {
        let mut run = Player::new(net(), &handle());
        if looks {
            look(&mut run, GOOD);
        }
        let grads = run.gradients(loss(&run.amp, &run.model));
        between(&mut run);
        run.step(0.01, grads);
        assert_eq!(outcome_of(&run.amp, run.counters()), expected);
        let fell = run
            .amp
            .regions()
            .iter()
            .all(|(_, factor)| *factor == two(19) as f32);
        assert!(fell, "{:?}", run.amp.regions());
    }
    // A first pass that was tested lowers the scale once, whatever comes of it.
    let mut run = Player::new(net(), &handle());
    look(&mut run, over);
    let grads = run.gradients(bad(&run.amp, &run.model));
    run.step(0.01, grads);
    assert_eq!(run.scale(), SCALE / 2.0);
    assert_eq!(
        (run.counters().discarded(), run.counters().bad_losses()),
        (1, 1)
    );
}

/// A window of one optimizer and the steps of another, on one loss scale.
#[test]
fn windows_take_and_give_back_their_own_events() {
    let play = |script: &str| {
        let amp = handle();
        let [mut window, mut other] = [(); 2].map(|()| Player::new(net(), &amp));
        window.optim = window.optim.with_accumulation(2);
        for call in script.split(' ') {
            let run = if call.starts_with('w') {
                &mut window
            } else {
                &mut other
            };
            let output = scope(&amp, &run.model.trunk, ones());
            run.train(
                0.01,
                match &call[1..] {
                    "?" => nan(output),
                    "!" => steep(output),
                    _ => flat(output),
                },
            );
        }
        let of = |run: &Player<Net>| (run.counters().skipped(), run.counters().bad_losses());
        (amp.loss_scale(), of(&window), of(&other))
    };
    assert_eq!(play("w? o! w."), (512.0, (1, 1), (1, 0)));
    assert_eq!(play("w! o? w."), (512.0, (1, 0), (1, 1)));
    assert_eq!(play("w. o! w?"), (512.0, (1, 1), (1, 0)));
    assert_eq!(play("w? o. w. o!"), (512.0, (1, 1), (1, 0)));
    assert_eq!(play("w. o? w!"), (512.0, (1, 0), (1, 1)));
}

/// Passes of two players (a and b) that are over before some steps (sa, sb), of models of their own or of one: a step is explained by its own.
#[test]
fn several_passes_may_be_over_before_the_first_step() {
    let play = |script: &str, window: u32| {
        let amp = handle();
        let mut runs = [(); 2].map(|()| (Player::new(net(), &amp), VecDeque::new()));
        if window > 1 {
            let run = &mut runs[0].0;
            run.optim = run.optim.clone().with_accumulation(window);
        }
        for call in script.split(' ') {
            let (run, grads) = &mut runs[usize::from(call.contains('b'))];
            let output = || scope(&amp, &run.model.trunk, ones());
            match call.as_bytes()[1] {
                b'?' => grads.push_back(run.gradients(nan(output()))),
                b'!' => grads.push_back(run.gradients(steep(output()))),
                b'.' => grads.push_back(run.gradients(flat(output()))),
                _ => drop(run.step(0.01, grads.pop_front().unwrap())),
            }
        }
        let of = |run: &Player<Net>| (run.counters().skipped(), run.counters().bad_losses());
        (amp.loss_scale(), runs.map(|(run, _)| of(&run)))
    };
    for (script, scale, a, b) in [
        ("a. a? sa sa", 1024.0, (1, 1), (0, 0)),
        ("a. a! sa sa", 512.0, (1, 0), (0, 0)),
        // Each step is one pass late.
        ("a. a. sa a? sa a. sa sa", 1024.0, (1, 1), (0, 0)),
        ("a. a. sa a! sa a. sa sa", 512.0, (1, 0), (0, 0)),
        ("a? b! sa sb", 512.0, (1, 1), (1, 0)),
        ("b! a? sa sb", 512.0, (1, 1), (1, 0)),
        ("a! b? sa sb", 512.0, (1, 0), (1, 1)),
        ("b? a. sa sb", 1024.0, (0, 0), (1, 1)),
        // One steps more often, as a critic does.
        ("b? a. sa a. sa sb", 1024.0, (0, 0), (1, 1)),
        ("b! a. sa a. sa sb", 512.0, (0, 0), (1, 0)),
    ] {
        assert_eq!(play(script, 1), (scale, [a, b]), "{script}");
    }
    // With a window of a's.
    for (script, a, b) in [
        ("a? b! sa sb a. sa", (1, 1), (1, 0)),
        ("b! a? sa sb a. sa", (1, 1), (1, 0)),
        ("a. b! sa a? sb sa", (1, 1), (1, 0)),
    ] {
        assert_eq!(play(script, 2), (512.0, [a, b]), "{script}");
    }
}

/// Others of this process may be on threads of their own; one that goes on on another is still one.
#[test]
fn a_training_that_moves_to_a_thread_keeps_what_is_known() {
    let mut run = Player::new(net(), &handle());
    run.train(0.01, GOOD(&run.amp, &run.model));
    let mut run = thread::spawn(move || {
        drop(run.gradients(GOOD(&run.amp, &run.model)));
        let mut reduced = GradientsParams::new();
        let bad = vector(&[0.001, f32::NAN]).inner();
        reduced.register(run.model.trunk.factor.id, bad);
        run.step(0.01, reduced);
        run
    })
    .join()
    .unwrap();
    assert_eq!(outcome_of(&run.amp, run.counters()), UNKNOWN);
    run.train(0.01, GOOD(&run.amp, &run.model));
    assert_eq!(run.counters().skipped(), 1);
}

/// However many scopes a window has.
#[test]
fn a_long_window_keeps_what_was_first() {
    for (first, expected) in [
        (flat as fn(Tensor<1>) -> Tensor<1>, FINE),
        (nan, BAD),
        (steep, LOWERED),
    ] {
        let mut run = Player::new(net(), &handle());
        let warned = captured(Level::Warn, || {
            let mut sum = GradientsAccumulator::new();
            for micro in 0..120 {
                let losses = (0..4).map(|_| flat(scope(&run.amp, &run.model.trunk, ones())));
                let first = if micro == 1 { first } else { flat };
                let own = first(scope(&run.amp, &run.model.left, ones()));
                let loss = losses.fold(own, |a, b| a + b) * two(-10);
                sum.accumulate(&run.model, run.gradients(loss * two(10)));
            }
            run.step(0.01, sum.grads());
        });
        assert_eq!(outcome_of(&run.amp, run.counters()), expected);
        assert!(!warned.concat().contains("never tested"), "{warned:?}");
    }
}

/// Two trainings of their own, whose passes interleave on one thread.
#[test]
fn a_bad_loss_is_that_of_ones_own_training() {
    let losses: [Loss; 3] = [
        GOOD,
        |amp, net| flat(chain(amp, net, |x| x)),
        // Which overflows itself.
        |amp, net| steep(chain(amp, net, |x| x)),
    ];
    for (own, others) in [losses[0], losses[1]]
        .into_iter()
        .flat_map(|own| losses.map(|others| (own, others)))
    {
        for order in [true, false] {
            let [mut run, other] = [(); 2].map(|()| Player::new(net(), &handle()));
            let forward = |run: &Player<Net>, loss: Loss| loss(&run.amp, &run.model);
            let (loss, others) = match order {
                true => (forward(&run, own), forward(&other, others)),
                false => {
                    let others = forward(&other, others);
                    (forward(&run, own), others)
                }
            };
            other.gradients(others);
            let grads = run.gradients(loss * f32::NAN);
            run.step(0.01, grads);
            assert_eq!(outcome_of(&run.amp, run.counters()), BAD);
            assert_eq!(run.counters().consecutive_skips(), 0);
        }
    }
}

/// Ranks in processes of their own, whose gradients are summed: no vote, and no scale moves for another's loss.
#[test]
fn gradients_that_no_scope_has_spoilt_have_an_unknown_cause() {
    fn ranks<O: ModuleOptim>(optimizer: O) -> (Player<Net, O>, Vec<String>) {
        let config = at_scale(SCALE).with_max_consecutive_skips(Some(2));
        let mut run = Player::with(optimizer, net(), &f16_under(config));
        let step = |run: &mut Player<Net, O>| {
            drop(run.gradients(GOOD(&run.amp, &run.model)));
            let mut reduced = GradientsParams::new();
            let bad = vector(&[0.001, f32::NAN]).inner();
            reduced.register(run.model.trunk.factor.id, bad);
            let stepped = run.try_step(0.1, reduced);
            stepped.and_then(|()| run.optim.synchronize())
        };
        let said = captured(Level::Warn, || {
            (0..2).for_each(|_| step(&mut run).unwrap());
            let error = step(&mut run).unwrap_err();
            is_error(
                &error,
                "UnknownCause { skips: 3",
                ["`trunk.factor`", "another rank", "scale stays"],
            );
        });
        (run, said)
    }
    let (run, said) = ranks::<ModuleOptimizer>(SgdConfig::new().init());
    assert_eq!(outcome_of(&run.amp, run.counters()), (true, SCALE, 3, 3));
    says(
        &said.concat(),
        ["all that `autocast` gave is finite, 2 in a row"],
    );
    let (run, _) = ranks(FusedSgd::new(SgdConfig::new()));
    assert_eq!(outcome_of(&run.amp, run.counters()), (true, SCALE, 3, 3));
    // An infinity may be another rank's overflow.
    let mut run = Player::new(net(), &handle());
    drop(run.gradients(GOOD(&run.amp, &run.model)));
    let mut reduced = GradientsParams::new();
    reduced.register(
        run.model.trunk.factor.id,
        vector(&[0.001, f32::INFINITY]).inner(),
    );
    run.step(0.1, reduced);
    assert_eq!(outcome_of(&run.amp, run.counters()), LOWERED);
}

/// Looked at once, when the run ends.
#[test]
fn the_end_of_a_run_names_what_can_be_named() {
    let infinite = Param::from_tensor(vector(&[2.0, f32::INFINITY]));
    let fine = Gain::new(&[2.0, 2.0]);
    for (left, named) in [
        (
            Gain { factor: infinite },
            "The parameter `left.factor` itself is infinite or NaN",
        ),
        (
            fine,
            "The parameter read last in `autocast` is `left.factor`",
        ),
    ] {
        let config = at_scale(SCALE).with_max_consecutive_skips(Some(0));
        let mut run = Player::new(Net { left, ..net() }, &f16_under(config));
        let loss = nan(chain(&run.amp, &run.model, |x| x));
        let error = run.try_step(0.1, run.gradients(loss)).unwrap_err();
        is_error(&error, "LossNotFinite", [named, "`amp.check`", "`audit`"]);
    }
}
