//! Tests that run in a process of their own: this program again, with one ignored test and a folder.

use std::{
    path::{Path, PathBuf},
    process::Command,
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

/// In the child: its folder. None if somebody runs all ignored tests.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}
