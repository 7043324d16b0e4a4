//! What was not finite first is the cause of a skip: passes in turn, windows, several optimizers and trainings.

use crate::support::{graph::*, *};
use std::collections::VecDeque;
use std::thread;

/// Passes of two players (a and b) that are good (.), overflow (!) or have a bad loss (?), and are over before their steps (sa, sb): a step is
/// explained by its own. After the script: whether a has windows of two, the scale, and of both how many steps were skipped and how many losses bad.
const SCRIPTS: &str = "
a. a? sa sa > 1 > 1024: 1 1, 0 0
a. a! sa sa > 1 > 512: 1 0, 0 0
a. a. sa a? sa a. sa sa > 1 > 1024: 1 1, 0 0
a. a. sa a! sa a. sa sa > 1 > 512: 1 0, 0 0
a? b! sa sb > 1 > 512: 1 1, 1 0
b! a? sa sb > 1 > 512: 1 1, 1 0
a! b? sa sb > 1 > 512: 1 0, 1 1
b? a. sa sb > 1 > 1024: 0 0, 1 1
b? a. sa a. sa sb > 1 > 1024: 0 0, 1 1
b! a. sa a. sa sb > 1 > 512: 0 0, 1 0
a? b! sa sb a. sa > 2 > 512: 1 1, 1 0
b! a? sa sb a. sa > 2 > 512: 1 1, 1 0
a. b! sa a? sb sa > 2 > 512: 1 1, 1 0
a? sa b! sb a. sa > 2 > 512: 1 1, 1 0
a! sa b? sb a. sa > 2 > 512: 1 0, 1 1
a. sa b! sb a? sa > 2 > 512: 1 1, 1 0
a? sa b. sb a. sa b! sb > 2 > 512: 1 1, 1 0
a. sa b? sb a! sa > 2 > 512: 1 0, 1 1
";

#[test]
fn a_step_is_explained_by_its_own_passes() {
    for [script, window, expected] in rows(SCRIPTS) {
        let amp = handle();
        let mut runs = [window.parse().unwrap(), 1].map(|window: u32| {
            let mut run = Player::new(net(), &amp);
            if window > 1 {
                run.optim = run.optim.with_accumulation(window);
            }
            (run, VecDeque::new())
        });
        for call in script.split(' ') {
            let (run, passes) = &mut runs[usize::from(call.contains('b'))];
            match call.as_bytes()[1] {
                b'?' => passes.push_back(pass(run, "[ T ] nan")),
                b'!' => passes.push_back(pass(run, "[ T ] steep")),
                b'.' => passes.push_back(pass(run, "[ T ] flat")),
                _ => _ = run.step(0.01, passes.pop_front().unwrap()),
            }
        }
        let all = amp.counters();
        let [a, b] = runs.map(|(run, _)| run.counters());
        assert_eq!(all.skipped(), a.skipped() + b.skipped(), "{script}");
        assert_eq!(all.bad_losses(), a.bad_losses() + b.bad_losses());
        let of = |run: StepCounters| format!("{} {}", run.skipped(), run.bad_losses());
        let found = format!("{}: {}, {}", amp.loss_scale(), of(a), of(b));
        assert_eq!(found, expected, "{script}");
    }
}

/// One on a thread that tests nothing is over with the iteration after; what came before a record was loaded is of the run before.
#[test]
fn a_pass_of_before_explains_no_step() {
    for loads in [false, true] {
        let mut run = training();
        if loads {
            let record = run.optim.to_record();
            drop(pass(&run, "[ T ] nan"));
            run.optim.load_record(record).unwrap();
        } else {
            thread::scope(|threads| _ = threads.spawn(|| drop(pass(&run, "[ T ] nan"))));
            assert!((0..2).all(|_| !step(&mut run, "[ T ] flat")));
        }
        step(&mut run, "[ T ] steep");
        assert_eq!(ended(run), "lowered");
    }
}

/// Gradients in place of a pass's own, as a sum over ranks gives them.
fn reduced<O: ModuleOptim>(run: &Training<O>, value: f32) -> GradientsParams {
    drop(pass(run, "[ T ] flat"));
    let mut reduced = GradientsParams::new();
    let values = vector(&[0.001, value]).inner();
    reduced.register(run.model.trunk.factor.id, values);
    reduced
}

/// Others of this process may be on threads of their own; one that goes on on another is still one.
#[test]
fn a_training_that_moves_to_a_thread_keeps_what_is_known() {
    let mut run = training();
    step(&mut run, "[ T ] flat");
    let moved = thread::spawn(move || {
        run.step(0.01, reduced(&run, f32::NAN));
        run
    });
    let mut run = moved.join().unwrap();
    assert_eq!(outcome_of(&run.amp, run.counters()), "unknown");
    step(&mut run, "[ T ] flat");
    assert_eq!(run.counters().skipped(), 1);
}

/// Two trainings of their own, whose passes interleave on one thread, in the middle of the other's window; the other's may overflow.
#[test]
fn a_bad_loss_is_that_of_ones_own_training() {
    let lines = ["[ T ] flat", "[ T ] [ L ] flat", "[ T ] [ L ] steep"];
    for (own, other, is_first) in (0..12).map(|at| (lines[at % 2], lines[at / 4], at % 4 > 1)) {
        let [mut run, mut beside] = [training(), training()];
        beside.optim = beside.optim.with_accumulation(8);
        step(&mut beside, "[ T ] flat");
        let forward = |run: &Training, line| loss(&run.amp, &run.model, line);
        let early = is_first.then(|| forward(&run, own));
        let others = forward(&beside, other);
        let loss = early.unwrap_or_else(|| forward(&run, own));
        beside.gradients(others);
        run.train(0.01, loss * f32::NAN);
        assert_eq!(run.counters().consecutive_skips(), 0);
        assert_eq!(ended(run), "bad", "{own}, {other}");
    }
}

/// Ranks in processes of their own, whose gradients are summed: no vote, and no scale moves for another's loss.
#[test]
fn gradients_that_no_scope_has_spoilt_have_an_unknown_cause() {
    fn ranks<O: ModuleOptim>(optimizer: O) {
        let config = at_scale(SCALE).with_max_consecutive_skips(Some(2));
        let mut run = Player::with(optimizer, net(), &f16_under(config));
        let ends = [(); 3].map(|()| {
            run.try_step(0.1, reduced(&run, f32::NAN))?;
            run.optim.synchronize()
        });
        assert_eq!(ends[..2], [Ok(()), Ok(())]);
        let expected = "UnknownCause { skips: 3, parameter: \"trunk.factor\" }";
        is_error(ends[2].as_ref().unwrap_err(), expected, []);
        assert_eq!(ended(run), "3 3 3: 1024");
    }
    let said = captured(Level::Warn, || ranks(sgd()));
    let wording = "all that `autocast` gave is finite, 2 in a row";
    says(&said.concat(), [wording]);
    ranks(fused());
    // An infinity may be another rank's overflow.
    let mut run = training();
    run.step(0.1, reduced(&run, f32::INFINITY));
    assert_eq!(ended(run), "lowered");
}
