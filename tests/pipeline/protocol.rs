//! The thread's protocol under a model checker, which tries the orders in which threads can run: the same source, with the checker's
//! threads and queues.

use shuttle::{check_pct, check_random};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

mod sync {
    pub use shuttle::{sync::mpsc, thread};
}

#[path = "../../crates/burn-amp-pipeline/src/worker.rs"]
mod worker;

use burn_amp_core::AmpError;
use worker::Worker;

const DEPTH: usize = 3;

const PROTOCOLS: [fn(); 3] = [
    first_in_first_out_in_a_bounded_queue_that_a_drop_finishes,
    a_panic_refuses_what_comes_after_it,
    several_senders,
];

/// In random orders, and in those with few preemptions.
fn check(orders: usize) {
    for protocol in PROTOCOLS {
        check_random(protocol, orders);
        check_pct(protocol, orders, DEPTH);
    }
}

#[test]
fn in_some_orders() {
    check(400);
}

#[test]
#[ignore = "slow"]
fn sweep_orders() {
    check(4000);
}

fn start(value: Vec<usize>) -> Worker<Vec<usize>> {
    Worker::start("optimizer", value).unwrap()
}

/// A job that counts itself, and says how many were done before it.
fn count(done: &Arc<AtomicUsize>) -> impl FnOnce(&mut Vec<usize>) -> usize + Send + 'static {
    let done = done.clone();
    move |_| done.fetch_add(1, Ordering::SeqCst)
}

/// Whatever the order, jobs are done one after another, as they were sent. At most one waits while one is done: `send` takes no more. A drop in
/// mid-flight ends with all jobs done.
fn first_in_first_out_in_a_bounded_queue_that_a_drop_finishes() {
    let worker = start(Vec::new());
    let done = Arc::new(AtomicUsize::new(0));
    let mut pending = Vec::new();
    for sent in 1..=6 {
        pending.push(worker.send(count(&done)).unwrap());
        // One is being done, one waits.
        assert!(sent - done.load(Ordering::SeqCst) <= 2, "{sent}");
    }
    drop(worker);
    assert_eq!(done.load(Ordering::SeqCst), 6);
    for (job, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.wait(), Ok(job));
    }
}

/// After a panic each job is done or refused, with the reason, and never waited for in vain.
fn a_panic_refuses_what_comes_after_it() {
    // The checker would take a panic for a failure of the protocol: it looks at those that leave a thread, and these do not.
    let worker = start(Vec::new());
    let done = Arc::new(AtomicUsize::new(0));
    let reason = "the third job".to_string();
    let reason = AmpError::OptimizerThread { reason };
    let mut sent = Vec::new();
    for job in 0..6 {
        let count = count(&done);
        sent.push(worker.send(move |state| {
            if job == 2 {
                std::panic::resume_unwind(Box::new("the third job"));
            }
            count(state)
        }));
    }
    for (job, sent) in sent.into_iter().enumerate() {
        let expected = if job < 2 {
            Ok(job)
        } else {
            Err(reason.clone())
        };
        assert_eq!(sent.and_then(|pending| pending.wait()), expected);
    }
    assert_eq!(done.load(Ordering::SeqCst), 2);
    // Who has waited for a refused job knows.
    assert_eq!(worker.check(), Err(reason.clone()));
    assert_eq!(worker.finish(), Err(reason));
}

/// Two senders, as two networks would be, of which each waits for its job before it sends the next: the order of each is kept.
fn several_senders() {
    let worker = Arc::new(start(Vec::new()));
    let threads = [0, 1].map(|sender| {
        let worker = worker.clone();
        sync::thread::spawn(move || {
            for job in 0..2 {
                let push = move |done: &mut Vec<usize>| done.push(10 * sender + job);
                worker.send(push).unwrap().wait().unwrap();
            }
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
    let done = Arc::into_inner(worker).unwrap().finish().unwrap();
    for sender in 0..2 {
        let own: Vec<_> = done.iter().filter(|job| *job / 10 == sender).collect();
        assert_eq!(own, [&(10 * sender), &(10 * sender + 1)]);
    }
}
