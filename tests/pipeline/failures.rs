//! What goes wrong, on either side: nothing is lost in silence, and the module is given back.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::support::*;

/// With any optimizer. Two skips in a row are allowed.
fn trial<O: ModuleOptim + Send + 'static>(optim: O) -> Trial<O> {
    let config = at_scale(1024.0).with_max_consecutive_skips(Some(2));
    Trial::new(f16_under(config), |amp| ScaledOptimizer::new(optim, amp))
}

fn sgd() -> Trial {
    trial(SgdConfig::new().init())
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
    for step in 0..6 {
        let stepped = trial.try_step(trial.gradients(step));
        match step < 4 {
            true => stepped.unwrap(),
            false => is_error(&stepped.unwrap_err(), "OptimizerThread", ["disk"]),
        }
    }
    assert_eq!(steps.load(Ordering::SeqCst), 3);
    assert_eq!(trial.counters().steps(), 3, "what is known is known still");
    let Trial { mut optim, net, .. } = trial;
    let before = parameters(&net);
    let error = optim.synchronize(net).unwrap_err();
    says(&error, ["disk"]);
    let net = *error.module;
    assert!(parameters(&net) == before);
    says(&optim.to_record().into_bytes().unwrap_err(), ["disk"]);
    says(&optim.queue(|_| Ok(())).unwrap_err(), ["disk"]);
    let ended = optim.into_inner(net).map(drop);
    says(&ended.unwrap_err(), ["disk"]);
}

/// A step waits for the update before: not for its own.
#[test]
fn at_most_one_update_is_in_flight() {
    let (optim, steps, open) = gated(usize::MAX);
    let mut trial = trial(optim);
    // The gate is closed, and yet it returns.
    trial.step(0, false);
    assert_eq!(steps.load(Ordering::SeqCst), 0);

    let (sender, done) = channel();
    let training = thread::spawn(move || {
        trial.step(1, false);
        sender.send(()).unwrap();
        trial
    });
    // It cannot be done: the first update is at the gate.
    assert!(done.recv_timeout(Duration::from_millis(200)).is_err());
    open.send(()).unwrap();
    done.recv().unwrap();
    assert_eq!(steps.load(Ordering::SeqCst), 1);
    let mut trial = training.join().unwrap();
    open.send(()).unwrap();
    trial.synchronize();
    assert_eq!(steps.load(Ordering::SeqCst), 2);
}

#[test]
fn a_drop_finishes_what_is_on_its_way_and_says_so() {
    for synchronized in [false, true] {
        let (optim, steps, open) = gated(usize::MAX);
        let mut trial = trial(optim);
        trial.step(0, false);
        let lines = captured(Level::Warn, || {
            open.send(()).unwrap();
            if synchronized {
                trial.synchronize();
            }
            drop(trial);
        });
        assert_eq!(steps.load(Ordering::SeqCst), 1);
        let warned = lines.iter().any(|line| line.contains("synchronize"));
        assert_eq!(warned, !synchronized, "{lines:?}");
    }
}

/// The error of an update comes with the next call, whose gradients are refused; the run may go on.
#[test]
fn an_exhausted_scale_is_an_error_of_the_next_step() {
    let mut trial = sgd();
    for step in 0..3 {
        trial.step(step, true);
    }
    let before = parameters(&trial.net);
    let error = trial.try_step(trial.gradients(3)).unwrap_err();
    is_error(&error, "LossScaleExhausted", ["after 3 skipped steps"]);
    assert!(parameters(&trial.net) == before);
    trial.step(3, false);
    trial.synchronize();
    assert!(parameters(&trial.net) != before);
    let counters = trial.optim.received_scaler().counters();
    assert_eq!((counters.steps(), counters.skipped()), (4, 3));
}

/// The other thread knows what the scopes of this one have read.
#[test]
fn a_bad_loss_names_what_was_read_last() {
    let mut trial = sgd();
    for _ in 0..3 {
        let input = Tensor::<2>::ones([2, 6], &device());
        let output = trial.amp.autocast(input, |x| trial.net.forward(x));
        let grads = (output.sum() * f32::NAN).backward();
        let grads = GradientsParams::from_grads(grads, &trial.net);
        trial.net = trial.optim.step(trial.lr, trial.net.clone(), grads);
    }
    let error = trial.optim.synchronize(trial.net).unwrap_err().error;
    is_error(
        &error,
        "LossNotFinite",
        ["read last in `autocast` is `head.bias`"],
    );
}

/// What can be refused without the other thread is refused at once, and nothing is sent.
#[test]
fn bad_gradients_and_rates_are_refused_at_once() {
    let mut trial = sgd();
    let mut grads = trial.gradients(0);
    let wrong = Tensor::<2>::ones([1, 1], &Device::flex());
    grads.register(trial.net.head.weight.id, wrong);
    let error = trial.try_step(grads).unwrap_err();
    is_error(&error, "GradientShape", ["`head.weight`"]);
    trial.lr = f64::NAN;
    let error = trial.try_step(trial.gradients(0)).unwrap_err();
    is_error(&error, "InvalidValue", ["`lr` is"]);
    trial.synchronize();
    assert_eq!(trial.counters().steps(), 0);
}

#[test]
fn another_module_is_refused_until_it_is_reloaded() {
    let mut trial = sgd();
    for step in 0..3 {
        trial.step(step, false);
    }
    // Another network, of the same shapes.
    let own = std::mem::replace(&mut trial.net, net(&trial.amp));
    let error = trial.try_step(trial.gradients(0)).unwrap_err();
    says(&error, ["`hidden.weight` was not there"]);

    // The same network, edited. The fourth step looks.
    trial.net = own;
    trial.synchronize();
    // As weight clipping and the like do.
    trial.net = fill(trial.net, 21, 0.5);
    trial.try_step(trial.gradients(3)).unwrap();
    trial.net = fill(trial.net, 28, 0.5);
    for step in [4, 5] {
        let error = trial.try_step(trial.gradients(step)).unwrap_err();
        is_error(&error, "OtherModule", []);
    }
    trial.optim.reload(&trial.net).unwrap();
    let before = parameters(&trial.net);
    trial.lr = 0.0;
    trial.step(6, false);
    trial.synchronize();
    // The masters are those of the edited network.
    assert!(parameters(&trial.net) == before);
}
