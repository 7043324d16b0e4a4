//! Programs that would train wrongly, or in f32, without a word.

use crate::support::{graph::*, *};

#[test]
fn burns_optimizer_in_place_of_a_scaled_one_is_warned_of() {
    for (exists, steps) in [(false, false), (true, false), (true, true)] {
        let amp = handle();
        let (mut model, mut plain) = (amp.attach(net()), sgd());
        let mut optim = exists.then(|| ScaledOptimizer::new(sgd(), &amp));
        let lines = captured(Level::Warn, || {
            for _ in 0..if exists { 200 } else { 40 } {
                let grads = backward(loss(&amp, &model, "[ T ] flat"), &model);
                model = match &mut optim {
                    Some(optim) if steps => optim.step(0.1, model.clone(), grads),
                    _ => plain.step(0.1, model.clone(), grads),
                };
            }
        });
        let warned = lines.iter().filter(|line| line.contains("never tested"));
        assert_eq!(warned.count(), usize::from(!steps), "{lines:?}");
    }
}

/// As in meta-learning, or to look at gradients.
#[test]
fn passes_between_two_steps_are_no_mistake() {
    let mut run = training();
    step(&mut run, "[ T ] flat");
    no_warning(|| (0..100).for_each(|_| drop(pass(&run, "[ T ] flat"))));
}

/// What a dry run says of a loss. In f32 a scope loses nothing; a free `autocast` does nothing in a loop of one's own, nor in one part of it; and of two
/// handles nobody moves one of the scales, unless gradients do not pass it. Regions are right at any factor k.
const CHECKED: &str = "
the loss inside > Border { what: Loss > [ T sum ]
a second scope in f32 > right > [ T ] [f32 O ] sum
a free scope > NoScope > [free T ] sum
a free scope in part > NoScope > [ T ] [free T ] sum
scopes of two handles > TwoPrecisions > [ T ] [b L ] sum
a teacher of another handle > right > [b R ] *1 = ones [ T ] times square sum
half precision that is carried out > Border { what: Clash > [ T = ] times sum
a region > right > [ T {k O tanh } O ] ^-12
a region that is given what it uses > right > [ T = &{k O tanh times } O ] ^-12
a region that takes in what is captured > right > tracked = ones [ T {k O tanh taken } O ] ^-12
gradients that are lost without a factor > right > [ T {14 O tanh *-16 } O ] ^-12
others that are, of 2^-18 > right > [ T {14 O tanh *-18 } O ] ^-12
of 2^-20 > right > [ T {14 O tanh *-20 } O ] ^-12
of 2^-22 > right > [ T {14 O tanh *-22 } O ] ^-12
";

const FACTORS: [i32; 12] = [-12, -8, -5, -4, -3, 1, 2, 3, 4, 5, 8, 12];

#[test]
fn a_dry_run_refuses_what_would_not_train_in_half_precision() {
    let (amp, other) = (f16(two(9)), f16(two(9)));
    let amps = [&amp, &other];
    let mut net = attached(net(), amps);
    net.right = Gain::at(&[2.0; 2], &other).no_grad();
    for [name, expected, line] in rows(CHECKED) {
        let factors = if line.contains("{k") {
            &FACTORS[..]
        } else {
            &[0]
        };
        for k in factors {
            let line = line.replace("{k", &format!("{{{k}"));
            let checked = amp.check(&net, |net| loss_of(amps, net, ones(), &line));
            match checked.map(drop) {
                Ok(()) => assert_eq!(expected, "right", "{name}"),
                Err(error) => is_error(&error, expected, []),
            }
        }
    }
}

/// Of a model that nobody has run, Burn draws the parameters in the first run.
#[test]
fn a_dry_run_of_a_new_model_sees_a_leak_beside_dropout() {
    let name = "a_dry_run_of_a_new_model_sees_a_leak_beside_dropout";
    if said_in_child(module_path!(), name).is_some() {
        return;
    }
    let amp = f16(two(9));
    let dropout = DropoutConfig::new(0.5).init();
    let model: Linear = amp.attach(LinearConfig::new(4, 4).init(&flex()));
    let checked = amp.check(&model, |m| {
        let mut hidden = None;
        let keep = |x| hidden.insert(m.forward(x)).clone();
        let input = dropout.forward(Tensor::<2>::ones([8, 4], &flex()));
        let output = amp.autocast(input, keep);
        output.mean() + hidden.unwrap().cast(FloatDType::F32).mean()
    });
    is_error(&checked.map(drop).unwrap_err(), "BorderLeak", ["`weight`"]);
}

/// Its own scale is not the cause, and neither is the loss. Whether the host decides a step or the device.
#[test]
fn an_overflow_at_the_scale_of_another_handle_is_named() {
    fn error<O: ModuleOptim>(optimizer: O) -> AmpError {
        let amp = f16_under(at_scale(two(9)).with_max_consecutive_skips(Some(2)));
        let other = f16(two(20));
        let amps = [&amp, &other];
        let mut run = Player::with(optimizer, attached(net(), amps), &amp);
        let mut step = |_: i32| {
            let loss = loss_of(amps, &run.model, ones(), "[ T ] [b L ] sum");
            run.try_step(0.1, run.gradients(loss)).err()
        };
        let error = (0..30).find_map(&mut step).expect("every step is skipped");
        assert_eq!((run.counters().bad_losses(), run.scale()), (0, two(9)));
        error
    }
    assert_eq!(error(sgd()), AmpError::TwoPrecisions);
    assert_eq!(error(fused()), AmpError::TwoPrecisions);
}

/// Whichever handle's scope it came through before.
#[test]
fn a_gradient_that_becomes_nan_between_the_scopes_of_two_handles() {
    if !on_flex() {
        return skipped("the gradient of the root of a zero is another on other devices");
    }
    let amps = [&f16(two(9)), &f16(two(9))];
    let mut run = Player::new(attached(net(), amps), amps[0]);
    let loss = loss_of(amps, &run.model, ones(), "[ T ] root [b L ] flat");
    run.step(0.1, run.gradients(loss));
    assert_eq!((run.counters().bad_losses(), run.scale()), (1, two(9)));
}

/// A scaler of its own around the optimizer, or beside it. Two trainings of which each scales once are right: each with a model and a scale of its own, in
/// turn on one thread; one of half precision, whose scopes do not scale. Each in a process of its own, since it is said once.
#[test]
fn a_loss_that_is_scaled_twice_is_warned_of() {
    let test = concat!(module_path!(), "::a_loss_that_is_scaled_twice_is_warned_of");
    let Some(case) = child_folder() else {
        for case in ["around", "beside", "apart"] {
            let output = child(test, Path::new(case)).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{said}");
            if case == "apart" {
                assert!(!said.contains("GradScaler"), "{said}");
                continue;
            }
            let instead = "`ScaledOptimizer::new(optim, &amp)`";
            let scaled = "a `GradScaler` has scaled the loss";
            says(&said, [scaled, "overflow", instead]);
        }
        return;
    };
    let bare = f16_under(GradScalerConfig::new().with_enabled(false));
    let of_own = |amp: &MixedPrecision| Training {
        optim: sgd_under(at_scale(SCALE)),
        ..Player::new(net(), amp)
    };
    let scaled = |run: &mut Training, line| {
        let loss = loss(&run.amp, &run.model, line);
        run.step(0.1, run.optim.backward(loss, &run.model));
    };
    let (mut run, mut half, mut other) = (training(), of_own(&bare), of_own(&bare));
    other.model = net();
    match case.to_str().unwrap() {
        "around" => scaled(&mut of_own(&run.amp), "[ T ] sum"),
        "beside" => {
            let loss = loss(&run.amp, &run.model, "[ T ] sum");
            run.train(0.1, default_scaler().scale(loss));
        }
        _ => {
            for _ in 0..3 {
                scaled(&mut half, "[ T ] sum");
                step(&mut run, "[ T ] sum");
                scaled(&mut other, "T sum");
            }
        }
    }
}

/// By hand, beyond what the loss scale can make good.
#[test]
fn overflows_that_go_on_name_what_may_cause_them() {
    let amp = f16_under(at_scale(SCALE).with_max_consecutive_skips(Some(8)));
    let mut run = Player::new(net(), &amp);
    let lines = logs("scaled twice", || {
        let ends = [(); 9].map(|()| run.try_step(0.1, pass(&run, "[ T ] ^100")));
        is_error(ends[8].as_ref().unwrap_err(), "LossScaleExhausted", []);
    });
    says(only(&lines), ["WARN"]);
}

/// Its gradient would be too small by the loss scale. What leaves a part in f32 has it.
#[test]
fn a_cast_of_its_own_out_of_a_scope_is_warned_of() {
    let name = "a_cast_of_its_own_out_of_a_scope_is_warned_of";
    let Some(said) = said_in_child(module_path!(), name) else {
        let run = training();
        let gradients = |line| all_gradients(&pass(&run, line), &run.model);
        assert_eq!(gradients("[ T ( = ) ] kept sum"), [[1.0; 2]]);
        pass(&run, "[ T ] sum");
        eprintln!("now");
        let wrong = gradients("[ T = full swap ] kept sum");
        assert_eq!(wrong, [[1.0 / SCALE as f32; 2]]);
        return;
    };
    let (before, after) = said.split_once("now").unwrap();
    assert!(!before.contains("lacks the loss scale"), "{before}");
    let lacks = "the gradient of `trunk.factor` lacks the loss scale";
    says(after, [lacks, "`amp.check`"]);
}
