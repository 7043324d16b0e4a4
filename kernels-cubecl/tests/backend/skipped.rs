//! Tests that have nothing to do on some device.

use std::io::{self, Write};
use std::thread;

/// Says that the test of this thread is left out on this device, and why, where a run of all tests shows it, too: these lines are counted.
pub fn skipped(why: &str) {
    let test = thread::current();
    let test = test.name().unwrap_or("a test");
    let line = format!("skipped: {test}: {why}\n");
    // Not by `eprintln`, which a test shows where it fails alone.
    io::stderr().write_all(line.as_bytes()).unwrap();
}
