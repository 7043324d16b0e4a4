//! Programs that would train wrongly, or in f32, without a word.

use crate::support::{graph::*, *};

fn gain(amp: &MixedPrecision) -> Gain {
    Gain::at(&[2.0, 2.0], amp)
}

fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// The sum of a gain's output.
fn sum(amp: &MixedPrecision, gain: &Gain) -> Tensor<1> {
    amp.autocast(ones(), |x| gain.forward(x)).sum()
}

#[test]
fn burns_optimizer_in_place_of_a_scaled_one_is_warned_of() {
    for (exists, steps) in [(false, false), (true, false), (true, true)] {
        let amp = f16(two(7));
        let (mut gain, mut plain) = (gain(&amp), sgd());
        let mut optim = exists.then(|| ScaledOptimizer::new(sgd(), &amp));
        let lines = captured(Level::Warn, || {
            for _ in 0..if exists { 200 } else { 40 } {
                let grads = backward(sum(&amp, &gain) * two(-10), &gain);
                gain = match &mut optim {
                    Some(optim) if steps => optim.step(0.1, gain.clone(), grads),
                    _ => plain.step(0.1, gain.clone(), grads),
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
/// handles nobody moves one of the scales, unless gradients do not pass it.
const CHECKED: &str = "
the loss inside > Border { what: Loss > [ T sum ]
a second scope in f32 > right > [ T ] [f32 O ] sum
a free scope > NoScope > [free T ] sum
a free scope in part > NoScope > [ T ] [free T ] sum
scopes of two handles > TwoPrecisions > [ T ] [b L ] sum
a teacher of another handle > right > [b R ] *1 = ones [ T ] less square sum
half precision that is carried out > Border { what: Clash > [ T = ] plus sum
";

#[test]
fn a_dry_run_refuses_what_would_not_train_in_half_precision() {
    let (amp, other) = (f16(two(9)), f16(two(9)));
    let amps = [&amp, &other];
    let mut net = attached(net(), amps);
    net.right = self::gain(&other).no_grad();
    for [name, expected, line] in rows(CHECKED) {
        let checked = amp.check(&net, |net| loss_of(amps, net, ones(), line));
        match checked.map(drop) {
            Ok(()) => assert_eq!(expected, "right", "{name}"),
            Err(error) => is_error(&error, expected, []),
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
    let fused = FusedSgd::new(SgdConfig::new());
    assert_eq!(error(fused), AmpError::TwoPrecisions);
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

/// What `step`, a step with a gain and its handle, says in a process of its own.
fn said_of(name: &str, step: impl FnOnce(Gain, &MixedPrecision)) -> String {
    said_in_child(module_path!(), name).unwrap_or_else(|| {
        let amp = f16(two(9));
        step(gain(&amp), &amp);
        TWO_SCALES.concat()
    })
}

const TWO_SCALES: [&str; 3] = [
    "a `GradScaler` has scaled the loss",
    "overflow",
    "`ScaledOptimizer::new(optim, &amp)`",
];

fn scaler() -> GradScaler {
    GradScaler::new(at_scale(two(9))).unwrap()
}

#[test]
fn a_scaler_of_its_own_around_the_optimizer_is_warned_of() {
    let name = "a_scaler_of_its_own_around_the_optimizer_is_warned_of";
    let said = said_of(name, |gain, amp| {
        let mut optim = ScaledOptimizer::new(sgd(), scaler());
        let grads = optim.backward(sum(amp, &gain), &gain);
        optim.step(0.1, gain, grads);
    });
    says(&said, TWO_SCALES);
}

#[test]
fn a_scaler_of_its_own_beside_the_optimizer_is_warned_of() {
    let name = "a_scaler_of_its_own_beside_the_optimizer_is_warned_of";
    let said = said_of(name, |gain, amp| {
        let mut optim = ScaledOptimizer::new(sgd(), amp);
        let grads = backward(scaler().scale(sum(amp, &gain)), &gain);
        optim.step(0.1, gain, grads);
    });
    says(&said, TWO_SCALES);
}

/// Each with a model and a scale of its own, in turn on one thread; one of half precision, whose scopes do not scale.
#[test]
fn two_trainings_of_which_each_scales_once_are_not_warned_of() {
    let name = "two_trainings_of_which_each_scales_once_are_not_warned_of";
    let said = said_in_child(module_path!(), name).unwrap_or_else(|| {
        let (amp, mut other) = (f16(two(9)), Gain::new(&[2.0, 2.0]));
        let mut run = Player::new(gain(&amp), &amp);
        let bare = f16_under(GradScalerConfig::new().with_enabled(false));
        let mut half = gain(&bare);
        let [mut optim, mut of_half] = [(); 2].map(|()| ScaledOptimizer::new(sgd(), scaler()));
        for _ in 0..3 {
            let grads = of_half.backward(sum(&bare, &half), &half);
            half = of_half.step(0.1, half, grads);
            run.train(0.1, sum(&run.amp, &run.model));
            let grads = optim.backward(other.forward(ones()).sum(), &other);
            other = optim.step(0.1, other, grads);
        }
        String::new()
    });
    assert!(!said.contains("GradScaler"), "{said}");
}

/// By hand, beyond what the loss scale can make good.
#[test]
fn overflows_that_go_on_name_what_may_cause_them() {
    let amp = f16_under(at_scale(two(9)).with_max_consecutive_skips(Some(8)));
    let mut run = Player::new(gain(&amp), &amp);
    let lines = logs("scaled twice", || {
        let mut steps =
            (0..9).map(|_| run.try_step(0.1, run.gradients(sum(&run.amp, &run.model) * 1e30)));
        let error = steps.find_map(Result::err).expect("nothing helps");
        is_error(&error, "LossScaleExhausted", []);
    });
    says(only(&lines), ["WARN"]);
}

/// Its gradient would be too small by the loss scale. What leaves a part in f32 has it.
#[test]
fn a_cast_of_its_own_out_of_a_scope_is_warned_of() {
    let name = "a_cast_of_its_own_out_of_a_scope_is_warned_of";
    let Some(said) = said_in_child(module_path!(), name) else {
        let amp = f16(two(9));
        let gain = gain(&amp);
        let backward_of = |carry: fn(Tensor<1>) -> Tensor<1>| {
            let mut carried = None;
            amp.autocast(ones(), |x| {
                let hidden = gain.forward(x);
                carried = Some(carry(hidden.clone()));
                hidden
            });
            let grads = backward(carried.unwrap().sum(), &gain);
            gradient(&grads, gain.factor.id)
        };
        let in_region = |x: Tensor<1>| {
            let mut wide = None;
            in_f32(x, |x| wide = Some(x));
            wide.unwrap()
        };
        assert_eq!(backward_of(in_region), [1.0; 2]);
        sum(&amp, &gain).backward();
        eprintln!("now");
        let wrong = backward_of(|x| x.cast(FloatDType::F32));
        assert_eq!(wrong, [two(-9) as f32; 2]);
        return;
    };
    let (before, after) = said.split_once("now").unwrap();
    let lacks = "the gradient of `factor` lacks the loss scale";
    assert!(!before.contains("lacks the loss scale"), "{before}");
    says(after, [lacks, "`amp.check`"]);
}
