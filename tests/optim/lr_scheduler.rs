//! A learning-rate scheduler that waits for steps that are taken.

use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::{LrSchedulerRecord, cosine::CosineAnnealingLrSchedulerConfig};
use std::thread;

use crate::support::*;

/// Begins at 1, and is multiplied by `gamma` with each step that is taken.
fn falling(gamma: f64) -> ModuleLrScheduler {
    let schedule = ExponentialLrSchedulerConfig::new(1.0, gamma);
    schedule.init().unwrap()
}

/// Of how many steps it is, which halve it.
fn number(rate: &ModuleLearningRate) -> f64 {
    1.0 - rate.base().log2()
}

fn amp() -> MixedPrecision {
    narrowest().with_scaler(GradScalerConfig::new()).unwrap()
}

/// The rate's number of a call: a step that is good (+), overflows (-) or is refused (x), also for a setting (s), gradients that are
/// discarded (d), a window that is flushed (f).
fn call(run: &mut One, rate: ModuleLearningRate, call: char) -> String {
    let factor = if call == '-' { f32::INFINITY } else { 1.0 };
    let grads = run.gradients(loss_of(&run.amp, &run.model, factor));
    let number = number(&rate);
    match call {
        'f' => run.model = run.optim.flush(rate, run.model.clone()),
        'd' => run.optim.discard(grads).unwrap(),
        'x' => assert!(run.try_step(f64::NAN, grads).is_err()),
        's' => {
            let mut wrong = run.clone();
            wrong.optim = wrong.optim.with_clipping(GradientClip::Value(-1.0));
            assert!(wrong.try_step(rate, grads).is_err());
            assert_eq!(wrong.optim.scaler().last_outcome(), None);
        }
        _ => run.try_step(rate, grads).unwrap(),
    }
    number.to_string()
}

fn calls(run: &mut One, lr: &mut ScaledLrScheduler, calls: &str) -> String {
    calls.chars().map(|of| call(run, lr.step(), of)).collect()
}

/// A window of micro-batches is one step, and what is left of one. Gradients that are discarded or refused are none. Nothing is skipped
/// without a scaler.
#[test]
fn it_advances_with_steps_that_are_taken() {
    for (name, amp, window, script, rates) in [
        ("each step", amp(), 1, "+--++-+", "1222344"),
        ("windows", amp(), 3, "++++-+++++", "1112222223"),
        ("flushed", amp(), 3, "++++fff", "1112233"),
        ("discarded", amp(), 1, "+d++", "1223"),
        ("refused", amp(), 1, "+x++", "1223"),
        ("a wrong setting", amp(), 1, "+s++", "1223"),
        ("no scaler", MixedPrecision::f32(), 1, "+-+", "123"),
    ] {
        for of_optim in [false, true] {
            let mut run = one(&amp);
            run.optim = run.optim.with_accumulation(window);
            let mut lr = match of_optim {
                true => ScaledLrScheduler::new(falling(0.5), &run.optim),
                false => ScaledLrScheduler::new(falling(0.5), &amp),
            };
            let found = calls(&mut run, &mut lr, script);
            assert_eq!(found, rates, "{name}, {of_optim}");
        }
    }
    // Nor is anything known where a plain optimizer steps.
    let mut lr = ScaledLrScheduler::new(falling(0.5), &MixedPrecision::f16());
    assert_eq!([(); 3].map(|()| number(&lr.step())), [1.0, 2.0, 3.0]);
    // A skip before the first step is not its own, whatever others on the handle have done before.
    let mut run = one(&amp());
    for (script, rates) in [("-", "1"), ("-++", "112")] {
        let mut lr = ScaledLrScheduler::new(falling(0.5), &run.amp);
        assert_eq!(calls(&mut run, &mut lr, script), rates);
    }
}

/// Burn's schedulers with their groups; and in Burn's own scheduler, each group by itself. Where only one learning rate can be given, those of
/// groups would be lost.
#[test]
fn groups_wait_too() {
    let bias = || ParamGroup::from_predicate("bias");
    let schedule = || {
        let base = LinearLrSchedulerConfig::new(0.5, 0.1, 4).into();
        let of_bias = CosineAnnealingLrSchedulerConfig::new(0.8, 4);
        let config = ModuleLrSchedulerConfig::new(base).with_group(bias(), of_bias);
        config.init().unwrap()
    };
    let (mut run, mut plain) = (one(&amp()), schedule());
    let mut lr = ScaledLrScheduler::new(schedule(), &run.amp);
    let grouped = ModuleLrScheduler::new(ScaledLrScheduler::new(falling(0.5), &run.amp));
    let mut grouped = grouped.with_group(bias(), ScaledLrScheduler::new(falling(0.25), &run.amp));
    let id = run.model.weight.id;
    let rates =
        |lr: &ModuleLearningRate| ["weight", "bias"].map(|path| lr.lr_from_param(id, Some(path)));
    for (of, rate) in [('+', 1.0), ('-', 0.5), ('+', 0.5), ('+', 0.25)] {
        let (found, expected) = (lr.step(), plain.clone().step());
        assert_eq!(rates(&found), rates(&expected));
        assert_eq!(rates(&grouped.step()), [rate, rate * rate]);
        call(&mut run, found, of);
        if of == '+' {
            plain.step();
        }
    }
    let lr = ScaledLrScheduler::new(schedule(), &run.amp);
    let message = panic_message(|| ModuleLrScheduler::new(lr).step());
    says(&message, ["wrap each scheduler by itself"]);
}

/// A clone is another scaler: what it skips is nothing to the schedule of the first. A window that a program fills itself is one step, too.
#[test]
fn a_scaler_alone_is_followed() {
    let mut run = ByHand::of(Pair::of(0.0), at_scale(8.0));
    let mut both = [
        ScaledLrScheduler::new(falling(0.5), &run.scaler),
        ScaledLrScheduler::new(falling(0.5), &run.scaler.clone()),
    ];
    let rates = [ONES, BAD, ONES, ONES].map(|values| {
        let rates = both.each_mut().map(|lr| number(&lr.step()));
        run.iterate(values);
        rates
    });
    assert_eq!(rates, [[1.0, 1.0], [2.0, 2.0], [2.0, 3.0], [3.0, 4.0]]);

    let mut lr = ScaledLrScheduler::new(falling(0.5), &run.scaler);
    let mut window = AccumulationConfig::new(3).init().unwrap();
    let rates = [(); 7].map(|()| {
        let rate = number(&lr.step());
        if let Some(grads) = run.accumulate(&mut window, ONES) {
            run.take(grads).unwrap();
            run.scaler.update().unwrap();
        }
        rate
    });
    assert_eq!(rates, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 3.0]);
}

/// Two optimizers, each with a schedule of its own: a skip of one leaves the other's alone, in turns, and on two threads that step in their own time,
/// as the workers of a training on several devices do. And steps elsewhere are seen here.
#[test]
fn each_optimizer_has_its_own_schedule_on_any_thread() {
    let amp = amp();
    let mut runs = ["+-+", "+++"].map(|script| {
        let run = one(&amp);
        let lr = ScaledLrScheduler::new(falling(0.5), &run.optim);
        (run, lr, script)
    });
    for (step, rates) in ["11", "22", "23"].into_iter().enumerate() {
        let step = |(run, lr, script): &mut (_, _, &str)| calls(run, lr, &script[step..=step]);
        assert_eq!(runs.each_mut().map(step).concat(), rates);
    }

    let mut lr = ScaledLrScheduler::new(falling(0.5), &amp);
    let work = ["+-++", "+++-"].map(|script| {
        let (mut lr, mut run) = (lr.clone(), one(&amp));
        move || calls(&mut run, &mut lr, script)
    });
    let rates = work.map(thread::spawn).map(|thread| thread.join().unwrap());
    assert_eq!(rates, ["1223", "1234"]);

    let mut run = one(&amp);
    let mut rates = calls(&mut run, &mut lr, "+");
    for of in "-+-+".chars() {
        let rate = lr.step();
        let step = || call(&mut run, rate, of);
        rates += &thread::scope(|threads| threads.spawn(step).join().unwrap());
    }
    assert_eq!(rates, "12233");
}

/// A record is that of the scheduler inside, as it goes on: after a skip, with the learning rate that was not used. The scheduler by
/// itself reads it, and Burn's, whose records are those of the scheduler by itself.
#[test]
fn records_resume() {
    let linear = || LinearLrSchedulerConfig::new(0.9, 0.1, 8).init().unwrap();
    for script in ["++-++", "++-+-"] {
        let mut run = one(&amp());
        let amp = run.amp.clone();
        let scaled = || ScaledLrScheduler::new(linear(), &amp);
        let (mut lr, mut of_burn) = (scaled(), ModuleLrScheduler::new(scaled()));
        for of in script.chars() {
            lr.step();
            call(&mut run, of_burn.step(), of);
        }
        let bytes = lr.to_record().into_bytes().unwrap();
        let own = LrSchedulerRecord::from_bytes(bytes).unwrap();
        let records = [own, of_burn.to_record()];
        let next = lr.step().base();
        assert_eq!(of_burn.step().base(), next);
        for record in records {
            assert_eq!(scaled().load_record(record.clone()).step().base(), next);
            for resumed in [ModuleLrScheduler::new(scaled()), linear()] {
                assert_eq!(resumed.load_record(record.clone()).step().base(), next);
            }
        }
    }
}
