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
        let transport = WebSocketTransport::from_listener(listener);
        server.serve(transport).unwrap()
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
fn faulty(name: &'static str, amp: MixedPrecision, seen: Arc<Mutex<Seen>>) -> Net {
    net().with_output(Arc::new(move |net, mut batch| {
        note(net, &amp, &seen);
        if batch.gain != MARK {
            return net.cast(batch);
        }
        let fault = name.split(", ").last().unwrap();
        batch.gain = match fault {
            "overflow" => 1e30,
            "NaN loss" => f32::NAN,
            "zero loss" => 0.0,
            "spike" => 8.0,
            _ => 1.0,
        };
        match fault {
            "infinite output" => {
                let forward = |x| net.forward(x) * 1e4 * 1e4;
                net.output(autocast(batch.features.clone(), forward), batch)
            }
            // As of a model that is not used.
            "no gradients" => {
                let loss = Tensor::<1>::zeros([1], &batch.features.device()).require_grad();
                let logits = net.forward(batch.features.clone()).detach();
                ClassificationOutput::new(loss, logits, batch.labels)
            }
            "empty batch" => {
                let none = batch.features.clone().slice([0..0, 0..FEATURES]);
                let logits = autocast(none, |x| net.forward(x));
                let loss = logits.clone().sum().reshape([1]);
                ClassificationOutput::new(loss, logits, batch.labels.slice([0..0]))
            }
            _ => net.cast(batch),
        }
    }))
}

/// What a run of Burn's SGD, or of what the case is about, comes to, where all workers have seen the same before each step.
fn train(name: &'static str, strategy: ExecutionStrategy) -> (String, Vec<Values>) {
    let mut run = Run::of(1);
    run.samples = samples(2 * OWN);
    if name.starts_with("windows") {
        run = run.with_windows(3);
    }
    run.config = at_scale(1024.0).with_growth_interval(4);
    let run = run.with_gain(MARK, [OWN + 9 * 8]);
    let (amp, seen) = (run.amp(), Arc::default());
    let optim: LearnerOptimizer = match name {
        "spike" => {
            let outlier =
                r#"{"Outlier": {"window": 8, "skip_update_lossz": 0, "skip_update_gradz": 2}}"#;
            let guard = Guard::load_binary(outlier.as_bytes()).unwrap();
            sgd(&amp).with_hook(guard).into()
        }
        _ if name.starts_with("fused") => fused_adam().into(),
        _ => sgd(&amp).into(),
    };
    let made = amp.learner(faulty(name, amp.clone(), Arc::clone(&seen)), optim, lr());
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
    let (of, scale) = (done.counters(), done.model.scaler().loss_scale());
    let counts = [of.stepped(), of.skipped(), of.guarded()].map(|count| count.to_string());
    let line = format!("{} > {scale}", counts.join(" "));
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

/// Burn waits for a gradient of every worker, and a server could not tell the sums of one device's workers apart: a run says so, and ends for all. Each
/// is in a process of its own, whose folder has its name, and whose other workers wait for ever when it has ended.
#[test]
fn what_cannot_be_summed_ends_the_run() {
    if let Some(case) = child_folder() {
        if case == Path::new("twice") {
            let device = device_of(&serve(1), 0);
            train("clean", ddp(&[device.clone(), device]));
        }
        train("no gradients", ddp(&engines()[0].1));
        return;
    }
    let name = format!("{}::what_cannot_be_summed_ends_the_run", module_path!());
    for (case, why) in [
        ("no gradients", "a step without gradients"),
        ("twice", "each remote device once"),
    ] {
        let mut child = child(&name, Path::new(case));
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
