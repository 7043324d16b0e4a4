//! A program as a user runs it: a real process.

use std::process::Command;

/// What it prints.
pub fn prints(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command:?}: {printed}\n{error}");
    printed
}

/// Asserts that arguments are refused in words, and not by a panic, some of which these are.
pub fn refuses(program: impl Fn(&[&str]) -> Command, cases: &[(&[&str], &str)]) {
    for (arguments, word) in cases {
        let output = program(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let refused = !output.status.success() && !error.contains("panicked");
        assert!(refused && error.contains(word), "{arguments:?}: {error}");
    }
}
