//! What the tests of records share.

pub use burn_amp_tests::{prelude::*, small::*};

use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};

/// Has an optimizer load what it must refuse; it stays as it is.
pub fn refused<O: ModuleOptim>(
    optim: &mut ScaledOptimizer<O>,
    load: impl FnOnce(&mut ScaledOptimizer<O>) -> Result<(), AmpError>,
) -> AmpError {
    let before = contents(optim);
    let error = quietly(|| load(optim)).expect("no panic").unwrap_err();
    assert_eq!(contents(optim), before, "{error}");
    error
}

/// A folder of its own, and a path of this name in it.
pub fn place(name: &str) -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

/// The names of what is in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// What a save that was interrupted has left.
pub fn scratch_files(folder: &Path) -> Vec<PathBuf> {
    let names = names(folder).into_iter();
    let scratch = names.filter(|name| name.ends_with(".tmp"));
    scratch.map(|name| folder.join(name)).collect()
}
