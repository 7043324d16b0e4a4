//! Burn's `ddp`: each worker has a learner of its own, and Burn sums their gradients inside the backward pass, so that what is wrong on one is seen by all.
//!
//! Over remote devices, whose servers are threads of this process; on another default device than Flex, over that, listed twice. Burn 0.22.1 can do it on
//! CUDA only; with the next Burn, `.ci/next` runs this.

use burn::remote::RemoteHost;
use burn::server::WebSocketTransport;
use burn::tensor::distributed::{DistributedConfig, DistributedContext, ReduceOperation};
use burn_amp_kernels::remote_server;
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;

use crate::support::*;

/// What the second worker meets in its tenth step of twelve; how many steps there were, how many were skipped and rejected by a guard; and the loss
/// scale.
const CASES: &str = "
clean > 12 0 0 > 8192
overflow > 11 1 0 > 2048
infinite output > 11 1 0 > 4096
NaN loss > 11 1 0 > 4096
zero loss > 12 0 0 > 8192
empty batch > 12 0 0 > 8192
spike > 11 0 1 > 4096
fused, overflow > 11 1 0 > 2048
fused, NaN loss > 11 1 0 > 4096
windows, overflow > 3 1 0 > 512
";

/// Samples of each worker, in batches of 8.
const OWN: usize = 12 * 8;

/// Marks a batch in which the fault happens: a sample's gain is at least one.
const MARK: f32 = 2.0;

/// A server with so many devices, as long as this process.
fn serve(devices: usize) -> RemoteHost {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = remote_server(vec![Device::flex(); devices]);
    thread::spawn(move || {
        server
            .serve(WebSocketTransport::from_listener(listener))
            .unwrap()
    });
    RemoteHost::websocket(&format!("ws://{address}"))
}

fn device_of(host: &RemoteHost, index: usize) -> Device {
    let options = Device::remote_options(host).device_index(index);
    options.init().unwrap()
}

/// Two devices for each way in which Burn sums over them, and the device behind both.
fn engines() -> Vec<(&'static str, [Device; 2], Device)> {
    let own = Device::default();
    if !on_flex() {
        let twice = [own.clone(), own.clone()];
        return vec![("one device, listed twice", twice, own)];
    }
    let apart = [(); 2].map(|()| device_of(&serve(1), 0));
    let host = serve(2);
    let together = [0, 1].map(|index| device_of(&host, index));
    vec![
        ("two servers", apart, own.clone()),
        ("two devices of a server", together, own),
    ]
}

/// A model in which the fault of this name happens, and that notes what each step is made with.
fn faulty(name: &'static str, amp: MixedPrecision, seen: Arc<Mutex<Seen>>) -> Model {
    Model::new(net(), move |model, mut batch| {
        if !note(&model.net, &amp, &seen) {
            return InferenceStep::step(&model.net, batch);
        }
        let is_here = batch.gain.clone().into_scalar::<f32>() == MARK;
        batch.gain = batch.gain * 0.0 + 1.0;
        let fault = name.split(", ").last().unwrap();
        let factor = match fault {
            "overflow" => 1e30,
            "NaN loss" => f32::NAN,
            "zero loss" => 0.0,
            "spike" => 8.0,
            _ => 1.0,
        };
        if !is_here {
            return InferenceStep::step(&model.net, batch);
        }
        batch.gain = batch.gain * factor;
        match fault {
            "infinite output" => {
                let forward = |x| model.net.forward(x) * 1e4 * 1e4;
                let logits = autocast(batch.features.clone(), forward);
                model.net.output(logits, batch)
            }
            // As of a model that is not used.
            "no gradients" => {
                let loss = Tensor::<1>::zeros([1], &batch.features.device()).require_grad();
                let logits = model.net.forward(batch.features.clone()).detach();
                ClassificationOutput::new(loss, logits, batch.labels)
            }
            "empty batch" => {
                let none = batch.features.clone().slice([0..0, 0..FEATURES]);
                let logits = autocast(none, |x| model.net.forward(x));
                let loss = logits.clone().sum().reshape([1]);
                ClassificationOutput::new(loss, logits, batch.labels.slice([0..0]))
            }
            _ => InferenceStep::step(&model.net, batch),
        }
    })
}

/// Burn's SGD with what the case of this name is about.
fn learner(name: &'static str, amp: &MixedPrecision, seen: Arc<Mutex<Seen>>) -> Made<Model> {
    let model = faulty(name, amp.clone(), seen);
    if name.starts_with("fused") {
        return amp.learner(model, fused_adam(), lr());
    }
    let optim = match name {
        "spike" => {
            let outlier =
                r#"{"Outlier": {"window": 8, "skip_update_lossz": 0, "skip_update_gradz": 2}}"#;
            sgd(amp).with_hook(Guard::load_binary(outlier.as_bytes()).unwrap())
        }
        _ => sgd(amp),
    };
    amp.learner(model, optim, lr())
}

/// What a run comes to, where all workers have seen the same before each step.
fn train(name: &'static str, strategy: ExecutionStrategy) -> (String, Vec<Values>) {
    let mut run = Run::of(1);
    run.samples = samples(2 * OWN);
    if name.starts_with("windows") {
        run = run.with_windows(3);
    }
    run.config = at_scale(1024.0).with_growth_interval(4);
    let run = run.with_gain(MARK, [OWN + 9 * 8]);
    let (amp, seen) = (run.amp(), Arc::default());
    let made = learner(name, &amp, Arc::clone(&seen));
    let done = run.train_by(&temp_dir(), &amp, made, |amp, training| {
        amp.training(training)
            .with_training_strategy(strategy.into())
    });
    let done = done.finished();
    if run.accumulation.is_none() {
        let seen = by_steps(&seen);
        assert_eq!(seen.len(), 24, "{name}");
        for both in seen.chunks(2) {
            assert!(both[0].1 != both[1].1, "{name}: step {}", both[0].0);
        }
    }
    let (counters, scale) = (done.counters(), done.model.scaler().loss_scale());
    let line = format!(
        "{} {} {} > {scale}",
        counters.stepped(),
        counters.skipped(),
        counters.guarded()
    );
    (line, values(&done.model))
}

fn ddp(devices: &[Device]) -> ExecutionStrategy {
    let all_reduce_op = ReduceOperation::Sum;
    ExecutionStrategy::ddp(devices.to_vec(), DistributedConfig { all_reduce_op })
}

/// What is wrong on one worker is decided on all, with the parameters of `ExecutionStrategy::multi`, which steps once for all workers.
#[test]
fn all_workers_decide_the_same() {
    // A server installs a logger, and so do other tests.
    if said_in_child(module_path!(), "all_workers_decide_the_same").is_some() {
        return;
    }
    for (engine, devices, own) in engines() {
        for [name, counts, scale] in rows(CASES) {
            let multi = ExecutionStrategy::multi(vec![own.clone(); 2], WAYS[0]);
            let (multi, ddp) = (train(name, multi), train(name, ddp(&devices)));
            assert_eq!(multi.0, format!("{counts} > {scale}"), "{name}");
            assert_eq!(multi.0, ddp.0, "{engine}: {name}");
            // Elsewhere than on Flex, `multi` sums windows in the order in which the workers come.
            let is_sum_of_its_own = name.starts_with("windows") && !on_flex();
            assert!(multi.1 == ddp.1 || is_sum_of_its_own, "{engine}: {name}");
        }
    }
}

/// Burn waits for a gradient of every worker: one without says so, and ends the run for all.
#[test]
fn a_worker_without_gradients_ends_the_run() {
    ends(
        "a_worker_without_gradients_ends_the_run",
        "a step without gradients",
        || {
            train("no gradients", ddp(&engines()[0].1));
        },
    );
}

/// Its server could not tell them apart.
#[test]
fn a_remote_device_that_is_listed_twice_ends_the_run() {
    ends(
        "a_remote_device_that_is_listed_twice_ends_the_run",
        "each remote device once",
        || {
            let device = device_of(&serve(1), 0);
            train("clean", ddp(&[device.clone(), device]));
        },
    );
}

/// A run in a process of its own, whose other workers wait for ever when it has ended.
fn ends(name: &str, why: &str, run: impl FnOnce()) {
    if child_folder().is_some() {
        run();
        return;
    }
    let mut child = child(&format!("{}::{name}", module_path!()), Path::new(""));
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    for _ in 0..600 {
        thread::sleep(Duration::from_millis(100));
        if child.try_wait().unwrap().is_some() {
            break;
        }
    }
    let _ended = child.kill();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    says(&String::from_utf8_lossy(&said), [why]);
    assert!(!output.status.success());
}

/// See `docs/upstream/ddp-second-backward.md`. When this fails, `SumAgain` can go.
#[test]
fn burn_sums_in_the_first_backward_pass_only() {
    if child_folder().is_none() {
        // One context is alive for all remote devices of a process.
        said_in_child(module_path!(), "burn_sums_in_the_first_backward_pass_only");
        return;
    }
    let devices = [(); 2].map(|()| device_of(&serve(1), 0).autodiff());
    let all_reduce_op = ReduceOperation::Sum;
    let _context = DistributedContext::init(devices.to_vec(), DistributedConfig { all_reduce_op });
    let id = ParamId::new();
    let work = |device: &Device, own: f32| {
        let weight = Tensor::<1>::ones([1], device).require_grad();
        let weight = weight.set_distributed(id);
        [(); 2].map(|()| {
            let grads = (weight.clone() * own).backward();
            weight.grad(&grads).unwrap().into_scalar::<f32>()
        })
    };
    let passes = thread::scope(|threads| {
        let both = [(&devices[0], 1.0), (&devices[1], 3.0)];
        let both = both.map(|(device, own)| threads.spawn(move || work(device, own)));
        both.map(|worker| worker.join().unwrap())
    });
    assert_eq!(passes, [[4.0, 1.0], [4.0, 3.0]]);
}
