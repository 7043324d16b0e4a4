//! What goes wrong, on either side: nothing is lost in silence, and the module is given back.

use burn_amp_tests::prelude::*;
use burn_amp_tests::says;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use crate::support::{Net, gradients, parameters};

fn amp() -> MixedPrecision {
    let config = GradScalerConfig::new()
        .with_init_scale(1024.0)
        .with_max_consecutive_skips(Some(2));
    MixedPrecision::f16().with_scaler(config).unwrap()
}

fn pipelined<O: ModuleOptim + Send + 'static>(
    optim: O,
    amp: &MixedPrecision,
) -> PipelinedOptimizer<O> {
    PipelinedOptimizer::new(ScaledOptimizer::new(optim, amp), Device::flex()).unwrap()
}

/// Steps when it is let, and counts that; panics at a chosen step.
struct Gated {
    inner: ModuleOptimizer,
    gate: Option<Mutex<Receiver<()>>>,
    steps: Arc<AtomicUsize>,
    panics_at: usize,
}

impl Gated {
    fn new(panics_at: usize) -> (Self, Arc<AtomicUsize>) {
        let steps = Arc::new(AtomicUsize::new(0));
        let gated = Self {
            inner: SgdConfig::new().init(),
            gate: None,
            steps: steps.clone(),
            panics_at,
        };
        (gated, steps)
    }

    fn behind_a_gate(mut self) -> (Self, Sender<()>) {
        let (open, gate) = channel();
        self.gate = Some(Mutex::new(gate));
        (self, open)
    }
}

impl ModuleOptim for Gated {
    fn step<M: Module>(&mut self, lr: ModuleLearningRate, module: M, grads: GradientsParams) -> M {
        if let Some(gate) = &self.gate {
            // Whoever has dropped the other end lets all through.
            let _ = gate.lock().unwrap().recv();
        }
        if self.steps.load(Ordering::SeqCst) == self.panics_at {
            panic!("the disk of the optimizer's state is full");
        }
        self.steps.fetch_add(1, Ordering::SeqCst);
        self.inner.step(lr, module, grads)
    }
}

#[test]
fn a_killed_optimizer_thread_is_an_error_of_every_later_call() {
    let amp = amp();
    let (gated, steps) = Gated::new(3);
    let mut optim = pipelined(gated, &amp);
    let mut net = Net::new(&amp);
    let mut failed = None;
    for step in 0..6 {
        let grads = gradients(&amp, &net, step, false);
        match optim.try_step(1e-2, net, grads) {
            Ok(stepped) => net = stepped,
            Err(error) => {
                assert!(
                    matches!(&error.error, AmpError::OptimizerThread { reason } if reason.contains("disk")),
                    "{error}"
                );
                failed.get_or_insert(step);
                net = *error.module;
            }
        }
    }
    // Step 3 has panicked, and step 4 has waited for it.
    assert_eq!(failed, Some(4));
    assert_eq!(steps.load(Ordering::SeqCst), 3);
    let before = parameters(&net);
    let error = optim.synchronize(net).unwrap_err();
    assert!(error.to_string().contains("disk"), "{error}");
    let net = error.module;
    assert!(parameters(&*net) == before);
    let error = optim.to_record().into_bytes().unwrap_err();
    assert!(error.to_string().contains("disk"), "{error}");
    let error = optim.queue(|_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("disk"), "{error}");
    // What is known is known still.
    assert_eq!(optim.scaler(true).counters().steps(), 3);
    let error = optim.into_inner(*net).unwrap_err();
    assert!(error.to_string().contains("disk"), "{error}");
}

/// A step waits for the update before: not for its own.
#[test]
fn at_most_one_update_is_in_flight() {
    let amp = amp();
    let (gated, steps) = Gated::new(usize::MAX);
    let (gated, open) = gated.behind_a_gate();
    let mut optim = pipelined(gated, &amp);
    let net = Net::new(&amp);
    let grads = gradients(&amp, &net, 0, false);
    // The gate is closed, and yet it returns.
    let net = optim.step(1e-2, net, grads);
    assert_eq!(steps.load(Ordering::SeqCst), 0);

    let (sender, done) = channel();
    let training = thread::spawn(move || {
        let grads = gradients(&amp, &net, 1, false);
        let net = optim.step(1e-2, net, grads);
        sender.send(()).unwrap();
        (optim, net)
    });
    // It cannot be done: the first update is at the gate.
    assert!(
        done.recv_timeout(std::time::Duration::from_millis(200))
            .is_err()
    );
    open.send(()).unwrap();
    done.recv().unwrap();
    assert_eq!(steps.load(Ordering::SeqCst), 1);
    let (mut optim, net) = training.join().unwrap();
    open.send(()).unwrap();
    optim.synchronize(net).unwrap();
    assert_eq!(steps.load(Ordering::SeqCst), 2);
}

/// Micro-batches wait in a queue for the optimizer's side, and the caller where it is full.
#[test]
fn a_full_queue_makes_the_training_wait() {
    let amp = amp();
    let (gated, _) = Gated::new(usize::MAX);
    let optim = ScaledOptimizer::new(gated, &amp)
        .with_accumulation(100)
        .unwrap();
    let mut optim = PipelinedOptimizer::new(optim, Device::flex()).unwrap();
    let (open, gate) = channel::<()>();
    // The thread is busy with this.
    optim
        .queue(move |_| {
            let _ = gate.recv();
            Ok(())
        })
        .unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let training = thread::spawn(move || {
        let mut net = Net::new(&amp);
        for step in 0..10 {
            let grads = gradients(&amp, &net, step, false);
            net = optim.step(1e-2, net, grads);
            count.fetch_add(1, Ordering::SeqCst);
        }
        optim.flush(1e-2, net);
        optim.scaler(true)
    });
    thread::sleep(std::time::Duration::from_millis(300));
    assert!(sent.load(Ordering::SeqCst) <= 1, "the queue has no end");
    drop(open);
    let scaler = training.join().unwrap();
    assert_eq!(scaler.counters().steps(), 1);
    assert_eq!(sent.load(Ordering::SeqCst), 10);
}

#[test]
fn a_drop_finishes_what_is_on_its_way_and_says_so() {
    for synchronized in [false, true] {
        let amp = amp();
        let (gated, steps) = Gated::new(usize::MAX);
        let (gated, open) = gated.behind_a_gate();
        let mut optim = pipelined(gated, &amp);
        let net = Net::new(&amp);
        let grads = gradients(&amp, &net, 0, false);
        let net = optim.step(1e-2, net, grads);
        let lines = burn_amp_tests::captured(log::Level::Warn, || {
            open.send(()).unwrap();
            if synchronized {
                optim.synchronize(net).unwrap();
            }
            drop(optim);
        });
        assert_eq!(steps.load(Ordering::SeqCst), 1);
        let warned = lines.iter().any(|line| line.contains("synchronize"));
        assert_eq!(warned, !synchronized, "{lines:?}");
    }
}

/// The error of an update comes with the next call, whose gradients are refused; the run may go on.
#[test]
fn an_exhausted_scale_is_an_error_of_the_next_step() {
    let amp = amp();
    let mut optim = pipelined(SgdConfig::new().init(), &amp);
    let mut net = Net::new(&amp);
    for step in 0..3 {
        let grads = gradients(&amp, &net, step, true);
        net = optim.step(1e-2, net, grads);
    }
    let before = parameters(&net);
    let grads = gradients(&amp, &net, 3, false);
    let error = optim.try_step(1e-2, net, grads).unwrap_err();
    assert!(
        matches!(error.error, AmpError::LossScaleExhausted { skips: 3, .. }),
        "{error}"
    );
    net = *error.module;
    assert!(parameters(&net) == before);
    let grads = gradients(&amp, &net, 3, false);
    net = optim.step(1e-2, net, grads);
    net = optim.synchronize(net).unwrap();
    assert!(parameters(&net) != before);
    let counters = optim.scaler(false).counters();
    assert_eq!((counters.steps(), counters.skipped()), (4, 3));
}

/// What can be refused without the other thread is refused at once, and nothing is sent.
#[test]
fn bad_gradients_and_rates_are_refused_at_once() {
    let amp = amp();
    let mut optim = pipelined(SgdConfig::new().init(), &amp);
    let net = Net::new(&amp);
    let mut grads = gradients(&amp, &net, 0, false);
    let wrong = Tensor::<2>::ones([1, 1], &Device::flex());
    grads.register(net.head.weight.id, wrong);
    let error = optim.try_step(1e-2, net, grads).unwrap_err();
    assert!(
        matches!(&error.error, AmpError::GradientShape { parameter, .. } if parameter == "head.weight"),
        "{error}"
    );
    let net = *error.module;
    let grads = gradients(&amp, &net, 0, false);
    let error = optim.try_step(f64::NAN, net, grads).unwrap_err();
    assert!(
        matches!(error.error, AmpError::InvalidValue { field: "lr", .. }),
        "{error}"
    );
    optim.synchronize(*error.module).unwrap();
    assert_eq!(optim.scaler(true).counters().steps(), 0);
}

/// Adds to every parameter, as weight clipping and the like do.
struct Add(f32);

impl ModuleMapper for Add {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let add = self.0;
        param.map(|tensor| (tensor.inner().add_scalar(add)).autodiff().require_grad())
    }
}

#[test]
fn another_module_is_refused_until_it_is_reloaded() {
    let amp = amp();
    let mut optim = pipelined(SgdConfig::new().init(), &amp);
    let mut net = Net::new(&amp);
    for step in 0..3 {
        let grads = gradients(&amp, &net, step, false);
        net = optim.step(1e-2, net, grads);
    }
    // Another network, of the same shapes.
    let other = Net::new(&amp);
    let grads = gradients(&amp, &other, 0, false);
    let error = optim.try_step(1e-2, other, grads).unwrap_err();
    says(&error, ["`hidden.weight` was not there"]);

    // The same network, edited. The fourth step looks.
    net = optim.synchronize(net).unwrap().map(&mut Add(0.5));
    let mut refused = None;
    for step in 3..6 {
        let grads = gradients(&amp, &net, step, false);
        match optim.try_step(1e-2, net.clone(), grads) {
            Ok(stepped) => net = stepped.map(&mut Add(0.5)),
            Err(error) => {
                assert!(
                    matches!(&error.error, AmpError::OtherModule { .. }),
                    "{error}"
                );
                refused.get_or_insert(step);
            }
        }
    }
    assert_eq!(refused, Some(4));

    optim.reload(&net).unwrap();
    let before = parameters(&net);
    let zero = |net: &Net| gradients(&amp, net, 6, false);
    let grads = zero(&net);
    net = optim.step(0.0, net, grads);
    net = optim.synchronize(net).unwrap();
    // The masters are those of the edited network.
    assert!(parameters(&net) == before);
}
