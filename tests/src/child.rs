//! Tests that run in a process of their own: this program again, with one test and a folder.

use std::path::{Path, PathBuf};
use std::{env, process::Command};

const FOLDER: &str = "BURN_AMP_TEST_FOLDER";

/// The command that runs the test of this path, which begins with its crate, with `folder` for its files.
pub fn child(test: &str, folder: &Path) -> Command {
    let (_, name) = test.split_once("::").expect("a path");
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([name, "--exact", "--include-ignored", "--nocapture"]);
    command.env(FOLDER, folder);
    command
}

/// In the child: its folder. None in any other process, as where somebody runs all ignored tests.
pub fn child_folder() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}

/// What the test of this name in this module says to standard error in a process of its own: a logger can be installed only once, and some things are said
/// once in a process. None in that process.
pub fn said_in_child(module: &str, name: &str) -> Option<String> {
    if child_folder().is_some() {
        return None;
    }
    let mut child = child(&format!("{module}::{name}"), Path::new(""));
    let output = child.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(passed, "{name}: {said}");
    Some(said)
}
