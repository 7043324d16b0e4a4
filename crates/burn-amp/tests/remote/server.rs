//! The command `burn-amp serve`, as a user runs it.

use burn::{remote::RemoteHost, tensor::Device};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

/// The command with these arguments, separated by spaces, and this token.
pub fn command(arguments: &str, token: Option<&str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_burn-amp"));
    command.arg("serve").args(arguments.split_whitespace());
    command.env_remove("BURN_DEVICE").env("RUST_LOG", "error");
    match token {
        Some(token) => command.env("BURN_AMP_TOKEN", token),
        None => command.env_remove("BURN_AMP_TOKEN"),
    };
    command
}

/// What the command says that does not serve.
pub fn refusal(arguments: &str, token: Option<&str>) -> String {
    let Output { status, stderr, .. } = command(arguments, token).output().unwrap();
    assert!(!status.success());
    String::from_utf8(stderr).unwrap()
}

/// A process that serves until it is dropped.
pub struct Server {
    child: Child,
    /// Where clients find it, as it has said.
    pub place: String,
}

impl Server {
    /// Flex, at a port that is free.
    pub fn new() -> Self {
        Self::with("--device flex --address 127.0.0.1:0", None)
    }

    pub fn with(arguments: &str, token: Option<&str>) -> Self {
        let mut command = command(arguments, token);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("it says where it serves").unwrap();
        // Else it waits once the pipe is full.
        thread::spawn(move || lines.for_each(drop));
        let (_, place) = line.split_once(" at ").expect("where it serves");
        let place = place.to_string();
        Self { child, place }
    }

    pub fn host(&self) -> RemoteHost {
        RemoteHost::websocket(&self.place)
    }

    /// Its first device, with autodiff.
    pub fn device(&self) -> Device {
        let device = Device::remote_options(&self.host()).init();
        device.unwrap().autodiff()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
