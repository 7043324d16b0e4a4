//! What the loss scale and f32 parameters are there for: values that half precision cannot hold.

mod half_loss;
mod logger;
mod prepare;
mod tiny_updates;

use std::{env, process::Command};

const CHILD: &str = "BURN_AMP_TEST_CHILD";

/// What the test of this name says to standard error in a process of its own: a logger can be installed only once, and some things are said
/// once in a process. None in that process.
fn in_child(name: &str) -> Option<String> {
    if env::var_os(CHILD).is_some() {
        return None;
    }
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let told = String::from_utf8(child.stderr).unwrap();
    let passed = String::from_utf8_lossy(&child.stdout).contains("1 passed");
    assert!(passed, "{name}: {told}");
    Some(told)
}
