//! What goes wrong, on either side: nothing is lost in silence, and the module is given back.

use std::sync::mpsc::{Sender, channel};

use crate::support::*;

/// With any optimizer. Two skips in a row are allowed.
fn trial<O: ModuleOptim + Send + 'static>(optim: O) -> Trial<O> {
    let config = at_scale(1024.0).with_max_consecutive_skips(Some(2));
    Trial::new(f16_under(config), |amp| ScaledOptimizer::new(optim, amp))
}

/// An optimizer that steps when it is let, and panics at a chosen step; the count of its steps, and what lets it.
fn gated(panics_at: usize) -> (impl ModuleOptim + Send, Arc<AtomicUsize>, Sender<()>) {
    let counted = Arc::new(AtomicUsize::new(0));
    let (steps, (open, gate)) = (counted.clone(), channel());
    let wait = move |_| {
        // Whoever has dropped the other end lets all through.
        let _ = gate.recv();
        if steps.load(Ordering::SeqCst) == panics_at {
            panic!("the disk of the optimizer's state is full");
        }
        steps.fetch_add(1, Ordering::SeqCst);
    };
    (Observed(SgdConfig::new().init(), wait), counted, open)
}

#[test]
fn a_killed_optimizer_thread_is_an_error_of_every_later_call() {
    let (optim, steps, open) = gated(3);
    drop(open);
    let mut trial = trial(optim);
    // Step 3 has panicked, and step 4 has waited for it.
    (0..4).for_each(|step| trial.step(step, false));
    for step in 4..6 {
        is_error(&trial.refused(step), "OptimizerThread", ["disk"]);
    }
    assert_eq!(steps.load(Ordering::SeqCst), 3);
    assert_eq!(trial.counters().steps(), 3, "what is known is known still");
    let (before, Trial { mut optim, net, .. }) = (trial.parameters(), trial);
    let failed = optim.synchronize(net).unwrap_err();
    let net = *failed.module;
    assert!(parameters(&net) == before);
    for error in [
        failed.error,
        optim.to_record().into_bytes().unwrap_err(),
        optim.queue(|_| Ok(())).unwrap_err(),
        optim.into_inner(net).map(drop).unwrap_err().error,
    ] {
        is_error(&error, "OptimizerThread", ["disk"]);
    }
}

/// A step waits for the update before: not for its own.
#[test]
fn at_most_one_update_is_in_flight() {
    let (optim, updates, gate) = gated(usize::MAX);
    let mut trial = trial(optim);
    // Where this fails it is dropped before the pipeline, which waits for its thread.
    let open = gate;
    for step in 0..20 {
        trial.step(step, false);
        // Its own is at the gate.
        assert_eq!(updates.load(Ordering::SeqCst), step);
        open.send(()).unwrap();
    }
    trial.synchronize();
    assert_eq!(updates.load(Ordering::SeqCst), 20);
    no_warning(|| drop(trial));
}

#[test]
fn a_drop_finishes_what_is_on_its_way_and_says_so() {
    let (optim, updates, open) = gated(usize::MAX);
    let mut trial = trial(optim);
    trial.step(0, false);
    open.send(()).unwrap();
    warns_once(["synchronize"], || drop(trial));
    assert_eq!(updates.load(Ordering::SeqCst), 1);
}

/// The error of an update comes with the next call, whose gradients are refused; the run may go on. The other thread knows what the
/// scopes of this one have read.
#[test]
fn a_run_that_cannot_go_on_is_an_error_of_the_next_step() {
    for (factor, variant, part) in [
        (1e6, "LossScaleExhausted { scale: 256.0, skips: 3, ", ""),
        (f64::NAN, "LossNotFinite { skips: 3, ", "`head.bias`"),
    ] {
        let mut trial = trial(SgdConfig::new().init());
        for step in 0..3 {
            trial.try_step(trial.gradients(step, factor)).unwrap();
        }
        is_error(&trial.refused(3), variant, [part]);
        let before = trial.parameters();
        trial.step(3, false);
        trial.synchronize();
        assert!(trial.parameters() != before);
        let counters = trial.optim.received_scaler().counters();
        assert_eq!((counters.steps(), counters.skipped()), (4, 3));
    }
}

/// What can be refused without the other thread is refused at once, and nothing is sent.
#[test]
fn bad_gradients_and_rates_are_refused_at_once() {
    let windows = |amp: &MixedPrecision| run::sgd(amp).with_accumulation(4);
    let mut trial = Trial::new(growing(5), windows);
    trial.step(0, false);
    let mut grads = trial.gradients(0, 1.0);
    let wrong = Tensor::<2>::ones([1, 1], &Device::flex());
    grads.register(trial.net.head.weight.id, wrong);
    let error = trial.try_step(grads).unwrap_err();
    is_error(&error, "GradientShape", ["`head.weight`"]);
    trial.lr = f64::NAN;
    let flushed = trial.optim.try_flush(trial.lr, trial.net.clone());
    let flushed = flushed.unwrap_err().error;
    for error in [trial.refused(0), flushed] {
        is_error(&error, "InvalidValue", ["`lr` is"]);
    }
    trial.synchronize();
    assert_eq!(trial.counters().steps(), 0);
}

#[test]
fn another_module_is_refused_until_it_is_reloaded() {
    let mut trial = trial(SgdConfig::new().init());
    (0..3).for_each(|step| trial.step(step, false));
    // Another network, of the same shapes.
    let own = std::mem::replace(&mut trial.net, net(&trial.amp));
    says(&trial.refused(0), ["`hidden.weight` was not there"]);

    // The same network, edited, as weight clipping and the like do. The fourth step looks.
    trial.net = own;
    trial.synchronize();
    trial.net = fill(trial.net, 21, 0.5);
    trial.step(3, false);
    trial.net = fill(trial.net, 28, 0.5);
    for step in [4, 5] {
        is_error(&trial.refused(step), "OtherModule", []);
    }
    trial.optim.reload(&trial.net).unwrap();
    let before = trial.parameters();
    trial.lr = 0.0;
    trial.step(6, false);
    trial.synchronize();
    // The masters are those of the edited network.
    assert!(trial.parameters() == before);
}
