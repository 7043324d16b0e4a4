//! Servers that are lost on the way, or that lack burn-amp's operations.

use crate::*;
use burn::server::{RemoteServer, WebSocketTransport};
use burn_amp_kernels as kernels;
use burn_amp_tests::{child, child_folder};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;

/// What becomes of work that fails, within seconds: its error, or the message of its panic.
pub fn ended<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, AmpError> + Send + 'static,
) -> Result<T, String> {
    let (start, work) = (Instant::now(), thread::spawn(work));
    while !work.is_finished() {
        assert!(start.elapsed().as_secs() < 20, "it ends within seconds");
        thread::sleep(Duration::from_millis(10));
    }
    match work.join() {
        Ok(ended) => ended.map_err(|error| error.to_string()),
        Err(panic) => Err(kernels::panic_message(&*panic).to_string()),
    }
}

/// A loop of one's own, which looks at no loss: the step itself says that the server is gone.
#[test]
fn a_loop_ends_with_an_error() {
    let mut server = Server::new();
    let device = server.device();
    let ended = ended(move || {
        let amp = MixedPrecision::f16();
        let net = fill(LinearConfig::new(6, 2).init(&device), 0, 0.5);
        let (mut model, mut optim) = amp.prepare(net, AdamConfig::new().init());
        for step in 0..100 {
            if step == 10 {
                server.kill();
            }
            let input = random::<2>(step, [4, 6], &device);
            let loss = amp.autocast(input, |x| model.forward(x)).square().mean();
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.try_step(0.01, model, grads)?;
        }
        Ok(())
    });
    says(&ended.unwrap_err(), ["is gone", "burn-amp serve"]);
}

/// In a process of its own: Burn's server, without burn-amp's operations.
#[test]
#[ignore = "serves"]
fn serves_without_operations() {
    if child_folder().is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nserves at ws://{}", listener.local_addr().unwrap());
    let transport = WebSocketTransport::from_listener(listener);
    let server = RemoteServer::new([Device::flex()]);
    server.serve(transport).unwrap();
}

/// An error that says the command, in whatever way the device is used first, and each time.
#[test]
fn a_server_without_operations() {
    let mut child = child("remote::losses::serves_without_operations", Path::new(""));
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut places = lines.filter_map(|line| {
        let line = line.unwrap();
        Some(line.strip_prefix("serves at ")?.to_string())
    });
    let host = burn::remote::RemoteHost::websocket(&places.next().unwrap());
    let device = |token: &str| {
        // Another token makes another session.
        let host = host.clone().with_credential(token);
        Device::remote_options(&host).init().unwrap().autodiff()
    };
    let first: [fn(Device) -> Result<(), AmpError>; 4] = [
        |device| MixedPrecision::f16().check_device(&device),
        |device| {
            MixedPrecision::f16().attach(LinearConfig::new(6, 2).init(&device));
            Ok(())
        },
        |device| {
            let net = LinearConfig::new(6, 2).init(&device);
            let scaler = default_scaler();
            let loss = net.forward(Tensor::<2>::ones([4, 6], &device)).mean();
            let grads = scaler.backward(loss, &net);
            scaler.unscale(grads, &net).map(drop)
        },
        |device| {
            let input = Tensor::<2>::ones([4, 6], &device);
            MixedPrecision::f16().autocast(input, |x| x * 2.0);
            Ok(())
        },
    ];
    for (number, work) in first.into_iter().enumerate() {
        let device = device(&format!("{number}"));
        for _ in 0..2 {
            let device = device.clone();
            let error = ended(move || work(device)).unwrap_err();
            says(&error, ["does not know the operations", "burn-amp serve"]);
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
