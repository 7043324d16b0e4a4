//! Scopes are of their thread, and of their handle: pools put other work on a thread that waits inside one.

use std::thread;

use crate::nesting::gradients;
use crate::support::*;

/// What was entered is left again, on a panic too, and what was there before is back.
#[test]
fn a_thread_is_outside_until_it_enters() {
    let amp = f16(two(12));
    let gain = Gain::at(&[2.0], &amp);
    let dtype = || gain.factor.val().dtype();
    let [half, full] = [DType::F16, DType::F32];
    let none = Scope::current();
    amp.autocast((), |()| {
        let (scope, mut island) = (Scope::current(), None);
        in_f32((), |()| island = Some(Scope::current()));
        let inside = || {
            let mut inner = half;
            let output = in_f32(gain.forward(amp.cast(vector(&[1.0]))), |x| {
                inner = dtype();
                x
            });
            [dtype(), inner, output.dtype()]
        };
        let work = || (dtype(), scope.enter(inside), dtype());
        let there = thread::scope(|threads| threads.spawn(work).join().unwrap());
        assert_eq!((there, dtype()), ((full, [half, full, half], full), half));
        island.unwrap().enter(|| {
            let found = [scope.enter(dtype), none.enter(dtype), dtype()];
            assert_eq!(found, [half, full, full]);
            let message = panic_message(|| scope.enter(|| panic!("{:?}", dtype())));
            assert_eq!((message.as_str(), dtype()), ("F16", full));
        });
        assert_eq!(dtype(), half);
    });
    assert_eq!(dtype(), full);
}

/// A pool puts other work on a thread that waits, in a scope of another handle or of the same one, or in an island of it: a whole pass. What another handle's
/// model is in a stolen scope is in `two_dtypes.rs`.
#[test]
fn work_that_is_stolen_into_an_open_scope() {
    let (a, b) = (f16(two(16)), f16(two(3)));
    for (amp, around) in [(&a, &a), (&a, &b), (&b, &a)] {
        let job = || gradients([amp, amp], "[ T a? ( thread( L f32? ) ) a? R ] square ^-16");
        let waits = Gain::at(&[2.0], around);
        let expected = job();
        around.autocast((), |()| {
            assert_eq!(job(), expected);
            in_f32((), |()| assert_eq!(job(), expected));
            // And what is read after the thread has done other work.
            assert_eq!(waits.factor.val().dtype(), DType::F16);
        });
    }
}

/// Works on another thread, if it is to.
fn on<T: Send>(is_apart: bool, work: impl FnOnce() -> T + Send) -> T {
    match is_apart {
        true => thread::scope(|threads| threads.spawn(work).join().unwrap()),
        false => work(),
    }
}

/// Reads the parameters here and on threads that make the gradients, after each step: on this thread, or every other step on one more.
fn trained<O: ModuleOptim + Send>(optim: O, are_apart: bool, steps_apart: bool) -> Vec<Vec<f32>> {
    let amp = f16(two(4));
    let (mut model, mut optim) = amp.prepare(Gain::new(&[2.0; 64]), optim);
    let mut read = Vec::new();
    for step in 0..8 {
        let gradients = |part: i32| {
            let loss = amp.autocast(vector(&[0.5; 64]), |x| model.forward(x));
            backward(loss.sum() * f64::from(part + step + 1), &model)
        };
        let parts = [0, 1].map(|part| on(are_apart, || gradients(part)));
        let mut grads = MultiGradientsParams::default();
        grads.grads.extend(parts.map(|part| (part, device())));
        let work = || optim.step_multi(0.01, model, grads);
        model = on(steps_apart && step % 2 == 1, work).unwrap();
        read.extend([are_apart, false].map(|is_apart| on(is_apart, || numbers(&model))));
    }
    read
}

/// What a step makes of memory that other threads have made, all threads read as it is then: see `docs/upstream/in-place-across-threads.md`. An optimizer
/// of Burn's is to step on one thread.
#[test]
fn threads_see_what_a_step_has_made_of_their_gradients() {
    assert!(trained(sgd(), true, false) == trained(sgd(), false, false));
    for steps_apart in [false, true] {
        assert!(trained(fused(), true, steps_apart) == trained(fused(), false, false));
    }
}
