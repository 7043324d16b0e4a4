//! Tests that run in a process of their own: this program again, with one ignored test and a folder.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

const FOLDER: &str = "BURN_AMP_TEST_FOLDER";

/// The command that runs the ignored test of this path, which begins with its crate, with `folder` for its files.
pub fn child(test: &str, folder: &Path) -> Command {
    let (_, name) = test.split_once("::").expect("a path");
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([name, "--exact", "--ignored", "--nocapture"]);
    command.env(FOLDER, folder);
    command
}

/// In the child: its folder. None if somebody runs all ignored tests.
pub fn child_folder() -> Option<PathBuf> {
    env::var_os(FOLDER).map(PathBuf::from)
}
