//! What recordings and replays leave as it was: what was read before, memory, and other recordings.

use std::sync::Barrier;
use std::{cell::RefCell, thread};

use super::{Batch, Run, captured, default_run, has_graphs, loss, of_rows, train};
use crate::{allocations::live_allocations, support::*};

/// With three steps more, captured.
fn trained(run: Run) -> Run {
    let amp = run.amp.clone();
    let mut step = captured(run);
    for _ in 0..3 {
        step.step(1e-2, of_rows(4)).unwrap();
    }
    let (model, optim) = step.into_parts();
    Run { amp, model, optim }
}

/// On CubeCL devices Burn's reads are late: the values are read when somebody looks at them.
#[test]
fn what_was_read_before_keeps_its_values() {
    let read = |run: &Run| run.model.hidden.weight.base().inner().to_data();
    let same = |found: TensorData, expected: &Run| found.as_bytes() == read(expected).as_bytes();
    let run = default_run();
    let first = read(&run);
    let run = trained(run);
    let first = same(first, &default_run());

    // Given back and read, then captured again.
    let again = read(&run);
    trained(run);
    let again = same(again, &trained(default_run()));

    let run = default_run();
    let record = run.model.clone().into_record();
    let net = trained(run).model.load_record(record);
    let recorded = parameters(&net) == parameters(&default_run().model);

    assert_eq!([first, again, recorded], [true; 3]);
}

/// Nobody calls `backward` in a replay, which would free what autodiff keeps.
#[test]
fn replays_leave_no_allocation_behind() {
    if !has_graphs() {
        return skipped("the device records no step");
    }
    let mut step = captured(default_run());
    let batch = of_rows(4);
    let mut live_after = |steps: usize| {
        for _ in 0..steps {
            step.step(1e-3, batch.clone()).unwrap();
        }
        step.synchronize().unwrap();
        live_allocations()
    };
    let mut live = live_after(100);
    let grown = [(); 3].map(|()| {
        let before = std::mem::replace(&mut live, live_after(500));
        live - before
    });
    // The device's own thread and its pools allocate up to 200 and free them again: what leaks, grows in each.
    let least = grown.iter().min().unwrap();
    assert!(*least < 250, "{grown:?} allocations more");
}

/// One that is called in another's recording, where the device replays nothing.
#[test]
fn a_replay_that_fails_is_no_step() {
    if !has_graphs() {
        return skipped("the device records no step");
    }
    let step = RefCell::new(captured(default_run()));
    let taken = RefCell::new(vec![3, 4, 3]);
    for rows in taken.borrow().iter() {
        step.borrow_mut().step(1e-2, of_rows(*rows)).unwrap();
    }

    let outer = default_run();
    let mut failed = 0;
    let of = |net: &Net, batch: Batch| {
        match step.borrow_mut().step(1e-2, of_rows(3)) {
            Ok(_) => taken.borrow_mut().push(3),
            Err(_) => failed += 1,
        }
        loss(net, &outer.amp, batch)
    };
    let mut other = CapturedStep::new(outer.model, outer.optim, of).unwrap();
    assert!(other.step(1e-2, of_rows(4)).is_err());
    drop(other);
    assert_eq!(failed, 1);

    // A shape that is known, a new one, and that which has failed.
    for rows in [4, 5, 3, 4] {
        step.borrow_mut().step(1e-2, of_rows(rows)).unwrap();
        taken.borrow_mut().push(rows);
    }
    let (found, mut optim) = step.into_inner().into_parts();
    optim.synchronize().unwrap();

    let mut by_one = default_run();
    for rows in taken.into_inner() {
        train(&mut by_one, 1e-2, of_rows(rows));
    }
    by_one.optim.synchronize().unwrap();
    assert_eq!(parameters(&found), parameters(&by_one.model));
    assert_eq!(optim.scaler().counters(), by_one.counters());
}

/// They share the generator of random numbers, which nobody here draws from.
#[test]
fn two_threads_record_on_one_device() {
    for _ in 0..4 {
        let both = Arc::new(Barrier::new(2));
        let threads = [both.clone(), both].map(|both| {
            thread::spawn(move || {
                let run = default_run();
                both.wait();
                parameters(&trained(run).model)
            })
        });
        let [one, other] = threads.map(|thread| thread.join().unwrap());
        assert_eq!(one, other);
    }
}
