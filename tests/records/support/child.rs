//! Tests that run in a process of their own: this program again, with one ignored test and a folder.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

const FOLDER: &str = "BURN_AMP_TEST_FOLDER";

/// The command that runs the ignored test of this name, with `folder` for its files.
pub fn child(test: &str, folder: &Path) -> Command {
    // These tests may be a module of a larger program.
    let module = module_path!().trim_end_matches("support::child");
    let (_, module) = module.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        &format!("{module}{test}"),
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    command.env(FOLDER, folder);
    command
}

/// Runs the test in a shell that has said `limit`.
pub fn limited(test: &str, folder: &Path, limit: &str) -> Output {
    let test = child(test, folder);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit} exec \"$0\" \"$@\"")]);
    shell.arg(test.get_program()).args(test.get_args());
    for (name, value) in test.get_envs() {
        shell.env(name, value.unwrap());
    }
    shell.output().unwrap()
}

/// In the child: its folder. None if somebody runs all ignored tests.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}
